"""The outbox: what is to be done after a transaction is written in it, so that it is done if and only if that commits.

    put (in the transaction) -> on commit: the broker is told -> a worker: carry_out -> done
                                             beat: sweep -> the broker is told of what is due and not done

The broker only says "look at entry 7": whatever it loses, the next sweep says again. What is told twice is done once: an
effect in the database commits together with its mark; an effect outside is claimed for `lease_s` first, so that only the
death of a worker between the two makes it happen again (the receiver knows it by its id).
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import connection, transaction
from django.db.models import F, Q
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerAway

from headway.celery_app import app
from headway.circuit import Circuit
from headway.errors import HeadwayError
from workers.errors import NoSuchEffect
from workers.models import OutboxEntry

log = structlog.get_logger(__name__)

RUN_TASK = "workers.tasks.carry_out_entry"
SWEEP_BATCH = 500
TELL_AGAIN = timedelta(seconds=15)
"""What the broker was told is left to it for so long: telling it all the time would fill its queue with the same."""
FIRST_RETRY_S = 5.0
MAX_RETRY_S = 3600.0
KEPT = timedelta(days=7)
"""How long what is done stays, to be looked at."""

Ids = dict[str, Any]
broker = Circuit("broker")
"""Of this process; sweeps ask always."""


@dataclass(frozen=True)
class Effect:
    """How one kind of entry is carried out. `act` raises to be tried again."""

    act: Callable[[Ids], None]
    is_in_database: bool = True
    """It changes our database only: effect and mark commit together."""
    lease_s: float = 60.0
    """Of an effect outside: longer than it can take."""
    max_attempts: int = 14
    """Then it is given up, about six hours after the first; an operator may ask for it again."""


def put(*, kind: str, ids: Ids, due_at: datetime | None = None) -> OutboxEntry:
    """Call it inside the transaction that decides it."""
    assert connection.in_atomic_block, "put it into the transaction that decides it"
    now = timezone.now()
    entry = OutboxEntry.objects.create(kind=kind, ids=ids, due_at=due_at or now, told_at=now if due_at is None else None)
    if due_at is None:
        transaction.on_commit(lambda: _tell_at_once(entry.id), robust=True)
    return entry


def tell_broker(entry_ids: list[int]) -> int:
    """How many it was told of; one that is away is no error, as the sweep tells it again."""
    told = 0
    try:
        for entry_id in entry_ids:
            app.send_task(RUN_TASK, [entry_id], retry=False, ignore_result=True)
            told += 1
            broker.answered()
    except (BrokerAway, OSError) as error:
        broker.failed(error)
        log.warning("broker_away", reason=type(error).__name__, entries=len(entry_ids) - told)
    return told


def sweep() -> int:
    """Tell the broker of what is due and not done. Returns of how many."""
    now = timezone.now()
    due = OutboxEntry.objects.filter(done_at=None, given_up_at=None, due_at__lte=now)
    untold = due.filter(Q(told_at=None) | Q(told_at__lt=now - TELL_AGAIN))
    entry_ids = list(untold.order_by("due_at").values_list("id", flat=True)[:SWEEP_BATCH])
    told = tell_broker(entry_ids)
    OutboxEntry.objects.filter(id__in=entry_ids[:told]).update(told_at=now)
    return told


def carry_out(entry_id: int, effects: Mapping[str, Effect]) -> bool:
    """Do it unless it is done, not due, or being done. Returns whether this call did it; failures are noted and logged."""
    entry = OutboxEntry.objects.filter(id=entry_id, done_at=None, given_up_at=None, due_at__lte=timezone.now()).first()
    if entry is None:
        return False
    effect = effects.get(entry.kind)
    try:
        if effect is None:
            raise NoSuchEffect(f"nothing carries out entries of the kind {entry.kind!r}")
        return _in_database(entry, effect) if effect.is_in_database else _outside(entry, effect)
    except Exception as error:  # whatever an effect raises: it is noted, and tried again
        log.warning("outbox_entry_failed", entry=entry.id, kind=entry.kind, exc_info=not isinstance(error, HeadwayError))
        _note_failure(entry, error, effect or Effect(act=lambda _ids: None))
        return False


def try_again(entry_id: int) -> bool:
    """One that was given up, from the start."""
    now = timezone.now()
    fresh = {"given_up_at": None, "attempts": 0, "due_at": now, "told_at": now}
    with transaction.atomic():
        changed = OutboxEntry.objects.filter(id=entry_id, done_at=None).exclude(given_up_at=None).update(**fresh)
        if changed:
            transaction.on_commit(lambda: _tell_at_once(entry_id), robust=True)
    return bool(changed)


def forget_done() -> int:
    """What was done KEPT ago."""
    return OutboxEntry.objects.filter(done_at__lt=timezone.now() - KEPT).delete()[0]


def retry_after_s(attempts: int) -> float:
    """After so many failures: 5 s, doubling up to an hour, and up to a tenth more, so that not all come back at once."""
    wait_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** max(0, min(attempts, 30) - 1))
    return wait_s * (1 + random.random() / 10)


def _tell_at_once(entry_id: int) -> None:
    """Whoever asked is waiting: a broker that was just away is left alone."""
    if not (broker.asks() and tell_broker([entry_id])):
        OutboxEntry.objects.filter(id=entry_id, done_at=None).update(told_at=None)  # the next sweep's


def _in_database(entry: OutboxEntry, effect: Effect) -> bool:
    with transaction.atomic():
        now = timezone.now()
        mine = OutboxEntry.objects.filter(id=entry.id, done_at=None, given_up_at=None)
        if not mine.update(done_at=now, attempts=F("attempts") + 1, last_error=""):
            return False
        effect.act(entry.ids)
    return True


def _outside(entry: OutboxEntry, effect: Effect) -> bool:
    now = timezone.now()
    claim = {"attempts": entry.attempts + 1, "due_at": now + timedelta(seconds=effect.lease_s), "told_at": None}
    claimed = OutboxEntry.objects.filter(
        id=entry.id, done_at=None, given_up_at=None, attempts=entry.attempts, due_at=entry.due_at
    )
    if not claimed.update(**claim):
        return False
    effect.act(entry.ids)
    OutboxEntry.objects.filter(id=entry.id, attempts=entry.attempts + 1).update(done_at=timezone.now(), last_error="")
    return True


def _note_failure(entry: OutboxEntry, error: Exception, effect: Effect) -> None:
    """Messages of errors that are not ours may quote anything: their kind alone is kept."""
    attempts, now = entry.attempts + 1, timezone.now()
    text = error.message if isinstance(error, HeadwayError) else type(error).__name__
    values: dict[str, Any] = {
        "attempts": attempts,
        "last_error": text[:300],
        "due_at": now + timedelta(seconds=retry_after_s(attempts)),
        "told_at": None,
    }
    if attempts >= effect.max_attempts:
        values["given_up_at"] = now
    OutboxEntry.objects.filter(id=entry.id, done_at=None, attempts__in=(entry.attempts, attempts)).update(**values)

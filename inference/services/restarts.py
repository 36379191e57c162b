"""Restart all engines of a model, one after the other: a new engine in each one's place (moving.py).

Each is begun once the one before it has stopped and the one in its place is certified. Where no node has room for two, a
replica that serves is drained first only while every other one that is to serve does, and another of its version is among
them: so the pool is never more than one short, and no version is left without one that serves. One in whose place nothing
comes up ends the restart; what was not restarted yet serves on.
"""

import structlog
from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from headway.errors import Conflict, InvalidInput
from inference.errors import NoNodeHasRoom
from inference.fleet_models import RollingRestart
from inference.models import Pool, Replica, ReplicaState
from inference.services.holding import hold_pool_if_free
from inference.services.moving import CERTIFIED, in_its_place, keep_after_all, replace
from inference.services.registry import pool_of
from inference.services.replicas import HELD
from inference.services.wanted import AGENTS
from tenants.services.audit import record_audit

log = structlog.get_logger(__name__)
_S = ReplicaState
_V = RollingRestart.Verdict


def restart_model(*, public_id: str, actor: str) -> RollingRestart:
    """Begin. Raises UnknownModel, InvalidInput (it has no replica that could be), Conflict (one runs)."""
    pool = pool_of(public_id)
    try:
        with transaction.atomic():
            ids = [replica.id for replica in _staying(pool)]
            if not ids:
                raise InvalidInput(f"model {public_id!r} has no replica to restart", param="model")
            found = RollingRestart.objects.create(pool=pool, by=actor[:200], started_at=timezone.now(), waiting=ids)
            record_audit(actor=actor, action="model.restart", target=public_id, after={"replicas": len(ids)})
    except IntegrityError:
        raise Conflict(f"the replicas of {public_id!r} are being restarted already") from None
    return found


def cancel_restart(*, public_id: str, actor: str) -> RollingRestart:
    """The one that is under way is finished, no further one is begun. Raises UnknownModel, Conflict (none runs)."""
    pool = pool_of(public_id)
    with transaction.atomic():
        found = RollingRestart.objects.select_for_update().filter(pool=pool, ended_at=None).first()
        if found is None:
            raise Conflict(f"no restart of {public_id!r} is under way")
        _end(found, _V.CANCELLED, f"by {actor}")
        record_audit(actor=actor, action="model.restart_cancel", target=public_id, after={"left": len(found.waiting)})
    return found


def newest_restarts() -> dict[int, RollingRestart]:
    """By pool."""
    newest = RollingRestart.objects.values("pool").annotate(newest=Max("id")).values("newest")
    return {row.pool_id: row for row in RollingRestart.objects.filter(pk__in=newest)}


def advance_restarts() -> list[int]:
    """Take each one under way as far as it has come. Returns the ids of those that ended. Anybody may call it."""
    return [pk for pk in RollingRestart.objects.filter(ended_at=None).order_by("id").values_list("pk", flat=True) if _take(pk)]


def _take(pk: int) -> bool:
    with transaction.atomic():
        # Every agent and beat come by each second: in a queue of them an operator's cancel would wait for long.
        rows = RollingRestart.objects.select_for_update(of=("self",), skip_locked=True).select_related("pool__model")
        restart = rows.filter(pk=pk, ended_at=None).first()
        if restart is None:
            return False  # somebody else has ended it, or is at it
        if hold_pool_if_free(restart.pool_id) is None:
            return False
        if restart.replica and not _is_settled(restart):
            return restart.ended_at is not None
        return _begin_next(restart)


def _is_settled(restart: RollingRestart) -> bool:
    """Whether the one under way is done; a new one that cannot come up ends it all."""
    old = Replica.objects.filter(pk=restart.replica).first()
    new = Replica.objects.filter(pk=restart.replaced_by).first()
    if new is not None and new.is_wanted and new.state == _S.FAILED and new.reason.endswith(HELD):
        if old is not None and old.is_wanted:
            keep_after_all(old)
        _end(restart, _V.FAILED, f"{new.id}, in the place of {restart.replica}, does not come up: {new.reason}")
        return False
    if new is not None and new.is_wanted and new.state not in CERTIFIED:
        return _say(restart, f"{new.id}, in the place of {restart.replica}, is {new.state}")
    if old is not None and old.state != _S.STOPPED and not (old.state == _S.FAILED and not old.is_wanted):
        return _say(restart, f"{restart.replica} finishes its requests")
    restart.done = [*restart.done, restart.replica]
    restart.replica = restart.replaced_by = ""
    return True


def _begin_next(restart: RollingRestart) -> bool:
    """Returns whether it is over."""
    staying = {replica.id: replica for replica in _staying(restart.pool)}
    restart.waiting = [replica_id for replica_id in restart.waiting if replica_id in staying]  # others went meanwhile
    if not restart.waiting:
        _end(restart, _V.DONE, "")
        return True
    replica = staying[restart.waiting[0]]
    try:
        new = replace(replica)
    except NoNodeHasRoom:
        missing = _missing_without(replica, [other for other in staying.values() if other.id != replica.id])
        if missing:
            return _say(restart, f"no node has room for two, and {missing}")
        try:
            with transaction.atomic():
                AGENTS.drain([replica])
                new = in_its_place(replica)
        except NoNodeHasRoom as error:  # its node is lost, or takes no replica now: it stays until there is another
            return _say(restart, f"nothing can come in the place of {replica.id}: {error.message}")
    restart.waiting, restart.replica, restart.replaced_by = restart.waiting[1:], replica.id, new
    restart.reason = f"{new} is to come in the place of {replica.id}"
    restart.save()
    return False


def _missing_without(replica: Replica, others: list[Replica]) -> str:
    """Why it cannot be drained before another one is there; empty if it can."""
    if replica.state != _S.READY:
        return ""
    short = [other.id for other in others if not other.is_standby and other.state != _S.READY]
    if short:
        return f"others do not serve: {', '.join(short)}"
    alike = any(other.state == _S.READY and other.version_id == replica.version_id for other in others)
    return "" if alike else f"{replica.id} is the only one of {replica.version} that serves"


def _staying(pool: Pool) -> list[Replica]:
    """Managed ones of all versions that nobody replaces or has let go: those out of rotation first, then the oldest."""
    rows = Replica.objects.filter(pool=pool, is_wanted=True, replaced_by="", version__isnull=False).exclude(node="")
    rows = rows.exclude(state=_S.STOPPED).select_related("pool__model", "version")
    return list(rows.order_by("-is_standby", "created_at", "id"))


def _say(restart: RollingRestart, reason: str) -> bool:
    """What it waits for. False, for whoever waits."""
    if restart.reason != reason[:1000]:
        restart.reason = reason[:1000]
        restart.save()
    return False


def _end(restart: RollingRestart, verdict: RollingRestart.Verdict, reason: str) -> None:
    restart.verdict, restart.ended_at, restart.reason = verdict, timezone.now(), reason[:1000]
    restart.save()
    log.info("model_restarted", model=restart.pool.model.public_id, verdict=verdict.value, reason=reason)

"""What an operator does with a rollout: create, start, pause, resume, promote, roll back, abort."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction

from headway.errors import InvalidInput
from inference.errors import RolloutMoved, RolloutOpen
from inference.models import Pool
from inference.rollout_models import Rollout, RolloutState
from inference.services.database_clock import database_now
from inference.services.holding import hold_pool
from inference.services.registry import pool_of
from inference.services.rollouts.approving import check_certified, check_maker, give_approval, is_to_be_promoted
from inference.services.rollouts.fleet import is_way_back_open, settle_fleet
from inference.services.rollouts.going_back import go_back, stay_promoted
from inference.services.rollouts.moves import change, held_pool, move, note
from inference.services.rollouts.plans import MAX_S, default_schedule, plan_of
from inference.services.version_labels import version_label, version_named
from tenants.services.audit import record_audit

_S = RolloutState
DEFAULT_WINDOW_S = 3600


def create_rollout(
    *,
    public_id: str,
    to: str,
    actor: str,
    schedule: Mapping[str, Any] | None = None,
    gates: Mapping[str, Any] | None = None,
    window_s: int = DEFAULT_WINDOW_S,
    kept_warm: int | None = None,
    scheduled_for: datetime | None = None,
) -> Rollout:
    """A draft that brings version `to` (v2) into service; nothing happens until it is started, or until `scheduled_for`.

    Raises UnknownModel, UnknownVersion, InvalidInput, RolloutOpen, SecondPersonNeeded.
    """
    check_maker(actor)
    asked, wanted = dict(schedule or default_schedule()), dict(gates or {})
    plan_of(asked, wanted)  # can they be run at all?
    if not 0 <= window_s <= MAX_S or (kept_warm is not None and not 0 <= kept_warm <= 1000):
        raise InvalidInput(f"the window is 0 to {MAX_S} s, and 0 to 1000 replicas are kept warm in it", param="window_s")
    try:
        with transaction.atomic():
            pool = hold_pool(pool_of(public_id).pk)
            version = version_named(pool.model, to)
            if pool.version is None or version.pk == pool.version_id:
                raise InvalidInput(f"{version} is the stable version already", param="to")
            if version.retired_at or version.retires_at:
                raise InvalidInput(f"{version} is retired, or about to be", param="to")
            rollout = Rollout.objects.create(
                model=pool.model,
                from_version=pool.version,
                to_version=version,
                schedule=asked,
                gates=wanted,
                window_s=window_s,
                kept_warm=kept_warm,
                scheduled_for=scheduled_for,
                changed_at=database_now(),
                created_by=actor[:200],
            )
            note(rollout, "moved", actor=actor, reason="created", now=database_now(), to_state=_S.DRAFT)
            _audit(rollout, "create", actor)
    except IntegrityError:
        raise RolloutOpen(f"{public_id} has an open rollout: end it first", param="model") from None
    return rollout


def start_rollout(*, rollout: Rollout, actor: str) -> None:
    """Raises RolloutMoved."""
    with transaction.atomic():
        pool = held_pool(rollout)
        begin(rollout, pool=pool, actor=actor, reason="started", now=database_now())
        _audit(rollout, "start", actor)


def begin(rollout: Rollout, *, pool: Pool, actor: str, reason: str, now: datetime) -> None:
    """Call it with the pool held. Raises RolloutMoved; also where another version has become stable since it was drafted."""
    if pool.version_id != rollout.from_version_id:
        raise RolloutMoved(f"{version_label(pool.version)} is stable now, not {rollout.from_version}: make a new rollout")
    if rollout.to_version.retired_at or rollout.to_version.retires_at:
        raise RolloutMoved(f"{rollout.to_version} is retired, or about to be")
    move(rollout, _S.STAGING, pool=pool, actor=actor, reason=reason, now=now, started_at=now)
    trouble = settle_fleet(pool, now=now)
    if trouble:
        change(rollout, reason=trouble)


def pause_rollout(*, rollout: Rollout, actor: str, reason: str = "") -> None:
    """Its share stays as it is and its gates are watched; it goes no further. Raises RolloutMoved."""
    with transaction.atomic():
        pool = held_pool(rollout)
        before = rollout.state
        changes: dict[str, Any] = {"paused_from": before, "shadow_share_ppm": 0, "measured_since": rollout.measured_since}
        move(rollout, _S.PAUSED, pool=pool, actor=actor, reason=_given(reason, "paused"), now=database_now(), **changes)
        _audit(rollout, "pause", actor, reason)


def resume_rollout(*, rollout: Rollout, actor: str) -> None:
    """Where it was; its step is measured anew. One that is on its way back from promotion stays promoted, as long as its
    version is the stable one. Raises RolloutMoved.
    """
    with transaction.atomic():
        pool, now = held_pool(rollout), database_now()
        if rollout.state == _S.ROLLING_BACK:
            stay_promoted(rollout, pool=pool, actor=actor, now=now)
        elif rollout.state == _S.PAUSED:
            since = now if rollout.share_ppm else None
            to = RolloutState(rollout.paused_from)
            move(rollout, to, pool=pool, actor=actor, reason="resumed", now=now, paused_from="", measured_since=since)
            settle_fleet(pool, now=now)
        else:
            raise RolloutMoved(f"rollout {rollout.pk} is not paused")
        _audit(rollout, "resume", actor)


def promote_rollout(*, rollout: Rollout, actor: str, reason: str = "") -> None:
    """Without waiting for what is left of its steps: it is promoted as soon as replicas enough of it serve.

    Its engines must have been certified. Where two persons are asked for, who does that approves it. Raises RolloutMoved,
    SecondPersonNeeded.
    """
    with transaction.atomic():
        pool, now = held_pool(rollout), database_now()
        check_certified(rollout)
        if is_to_be_promoted(rollout):
            raise RolloutMoved(f"rollout {rollout.pk} is promoted already, as soon as replicas enough of it serve")
        give_approval(rollout, actor=actor, reason=reason, now=now)
        last = len(plan_of(rollout.schedule, rollout.gates).steps)
        why = _given(reason, "to be promoted without waiting")
        since = rollout.measured_since if rollout.share_ppm else None
        changes: dict[str, Any] = {"paused_from": "", "shadow_share_ppm": 0, "measured_since": since}
        if rollout.state == _S.CANARY:
            change(rollout, reason=why)
            note(rollout, "step", actor=actor, reason=why, now=now)
        else:
            move(rollout, _S.CANARY, pool=pool, actor=actor, reason=why, now=now, **changes)
        change(rollout, step=last)
        settle_fleet(pool, now=now)
        _audit(rollout, "promote", actor, reason)


def roll_back_rollout(*, rollout: Rollout, actor: str, reason: str = "") -> None:
    """To the version it came from; of one that was promoted as long as that is kept warm. Raises RolloutMoved."""
    _end(rollout, actor, reason, is_aborted=False)


def abort_rollout(*, rollout: Rollout, actor: str, reason: str = "") -> None:
    """Before it is promoted; what serves of the candidate is drained. Raises RolloutMoved."""
    _end(rollout, actor, reason, is_aborted=True)


def _end(rollout: Rollout, actor: str, reason: str, *, is_aborted: bool) -> None:
    verb = "abort" if is_aborted else "roll_back"
    try:
        with transaction.atomic():
            pool, now = held_pool(rollout), database_now()
            _check_way_back(rollout, pool, now, is_aborted=is_aborted)
            why = _given(reason, f"{'aborted' if is_aborted else 'rolled back'} by {actor}")
            if rollout.state == _S.DRAFT:
                move(rollout, _S.ABORTED, pool=pool, actor=actor, reason=why, now=now, ended_at=now)
            else:
                go_back(rollout, pool=pool, actor=actor, reason=why, now=now, is_aborted=is_aborted)
            _audit(rollout, verb, actor, reason)
    except IntegrityError:
        raise RolloutOpen(f"{rollout.model} has another open rollout: end it first") from None


def _check_way_back(rollout: Rollout, pool: Pool, now: datetime, *, is_aborted: bool) -> None:
    """Raises RolloutMoved."""
    if rollout.state == _S.DRAFT and not is_aborted:
        raise RolloutMoved(f"rollout {rollout.pk} has not begun: abort it")
    if rollout.state != _S.PROMOTED:
        return
    if is_aborted:
        raise RolloutMoved(f"rollout {rollout.pk} was promoted: roll it back")
    if pool.version_id != rollout.to_version_id:
        raise RolloutMoved(f"{version_label(pool.version)} has become stable since")
    if not is_way_back_open(rollout, now=now) or rollout.from_version.retired_at:
        raise RolloutMoved(f"{rollout.from_version} is not kept warm any more: bring it back by a rollout")


def _given(reason: str, otherwise: str) -> str:
    return reason.strip() or otherwise


def _audit(rollout: Rollout, verb: str, actor: str, reason: str = "") -> None:
    after = {"from": str(rollout.from_version), "to": str(rollout.to_version), "state": rollout.state, "reason": reason}
    record_audit(actor=actor, action=f"rollout.{verb}", target=f"rollout {rollout.pk}", after=after)

"""Move a rollout through its states: UPDATE ... WHERE state = expected, with its event and the feed in the same transaction."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

import structlog
from django.db import connection

from inference.errors import RolloutMoved, UnknownRollout
from inference.models import Pool
from inference.policy.rollout_gates import Verdict
from inference.rollout_models import TRANSITIONS, Rollout, RolloutEvent, RolloutState
from inference.services.holding import hold_pool
from inference.services.registry import publish_model

log = structlog.get_logger(__name__)
SYSTEM = "system"
MAX_REASON_CHARS = 1000


def rollout_numbered(number: int | str) -> Rollout:
    """Raises UnknownRollout."""
    rows = Rollout.objects.select_related("model", "from_version", "to_version")
    found = rows.filter(pk=int(number)).first() if str(number).isdecimal() and len(str(number)) < 18 else None
    if found is None:
        raise UnknownRollout(f"there is no rollout {str(number)[:40]!r}; `manage.py rollout list` lists them", param="rollout")
    return found


def held_pool(rollout: Rollout) -> Pool:
    """Its pool, on which every change of a rollout waits for the others. Call it first in a transaction."""
    pool = hold_pool(Pool.objects.values_list("pk", flat=True).get(model_id=rollout.model_id))
    rollout.refresh_from_db()
    return pool


def move(
    rollout: Rollout,
    to: RolloutState,
    *,
    pool: Pool,
    actor: str,
    reason: str,
    now: datetime,
    evidence: dict[str, Any] | None = None,
    **changes: Any,
) -> None:
    """Raises RolloutMoved where the state does not allow it, or somebody else was first."""
    before = RolloutState(rollout.state)
    if to not in TRANSITIONS[before]:
        raise RolloutMoved(f"rollout {rollout.pk} is {before.label.lower()}, and does not go to {to.label.lower()} from there")
    named = {"state": to, "reason": reason[:MAX_REASON_CHARS], "changed_at": now, "measured_since": None, **changes}
    _change(rollout, before, named)
    note(rollout, "moved", actor=actor, reason=reason, now=now, evidence=evidence, from_state=before, to_state=to)
    publish_model(pool)
    log.info("rollout_moved", rollout=rollout.pk, before=before, after=to, reason=reason, actor=actor)


def change(rollout: Rollout, *, pool: Pool | None = None, **changes: Any) -> None:
    """Of one that stays in its state; `pool` where gateways have to know. Raises RolloutMoved."""
    _change(rollout, RolloutState(rollout.state), changes)
    if pool is not None:
        publish_model(pool)


def say(rollout: Rollout, reason: str) -> None:
    """Why it is where it is; written where it is new."""
    if rollout.reason != reason[:MAX_REASON_CHARS]:
        change(rollout, reason=reason[:MAX_REASON_CHARS])


def note(
    rollout: Rollout,
    kind: str,
    *,
    actor: str,
    reason: str,
    now: datetime,
    evidence: dict[str, Any] | None = None,
    from_state: str = "",
    to_state: str = "",
) -> None:
    RolloutEvent.objects.create(
        rollout=rollout,
        at=now,
        kind=kind,
        from_state=from_state,
        to_state=to_state,
        actor=actor[:200],
        reason=reason[:MAX_REASON_CHARS],
        evidence=evidence,
    )


def verdict_shown(verdict: Verdict, *, now: datetime) -> dict[str, Any]:
    """As it is kept with the rollout and its events."""
    findings = [asdict(finding) for finding in verdict.findings]
    return {"outcome": verdict.outcome.value, "findings": findings, "at": now.isoformat()}


def _change(rollout: Rollout, state: RolloutState, changes: dict[str, Any]) -> None:
    assert connection.in_atomic_block, "a rollout changes together with what follows from it"
    if not Rollout.objects.filter(pk=rollout.pk, state=state, step=rollout.step).update(**changes):
        raise RolloutMoved(f"rollout {rollout.pk} is not {state.label.lower()} any more")
    for name, value in changes.items():
        setattr(rollout, name, value)

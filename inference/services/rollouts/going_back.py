"""The way back: the candidate gets nothing more at once, then it is drained and let go.

Of a rollout that was promoted the old version serves again first: its replicas stand by warm, and only when they are in
rotation does it become the stable one.
"""

from datetime import datetime
from typing import Any

import structlog

from inference.errors import RolloutMoved
from inference.models import Pool
from inference.rollout_models import Rollout, RolloutState
from inference.services.rollouts.fleet import fleet_of, settle_fleet, settle_stable
from inference.services.rollouts.moves import SYSTEM, move, say
from inference.services.rollouts.split import open_rollout, pinned_versions
from inference.services.rollouts.stable import make_stable
from inference.services.rollouts.telling import tell_operators

log = structlog.get_logger(__name__)
_S = RolloutState


def go_back(
    rollout: Rollout,
    *,
    pool: Pool,
    actor: str,
    reason: str,
    now: datetime,
    evidence: dict[str, Any] | None = None,
    is_aborted: bool = False,
) -> None:
    """Call it with the pool held. Gateways know within a second. Raises RolloutMoved."""
    is_by_itself = actor == SYSTEM
    changes: dict[str, Any] = {
        "share_ppm": 0,
        "shadow_share_ppm": 0,
        "ended_at": None,
        "paused_from": "",
        "is_aborted": is_aborted,
    }
    if is_by_itself:
        changes["breached_at"] = now
    move(rollout, _S.ROLLING_BACK, pool=pool, actor=actor, reason=reason, now=now, evidence=evidence, **changes)
    settle_fleet(pool, now=now)
    if is_by_itself:
        tell_operators(rollout, reason)


def stay_promoted(rollout: Rollout, *, pool: Pool, actor: str, now: datetime) -> None:
    """Give up a way back from promotion: where the old version cannot serve, it would wait for ever. With the pool held.

    Raises RolloutMoved where there is none, or the old version is stable again.
    """
    if pool.version_id != rollout.to_version_id:
        raise RolloutMoved(f"rollout {rollout.pk} is on its way back, and {rollout.from_version} is stable")
    move(rollout, _S.PROMOTED, pool=pool, actor=actor, reason=f"{rollout.to_version} stays stable", now=now, ended_at=now)
    settle_fleet(pool, now=now)


def make_way(pool: Pool, *, reason: str, now: datetime) -> None:
    """End the open rollout at once, for an older one's way back. What serves of its candidate is drained by the next look."""
    rollout = open_rollout(pool)
    if rollout is None:
        return
    if rollout.state == _S.DRAFT:
        move(rollout, _S.ABORTED, pool=pool, actor=SYSTEM, reason=reason, now=now, ended_at=now)
        return
    if rollout.state != _S.ROLLING_BACK:
        go_back(rollout, pool=pool, actor=SYSTEM, reason=reason, now=now)
    _ended(rollout, pool, now=now)


def tick_way_back(rollout: Rollout, pool: Pool, *, now: datetime) -> None:
    """Call it with the pool held, every few seconds until it has ended."""
    if pool.version_id == rollout.to_version_id:
        _serve_again(rollout, pool, now=now)
        return
    settle_fleet(pool, now=now)
    candidate = fleet_of(pool, rollout.to_version, since=None, now=now)
    if candidate.live and rollout.to_version not in pinned_versions(pool):
        say(rollout, _why(rollout, f"{candidate.live} replicas of it are drained"))
        return
    _ended(rollout, pool, now=now)


def _ended(rollout: Rollout, pool: Pool, *, now: datetime) -> None:
    to = _S.ABORTED if rollout.is_aborted else _S.ROLLED_BACK
    move(rollout, to, pool=pool, actor=SYSTEM, reason=_why(rollout, ""), now=now, ended_at=now)


def _serve_again(rollout: Rollout, pool: Pool, *, now: datetime) -> None:
    trouble = settle_fleet(pool, now=now)
    old = fleet_of(pool, rollout.from_version, since=None, now=now)
    new = fleet_of(pool, rollout.to_version, since=None, now=now)
    needed = min(max(1, pool.desired_replicas), max(1, old.certified)) if pool.desired_replicas else 0
    if old.ready < needed and not (old.ready and not new.ready):
        reasons = trouble or "; ".join(old.reasons)
        waits = f"{old.ready} of {needed} replicas of {rollout.from_version} serve"
        say(rollout, _why(rollout, f"{waits}{f': {reasons}' if reasons else ''}"))
        return
    make_stable(pool, rollout.from_version)
    settle_stable(pool)
    settle_fleet(pool, now=now)
    say(rollout, _why(rollout, f"{rollout.from_version} is stable again"))


def _why(rollout: Rollout, progress: str) -> str:
    """Why it goes back, and how far it is."""
    cause = rollout.reason.split(" · ")[0]
    return f"{cause} · {progress}" if progress else cause

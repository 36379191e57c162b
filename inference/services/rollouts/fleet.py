"""The replicas of versions that are not stable: how many there are to be, and how the candidate's fare.

The stable version's are the operator's and the autoscaler's (`Pool.desired_replicas`), and stay as many as they are while a
rollout runs: the way back must find them. What serves beside it follows from the database alone, so it is settled anew every
few seconds: a version that nothing asks for any more is let go, whatever was interrupted.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from inference.models import ModelVersion, Pool, Replica, ReplicaState
from inference.policy.rollout import Wanted, replicas_for, with_pins
from inference.policy.rollout_gates import CandidateHealth
from inference.rollout_models import Rollout, RolloutState
from inference.services.heartbeats import silent_nodes
from inference.services.replicas import HELD, LIVE_STATES, WITH_ENGINE
from inference.services.rollouts.plans import plan_of
from inference.services.rollouts.split import open_rollout, pinned_versions
from inference.services.wanted import want_what_fits, wanted_counts

log = structlog.get_logger(__name__)
_S = RolloutState
_R = ReplicaState
_NOT_UP = frozenset({_R.REQUESTED, _R.STAGING, _R.STARTING, _R.CERTIFYING, _R.FAILED})


@dataclass(frozen=True)
class Fleet:
    """Replicas of one version of a pool, as they are."""

    ready: int = 0
    certified: int = 0
    """Ready or warm."""
    live: int = 0
    """Not stopped: there may be an engine that is drained. Not one that a lost node may still run: it never serves again."""
    begun: int = 0
    """Those whose weights are there: loading, or further."""
    failed_starts: int = 0
    has_failed: bool = False
    """One that is wanted ended of itself, and is not back."""
    held: str = ""
    starting_s: float = 0.0
    staging_s: float = 0.0
    reasons: tuple[str, ...] = field(default=())

    def health(self, needed: int) -> CandidateHealth:
        return CandidateHealth(
            ready=self.ready,
            needed=needed,
            failed_starts=self.failed_starts,
            has_failed=self.has_failed,
            held=self.held,
            starting_s=self.starting_s,
            staging_s=self.staging_s,
        )


def fleet_of(pool: Pool, version: ModelVersion, *, since: datetime | None, now: datetime) -> Fleet:
    """`since`: engines of replicas that are older failed before, and not in this rollout."""
    rows = list(Replica.objects.filter(pool=pool, version=version).order_by("created_at", "id"))
    new = [row for row in rows if since is None or row.created_at >= since]
    wanted = [row for row in rows if row.is_wanted]
    return Fleet(
        ready=sum(row.state == _R.READY and not row.is_standby for row in wanted),
        certified=sum(row.state in {_R.READY, _R.WARM} for row in wanted),
        live=sum(row.state != _R.STOPPED for row in rows) - len(_out_of_reach(rows)),
        begun=sum(row.state in WITH_ENGINE for row in wanted),
        failed_starts=sum(_failed_starts(row) for row in new),
        has_failed=any(_has_failed(row) for row in wanted),
        held=next(
            (row.reason.removesuffix(HELD) for row in wanted if row.state == _R.FAILED and row.reason.endswith(HELD)), ""
        ),
        starting_s=_longest(wanted, {_R.STARTING, _R.CERTIFYING}, now),
        staging_s=max((_waits_s(row, now) for row in wanted), default=0.0),
        reasons=tuple(
            f"{row.id} {row.state}{f' ({row.reason})' if row.reason else ''}" for row in wanted if row.state != _R.READY
        ),
    )


def _failed_starts(row: Replica) -> int:
    """Engines of it that ended of themselves; of one that has stopped the last one did as it was told."""
    return max(0, row.epoch - row.engines_taken - (row.state in WITH_ENGINE or row.state == _R.STOPPED))


def _has_failed(row: Replica) -> bool:
    return row.state in _NOT_UP and _failed_starts(row) > 0


def _waits_s(row: Replica, now: datetime) -> float:
    """For its weights, however often they were tried for; for a place, since its node was lost."""
    if row.epoch == 0 and row.state in {_R.REQUESTED, _R.STAGING, _R.FAILED}:
        return (now - row.created_at).total_seconds()
    if row.state == _R.FAILED and not _failed_starts(row):
        return (now - row.changed_at).total_seconds()
    return 0.0


def _out_of_reach(rows: list[Replica]) -> list[Replica]:
    """Let go by a node that is lost: nobody can say that their engines have ended, and gateways know them no more."""
    failed = [row for row in rows if row.state == _R.FAILED and not row.is_wanted]
    silent = set(silent_nodes().filter(name__in={row.node for row in failed}).values_list("name", flat=True)) if failed else ()
    return [row for row in failed if row.node in silent]


def _longest(rows: list[Replica], states: set[ReplicaState], now: datetime) -> float:
    return max(((now - row.changed_at).total_seconds() for row in rows if row.state in states), default=0.0)


def settle_fleet(pool: Pool, *, now: datetime) -> str:
    """Have as many replicas of each version beside the stable one as are wanted. What could not be placed: why."""
    if pool.version is None:
        return ""
    wanted, trouble = wanted_beside(pool, now=now), ""
    live = Replica.objects.filter(pool=pool, is_wanted=True, state__in=LIVE_STATES).exclude(node="")
    known = ModelVersion.objects.filter(pk__in=[*live.values_list("version_id", flat=True), *wanted])
    for version in known.exclude(pk=pool.version.pk).order_by("number"):
        trouble = _settle(pool, version, wanted.get(version.pk, Wanted())) or trouble
    return trouble


def wanted_beside(pool: Pool, *, now: datetime) -> dict[int, Wanted]:
    """By version's id; what is not named is not wanted."""
    found: dict[int, Wanted] = {}
    for rollout in Rollout.objects.filter(model_id=pool.model_id, state=_S.PROMOTED, from_version__retired_at=None):
        if rollout.to_version_id == pool.version_id and is_way_back_open(rollout, now=now):
            found[rollout.from_version_id] = Wanted(warm=kept_warm(rollout, pool))
    rollout_now = open_rollout(pool)
    if rollout_now is not None:
        found |= _wanted_by(rollout_now, pool)
    for version in pinned_versions(pool):
        found[version.pk] = with_pins(found.get(version.pk, Wanted()), is_pinned=True)
    found.pop(pool.version_id or 0, None)
    return found


def is_way_back_open(rollout: Rollout, *, now: datetime) -> bool:
    """Of one that was promoted: is its old version kept warm?"""
    return rollout.promoted_at is not None and now < rollout.promoted_at + timedelta(seconds=rollout.window_s)


def kept_warm(rollout: Rollout, pool: Pool) -> int:
    return max(1, pool.desired_replicas) if rollout.kept_warm is None else rollout.kept_warm


def needed_replicas(rollout: Rollout, pool: Pool) -> int:
    """Of the candidate in rotation, for the step it is at; beyond the last one: as many as the stable version has."""
    steps = plan_of(rollout.schedule, rollout.gates).steps
    if rollout.step >= len(steps):
        return max(1, pool.desired_replicas)
    return replicas_for(steps[rollout.step].share_ppm, pool.desired_replicas)


def _wanted_by(rollout: Rollout, pool: Pool) -> dict[int, Wanted]:
    state = RolloutState(rollout.paused_from if rollout.state == _S.PAUSED else rollout.state)
    candidate = rollout.to_version_id
    if state in {_S.STAGING, _S.CERTIFYING}:
        return {candidate: Wanted(warm=1)}
    if state in {_S.SHADOW, _S.EVALS}:
        return {candidate: Wanted(serving=1)}
    if state == _S.CANARY:
        return {candidate: Wanted(serving=needed_replicas(rollout, pool))}
    if state == _S.ROLLING_BACK and pool.version_id == candidate:  # it was promoted: the old version takes over again
        return {rollout.from_version_id: Wanted(serving=max(1, pool.desired_replicas))}
    return {}


def settle_stable(pool: Pool) -> str:
    """As many of the stable version as the pool says, where it has just become that. What could not be placed: why."""
    assert pool.version is not None
    return _settle(pool, pool.version, Wanted(serving=pool.desired_replicas, warm=pool.warm_replicas))


def _settle(pool: Pool, version: ModelVersion, wanted: Wanted) -> str:
    """As many as there is room for. Why there are not more; a blank: there are."""
    if wanted_counts(pool, version) == (wanted.serving, wanted.warm):
        return ""
    fitted = want_what_fits(pool=pool, version=version, serving=wanted.serving, warm=wanted.warm)
    if not fitted.change.is_empty:
        log.info("version_settled", version=str(version), serving=fitted.serving, warm=fitted.warm)
    return fitted.problem

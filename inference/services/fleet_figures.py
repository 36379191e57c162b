"""How pools, their scaling and their releases stand, as figures to be watched. A few queries, however many pools there are."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median

from django.db.models import Max, OuterRef, Subquery

from inference.models import Pool, Replica, ReplicaState
from inference.policy.rollout import PPM
from inference.rollout_models import Rollout, RolloutState
from inference.scaling_models import ReplicaStart, ScaleDecision, WakeUp
from inference.services.replica_starts import parts_of
from inference.services.rollouts.approving import waits_for_approval
from inference.services.wake_ups import WOKEN

DECISIONS_OF = timedelta(hours=1)
STARTS_OF = timedelta(hours=24)
MAX_STARTS = 500
_S = ReplicaState
_STARTING = (_S.REQUESTED, _S.STAGING, _S.STARTING, _S.CERTIFYING)


@dataclass(frozen=True)
class RolloutFigures:
    """Of a model's newest rollout."""

    state: str
    changed_s: float
    """When its state did, unix seconds."""
    share_ratio: float
    is_waiting_for_approval: bool


@dataclass(frozen=True)
class PoolFigures:
    model: str
    is_autoscaled: bool
    max_replicas: int
    replicas: dict[str, int]
    """desired (of the stable version), and as they are: serving, starting, warm, draining, failed (of all versions)."""
    decisions: dict[str, int]
    """Of the last hour, by reason: what changed the number, or why it stayed."""
    has_problem: bool
    """The newest decision could not be carried out whole."""
    wake_ups: int
    """Of the last hour."""
    waits_to_wake_s: float
    """Since when the oldest request that waits for it does; 0: none."""
    start_s: dict[str, float] = field(default_factory=dict)
    """Medians of the last day's starts, by part (place, stage, load, certify) and of the whole (total)."""
    rollout: RolloutFigures | None = None


def fleet_figures(*, now: datetime) -> list[PoolFigures]:
    """By model."""
    pools = list(Pool.objects.select_related("model").order_by("model__public_id"))
    states: dict[int, Counter[str]] = defaultdict(Counter)
    for pool_id, state in Replica.objects.exclude(state=_S.STOPPED).values_list("pool_id", "state"):
        states[pool_id][state] += 1
    decisions, problems = _decisions(now)
    asked_at = {row.pool_id: row.asked_at for row in WakeUp.objects.filter(refused="")}
    starts, rollouts = _starts(now), _rollouts()
    return [
        PoolFigures(
            model=pool.model.public_id,
            is_autoscaled=pool.is_autoscaled,
            max_replicas=pool.max_replicas,
            replicas=_replicas(pool, states[pool.pk]),
            decisions={why: number for why, number in decisions[pool.pk].items() if why != WOKEN},
            has_problem=problems.get(pool.pk, False),
            wake_ups=decisions[pool.pk][WOKEN],
            waits_to_wake_s=max(0.0, (now - asked_at[pool.pk]).total_seconds()) if pool.pk in asked_at else 0.0,
            start_s=starts.get(pool.pk, {}),
            rollout=rollouts.get(pool.model_id),
        )
        for pool in pools
    ]


def _replicas(pool: Pool, states: Counter[str]) -> dict[str, int]:
    return {
        "desired": pool.desired_replicas,
        "serving": states[_S.READY],
        "starting": sum(states[state] for state in _STARTING),
        "warm": states[_S.WARM],
        "draining": states[_S.DRAINING],
        "failed": states[_S.FAILED],
    }


def _decisions(now: datetime) -> tuple[dict[int, Counter[str]], dict[int, bool]]:
    """By pool: how many of each reason; whether the newest of all had a problem."""
    counted: dict[int, Counter[str]] = defaultdict(Counter)
    for pool_id, reason in ScaleDecision.objects.filter(at__gte=now - DECISIONS_OF).values_list("pool_id", "reason"):
        counted[pool_id][reason] += 1
    newest = Pool.objects.annotate(newest=_newest("problem")).values_list("pk", "newest")
    return counted, {pool_id: bool(problem) for pool_id, problem in newest}


def _newest(name: str) -> Subquery:
    return Subquery(ScaleDecision.objects.filter(pool=OuterRef("pk")).order_by("-id").values(name)[:1])


def _starts(now: datetime) -> dict[int, dict[str, float]]:
    rows = ReplicaStart.objects.filter(up_at__gte=now - STARTS_OF).order_by("-up_at")[:MAX_STARTS]
    took_s: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        parts = parts_of(row)
        for part in ("place", "stage", "load", "certify", "total"):
            seconds = getattr(parts, f"{part}_s")
            if seconds is not None:
                took_s[row.pool_id][part].append(seconds)
    return {pool: {part: round(median(each), 2) for part, each in parts.items()} for pool, parts in took_s.items()}


def _rollouts() -> dict[int, RolloutFigures]:
    newest = Rollout.objects.values("model_id").annotate(newest=Max("pk")).values("newest")
    return {row.model_id: _rollout(row) for row in Rollout.objects.filter(pk__in=newest)}


def _rollout(row: Rollout) -> RolloutFigures:
    return RolloutFigures(
        state=row.state,
        changed_s=row.changed_at.timestamp(),
        share_ratio=row.share_ppm / PPM,
        is_waiting_for_approval=row.state == RolloutState.CANARY
        and row.approval_asked_at is not None
        and waits_for_approval(row),
    )

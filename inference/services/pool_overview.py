"""Pools as operators see them: what is wanted, what is there, how it does against its targets, how its starts went."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.db.models import QuerySet

from inference.fleet_models import RollingRestart
from inference.models import Pool, Replica, ReplicaState
from inference.policy.brain_tunables import targets_of
from inference.scaling_models import ScaleDecision, WakeUp
from inference.services.pool_seen import PoolNow, pool_now
from inference.services.registry import targets_ms
from inference.services.replica_starts import StartParts, last_starts
from inference.services.restarts import newest_restarts
from inference.services.version_labels import version_label

_S = ReplicaState
STARTING = (_S.REQUESTED, _S.STAGING, _S.STARTING, _S.CERTIFYING)
MAX_STARTS = 5


@dataclass(frozen=True)
class TierRow:
    name: str
    queued: int
    target_ttft_ms: float
    target_inter_token_ms: float
    ttft_ms: float | None
    """Median of late; None: nothing was asked."""

    @property
    def is_late(self) -> bool:
        return self.ttft_ms is not None and self.ttft_ms > self.target_ttft_ms


@dataclass(frozen=True)
class PoolOverview:
    id: int
    model: str
    stable: str
    is_managed: bool
    pool: Pool
    wanted: int
    """In rotation, of all versions."""
    ready: int
    warm: int
    starting: int
    draining: int
    failed: int
    now: PoolNow | None = None
    """What the dispatcher shows of it; None: that is not known."""
    tiers: list[TierRow] = field(default_factory=list)
    starts: list[StartParts] = field(default_factory=list)
    woken_at: Any = None
    """Since when a request waits for it to wake; None: none does."""
    not_woken: str = ""
    restart: RollingRestart | None = None
    """The newest of its replicas."""

    @property
    def batch_caps(self) -> str:
        caps = self.now.caps if self.now else []
        return "" if not caps else str(caps[0]) if caps[0] == caps[-1] else f"{caps[0]} to {caps[-1]}"


def pools_overview(seen: Mapping[str, Any] | None) -> list[PoolOverview]:
    """By model. `seen`: what the dispatcher shows; None: it does not answer."""
    pools = list(Pool.objects.select_related("model", "version").order_by("model__public_id"))
    states: dict[int, Counter[str]] = {pool.pk: Counter() for pool in pools}
    wanted: Counter[int] = Counter()
    rows = Replica.objects.exclude(state=_S.STOPPED).values_list("pool_id", "state", "is_wanted", "is_standby")
    for pool_id, state, is_wanted, is_standby in rows:
        states[pool_id][state] += 1
        wanted[pool_id] += is_wanted and not is_standby
    wake_ups, restarts = {row.pool_id: row for row in WakeUp.objects.all()}, newest_restarts()
    found = [_overview(pool, states[pool.pk], wanted[pool.pk], wake_ups.get(pool.pk), seen) for pool in pools]
    return [replace(one, restart=restarts.get(one.id)) for one in found]


def decisions_of(pool_id: int | None) -> QuerySet[ScaleDecision]:
    """Of one pool, or of all; in any order."""
    rows = ScaleDecision.objects.select_related("pool__model")
    return rows if pool_id is None else rows.filter(pool_id=pool_id)


def _overview(
    pool: Pool, states: Counter[str], wanted: int, wake_up: WakeUp | None, seen: Mapping[str, Any] | None
) -> PoolOverview:
    model = pool.model.public_id
    return PoolOverview(
        id=pool.pk,
        model=model,
        stable=version_label(pool.version),
        is_managed=pool.version is not None,
        pool=pool,
        wanted=wanted,
        ready=states[_S.READY],
        warm=states[_S.WARM],
        starting=sum(states[state] for state in STARTING),
        draining=states[_S.DRAINING],
        failed=states[_S.FAILED],
        now=(now := pool_now(seen, model)),
        tiers=_tiers(pool, now),
        starts=last_starts(pool, limit=MAX_STARTS),
        woken_at=wake_up.asked_at if wake_up else None,
        not_woken=wake_up.refused if wake_up else "",
    )


def _tiers(pool: Pool, now: PoolNow | None) -> list[TierRow]:
    return [
        TierRow(
            name=(name := tier.name.lower()),
            queued=now.queued.get(name, 0) if now else 0,
            target_ttft_ms=target.ttft_s * 1000,
            target_inter_token_ms=target.inter_token_s * 1000,
            ttft_ms=now.ttft_ms.get(name) if now else None,
        )
        for tier, target in targets_of(targets_ms(pool)).items()
    ]

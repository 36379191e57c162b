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
    is_seen: bool
    """The dispatcher answered for it; else what follows is not known."""
    in_flight: int = 0
    tiers: list[TierRow] = field(default_factory=list)
    inter_token_ms: float | None = None
    """Mean over replicas, while no prompt was read there."""
    batch_caps: str = ""
    kv_percent: float | None = None
    jain_index: float | None = None
    parked: int = 0
    starts: list[StartParts] = field(default_factory=list)
    woken_at: Any = None
    """Since when a request waits for it to wake; None: none does."""
    not_woken: str = ""
    restart: RollingRestart | None = None
    """The newest of its replicas."""


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
    queue = (seen or {}).get("pools", {}).get(model)
    scaling = (seen or {}).get("scaling", {}).get(model)
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
        is_seen=queue is not None,
        tiers=_tiers(pool, queue or {}, scaling or {}),
        starts=last_starts(pool, limit=MAX_STARTS),
        woken_at=wake_up.asked_at if wake_up else None,
        not_woken=wake_up.refused if wake_up else "",
        **(_seen(queue, scaling or {}) if queue is not None else {}),
    )


def _tiers(pool: Pool, queue: Mapping[str, Any], scaling: Mapping[str, Any]) -> list[TierRow]:
    ttfts, queued = scaling.get("ttft_s_by_tier", {}), queue.get("queued_by_tier", {})
    rows = []
    for tier, target in targets_of(targets_ms(pool)).items():
        name = tier.name.lower()
        ttft_ms = round(ttfts[name] * 1000, 1) if name in ttfts else None
        rows.append(TierRow(name, queued.get(name, 0), target.ttft_s * 1000, target.inter_token_s * 1000, ttft_ms))
    return rows


def _seen(queue: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, Any]:
    replicas = scaling.get("replicas", {}).values()
    gaps = [one["inter_token_s"] for one in replicas if one["inter_token_s"] is not None]
    kv = [one["kv_used_ratio"] for one in replicas if one["kv_used_ratio"] is not None]
    caps = sorted(queue["caps"].values())
    return {
        "in_flight": queue["in_flight"],
        "parked": queue["parked"],
        "jain_index": round(queue["jain_index"], 3),
        "inter_token_ms": round(sum(gaps) / len(gaps) * 1000, 1) if gaps else None,
        "kv_percent": round(sum(kv) / len(kv) * 100, 1) if kv else None,
        "batch_caps": "" if not caps else str(caps[0]) if caps[0] == caps[-1] else f"{caps[0]} to {caps[-1]}",
    }

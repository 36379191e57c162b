"""Read the registry."""

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from inference.models import ControlChange, GatewayFeed, Model, NodeHeartbeat, Pool, Replica, ReplicaState
from inference.policy.brain_tunables import targets_of
from inference.services.lease import current_lease
from inference.services.registry import targets_ms, version_label

SEEN_WITHIN = timedelta(seconds=30)


@dataclass(frozen=True)
class ReplicaStatus:
    id: str
    kind: str
    version: str
    node: str  # empty for an external replica
    url: str
    state: str
    since_s: int
    reason: str


@dataclass(frozen=True)
class PoolStatus:
    min_in_flight: int
    max_in_flight: int
    max_queued: int
    targets: dict[str, dict[str, int]]
    """By tier: ttft_ms, inter_token_ms; as they hold, the defaults among them."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ModelStatus:
    id: str
    pool: PoolStatus
    version: str
    wanted: int
    ready: int
    replicas: list[ReplicaStatus]


@dataclass(frozen=True)
class FleetStatus:
    models: list[ModelStatus]
    nodes: list[dict[str, Any]]
    gateways: list[dict[str, Any]]
    lease: dict[str, Any] | None
    """Of the dispatcher; None: nobody has led yet."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def has_model(public_id: str) -> bool:
    return Model.objects.filter(public_id=public_id).exists()


def fleet_status(now: datetime) -> FleetStatus:
    """Models with their replicas (stopped ones left out), node agents, live gateways and how far each is, the lease."""
    newest = ControlChange.objects.order_by("-id").values_list("id", flat=True).first() or 0
    lease = current_lease()
    pools = Pool.objects.select_related("model", "version").order_by("model__public_id")
    return FleetStatus(
        models=[_model_status(pool, now) for pool in pools],
        nodes=[
            {"name": node.name, "machine_kind": node.machine_kind, "seen_s_ago": round((now - node.seen_at).total_seconds(), 1)}
            for node in NodeHeartbeat.objects.order_by("name")
        ],
        gateways=[
            {
                "gateway": gateway.gateway,
                "changes_behind": max(0, newest - gateway.applied_change_id),
                "process": gateway.process,
                "processes": gateway.processes,
            }
            for gateway in GatewayFeed.objects.filter(seen_at__gte=now - SEEN_WITHIN).order_by("gateway")
        ],
        lease=None
        if lease is None
        else {
            "holder": lease.holder,
            "address": lease.address,
            "epoch": lease.epoch,
            "renewed_s_ago": round((now - lease.renewed_at).total_seconds(), 1),
        },
    )


def pool_status(pool: Pool) -> PoolStatus:
    targets = targets_of(targets_ms(pool))
    return PoolStatus(
        min_in_flight=pool.min_in_flight,
        max_in_flight=pool.max_in_flight,
        max_queued=pool.max_queued,
        targets={
            tier.name.lower(): {
                "ttft_ms": round(target.ttft_s * 1000),
                "inter_token_ms": round(target.inter_token_s * 1000),
            }
            for tier, target in targets.items()
        },
    )


def _model_status(pool: Pool, now: datetime) -> ModelStatus:
    replicas = (
        Replica.objects.filter(pool=pool).exclude(state=ReplicaState.STOPPED).select_related("version").order_by("created_at")
    )
    rows = [
        ReplicaStatus(
            id=replica.id,
            kind=replica.kind,
            version=version_label(replica.version),
            node=replica.node,
            url=replica.url,
            state=replica.state,
            since_s=int((now - replica.changed_at).total_seconds()),
            reason=replica.reason,
        )
        for replica in replicas
    ]
    external = sum(1 for replica in replicas if not replica.node)
    ready = sum(1 for row in rows if row.state == ReplicaState.READY)
    return ModelStatus(
        id=pool.model.public_id,
        pool=pool_status(pool),
        version=version_label(pool.version),
        wanted=pool.desired_replicas + external,
        ready=ready,
        replicas=rows,
    )

"""Read the registry."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from inference.dispatch.refusals import error_of
from inference.dispatch.visitor import look_at
from inference.models import ControlChange, GatewayFeed, Model, NodeHeartbeat, Pool, Replica, ReplicaState
from inference.policy.brain_tunables import targets_of
from inference.policy.decisions import Limit, LimitHit, LimitKind, Reason, Refused, RetryKind, Scope, ScopeKind
from inference.rollout_models import VersionPin
from inference.services.lease import current_lease
from inference.services.registry import targets_ms
from inference.services.version_labels import version_label
from inference.weight_models import CopyState, WeightCopy

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
class PoolScaling:
    is_autoscaled: bool
    min_replicas: int
    max_replicas: int
    warm_replicas: int
    idle_before_zero_s: int
    hold_limit_s: int

    @property
    def text(self) -> str:
        zero = f", to zero after {self.idle_before_zero_s} s" if not self.min_replicas else ""
        automatic = f"autoscaled {self.min_replicas} to {self.max_replicas}{zero}" if self.is_autoscaled else "set by hand"
        return automatic + (f", {self.warm_replicas} warm" if self.warm_replicas else "")


@dataclass(frozen=True)
class PoolStatus:
    scaling: PoolScaling
    min_in_flight: int
    max_in_flight: int
    max_queued: int
    targets: dict[str, dict[str, int]]
    """By tier: ttft_ms, inter_token_ms; as they hold, the defaults among them."""
    engine_args: list[str]
    """Over those of a replica's version."""

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
class CopyStatus:
    model: str
    version: str
    node: str
    state: str
    since_s: int
    reason: str
    bytes_done: int
    bytes_total: int  # 0: not known yet
    used_s_ago: int | None

    @property
    def percent(self) -> int:
        return 100 * self.bytes_done // self.bytes_total if self.bytes_total else 0


@dataclass(frozen=True)
class FleetStatus:
    models: list[ModelStatus]
    nodes: list[dict[str, Any]]
    gateways: list[dict[str, Any]]
    copies: list[CopyStatus]
    """Of weights on nodes' disks; those that were evicted are left out."""
    lease: dict[str, Any] | None
    """Of the dispatcher; None: nobody has led yet."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def model_ids() -> list[str]:
    """Of every model there is or was."""
    return list(Model.objects.order_by("public_id").values_list("public_id", flat=True))


def has_model(public_id: str) -> bool:
    return Model.objects.filter(public_id=public_id).exists()


def pins_in_force(tenant_id: Any) -> dict[str, str]:
    """The version a tenant stays on, by model; others go with the stable one."""
    pins = VersionPin.objects.filter(tenant_id=tenant_id, is_in_force=True, version__retired_at=None)
    return {pin.model.public_id: version_label(pin.version) for pin in pins.select_related("model", "version").order_by("id")}


def fleet_status(now: datetime) -> FleetStatus:
    """Models with their replicas (stopped ones left out), node agents, live gateways and how far each is, the lease."""
    newest = ControlChange.objects.order_by("-id").values_list("id", flat=True).first() or 0
    lease = current_lease()
    pools = Pool.objects.select_related("model", "version").order_by("model__public_id")
    return FleetStatus(
        models=[_model_status(pool, now) for pool in pools],
        nodes=[
            {
                "name": node.name,
                "machine_kind": node.machine_kind,
                "zone": node.zone,
                "max_replicas": node.max_replicas,
                "is_cordoned": node.is_cordoned,
                "is_lost": node.lost_at is not None,
                "seen_s_ago": round((now - node.seen_at).total_seconds(), 1),
            }
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
        copies=weight_copies(now),
        lease=None
        if lease is None
        else {
            "holder": lease.holder,
            "address": lease.address,
            "epoch": lease.epoch,
            "renewed_s_ago": round((now - lease.renewed_at).total_seconds(), 1),
        },
    )


def weight_copies(now: datetime, *, model: str | None = None) -> list[CopyStatus]:
    """Of one model, or of all; those that were evicted are left out."""
    rows = WeightCopy.objects.exclude(state=CopyState.EVICTED).select_related("version__model")
    if model is not None:
        rows = rows.filter(version__model__public_id=model)
    return [
        CopyStatus(
            model=row.version.model.public_id,
            version=version_label(row.version),
            node=row.node,
            state=row.state,
            since_s=int((now - row.changed_at).total_seconds()),
            reason=row.reason,
            bytes_done=row.bytes_done,
            bytes_total=row.bytes_total,
            used_s_ago=int((now - row.last_used_at).total_seconds()) if row.last_used_at else None,
        )
        for row in rows.order_by("version__model__public_id", "version__number", "node")
    ]


def kinds_of_replicas(replica_ids: Iterable[str]) -> dict[str, str]:
    """Of those on record."""
    return dict(Replica.objects.filter(id__in=set(replica_ids)).values_list("id", "kind"))


def pool_status(pool: Pool) -> PoolStatus:
    targets = targets_of(targets_ms(pool))
    return PoolStatus(
        scaling=PoolScaling(**{name: getattr(pool, name) for name in PoolScaling.__dataclass_fields__}),
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
        engine_args=pool.engine_args,
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


@dataclass(frozen=True)
class OfferedModel:
    id: str
    description: str
    version: str
    context_tokens: int  # the smallest of those that serve; 0: not known
    ready: int


def offered_models() -> list[OfferedModel]:
    """Those a customer may ask for, by id, in two queries."""
    ready: dict[int, list[int]] = {}
    for pool_id, context in Replica.objects.filter(state=ReplicaState.READY).values_list("pool_id", "max_model_len"):
        ready.setdefault(pool_id, []).append(context)
    pools = Pool.objects.select_related("model", "version").filter(model__retired_at=None).order_by("model__public_id")
    return [
        OfferedModel(
            id=pool.model.public_id,
            description=pool.model.description,
            version=version_label(pool.version),
            context_tokens=min(ready.get(pool.id, [0])),
            ready=len(ready.get(pool.id, [])),
        )
        for pool in pools
    ]


def limit_error_example(kind: str, value: int, scope: str = "tenant") -> tuple[str, list[tuple[str, str]], dict[str, Any]]:
    """Status, headers and body of the answer to a request at a spent limit of that scope; made as the gateway does."""
    from inference.gateway.openai_errors import refusal_of  # the data plane's; pages alone need it here

    is_budget = kind == LimitKind.BUDGET.value
    limit = Limit(Scope(ScopeKind(scope), "example"), LimitKind(kind), value)
    hit = LimitHit(
        limit=limit,
        used=value,
        reserved=0,
        asked=1_000 if is_budget else 1,
        retry_after_s=86_400.0 if is_budget else 12.0,
        retry_kind=RetryKind.EXACT,
    )
    refusal = refusal_of(error_of(Refused("example", Reason.LIMIT, hit.retry_after_s, hit.retry_kind, hit=hit), ""))
    headers = [("content-type", "application/json"), *refusal.all_headers()]
    return f"{refusal.status} Too Many Requests", headers, json.loads(refusal.body())


def has_autoscaled_pools() -> bool:
    return Pool.objects.filter(is_autoscaled=True).exists()


def brain_seen_now() -> dict[str, Any] | None:
    """The same as `brain_seen` where there is no event loop."""
    return asyncio.run(brain_seen())


async def brain_seen() -> dict[str, Any] | None:
    """What the dispatcher that leads shows of queues and limits (dispatch/observing.py); None: nobody answers."""
    from inference.wiring_dispatcher import dispatcher_secret, find_dispatcher  # the data plane's; pages alone need it here

    address = await asyncio.to_thread(find_dispatcher)
    return None if address is None else await look_at(address, secret=dispatcher_secret())

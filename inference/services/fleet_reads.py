"""Read the fleet for operators: zones, their nodes, the replicas there and what each does; drains of zones."""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.utils import timezone

from inference.fleet_models import ReplicaLoad, ZoneDrain
from inference.launchers.node_agents import wanted_by_node
from inference.models import NodeHeartbeat, Pool, Replica, ReplicaState
from inference.services.heartbeats import live_nodes, lost_after
from inference.services.version_labels import version_label


@dataclass(frozen=True)
class ReplicaView:
    id: str
    model: str
    version: str
    node: str
    state: str
    reason: str
    since: datetime
    epoch: int
    is_wanted: bool
    is_standby: bool
    replaced_by: str
    load: ReplicaLoad | None
    """None: its agent has told none lately."""

    @property
    def is_leaving(self) -> bool:
        return not self.is_wanted or bool(self.replaced_by)


@dataclass(frozen=True)
class NodeView:
    name: str
    zone: str
    machine_kind: str
    max_replicas: int
    num_replicas: int
    is_cordoned: bool
    is_alive: bool
    lost_at: datetime | None
    seen_at: datetime | None
    """None: no agent of that name has ever beaten."""
    replicas: list[ReplicaView]

    @property
    def seen_s_ago(self) -> float | None:
        return None if self.seen_at is None else max(0.0, round((timezone.now() - self.seen_at).total_seconds(), 1))


@dataclass(frozen=True)
class ZoneView:
    name: str
    nodes: list[NodeView]
    drain: "DrainReport | None"

    @property
    def is_cordoned(self) -> bool:
        return all(node.is_cordoned for node in self.nodes)

    @property
    def num_ready(self) -> int:
        return sum(replica.state == ReplicaState.READY for node in self.nodes for replica in node.replicas)


@dataclass(frozen=True)
class Demand:
    """One model: replicas wanted and ready, and what runs and waits at its engines."""

    model: str
    wanted: int
    warm: int
    ready: int
    slots: int
    running: int
    waiting: int


@dataclass(frozen=True)
class DrainReport:
    id: int
    zone: str
    by: str
    is_forced: bool
    started_at: datetime
    ended_at: datetime | None
    verdict: str
    reason: str
    nodes: list[str]
    replicas: list[str]
    before: dict[str, Any]
    after: dict[str, Any]
    streams_in_flight: int
    ends: dict[str, int]
    moved: int
    failed: int

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    @property
    def is_clean(self) -> bool:
        return self.verdict == ZoneDrain.Verdict.CLEAN

    @property
    def took_s(self) -> float:
        return ((self.ended_at or timezone.now()) - self.started_at).total_seconds()

    def as_dict(self) -> dict[str, Any]:
        moments = {"started_at": self.started_at.isoformat(), "ended_at": self.ended_at and self.ended_at.isoformat()}
        return {**asdict(self), **moments, "took_s": round(self.took_s, 1)}


def newest_drain(zone: str) -> DrainReport | None:
    row = ZoneDrain.objects.filter(zone=zone).order_by("-id").first()
    return None if row is None else _report(row)


def drain_rows() -> QuerySet[ZoneDrain]:
    return ZoneDrain.objects.all()


def drains(limit: int = 20) -> list[DrainReport]:
    """The newest first."""
    return [_report(row) for row in ZoneDrain.objects.order_by("-id")[:limit]]


def _report(row: ZoneDrain) -> DrainReport:
    return DrainReport(**{name: getattr(row, name) for name in DrainReport.__dataclass_fields__})


def fleet_by_zone() -> list[ZoneView]:
    """By name; nodes that only replicas name are among them. In a number of queries that does not grow."""
    replicas = _replicas_by_node()
    alive, load = set(live_nodes().values_list("name", flat=True)), wanted_by_node()
    known = {row.name: row for row in NodeHeartbeat.objects.order_by("name")}
    zones: dict[str, list[NodeView]] = {}
    for name in sorted(known.keys() | replicas.keys()):
        row = known.get(name)
        view = NodeView(
            name=name,
            zone=row.zone if row else "",
            machine_kind=row.machine_kind if row else "",
            max_replicas=row.max_replicas if row else 0,
            num_replicas=load[name],
            is_cordoned=bool(row and row.is_cordoned),
            is_alive=name in alive,
            lost_at=row.lost_at if row else None,
            seen_at=row.seen_at if row else None,
            replicas=replicas.get(name, []),
        )
        zones.setdefault(view.zone, []).append(view)
    newest = {row.zone: _report(row) for row in ZoneDrain.objects.order_by("id").filter(zone__in=list(zones))}
    return [ZoneView(name, nodes, newest.get(name)) for name, nodes in sorted(zones.items())]


def replica_view(replica_id: str) -> ReplicaView | None:
    row = Replica.objects.select_related("pool__model", "version").filter(pk=replica_id).first()
    return None if row is None else _view(row, ReplicaLoad.objects.filter(pk=replica_id).first())


def _replicas_by_node() -> dict[str, list[ReplicaView]]:
    rows = Replica.objects.exclude(state=ReplicaState.STOPPED).exclude(node="").select_related("pool__model", "version")
    loads = {load.replica: load for load in ReplicaLoad.objects.filter(at__gte=timezone.now() - lost_after())}
    found: dict[str, list[ReplicaView]] = {}
    for row in rows.order_by("pool__model__public_id", "created_at", "id"):
        found.setdefault(row.node, []).append(_view(row, loads.get(row.id)))
    return found


def _view(row: Replica, load: ReplicaLoad | None) -> ReplicaView:
    return ReplicaView(
        id=row.id,
        model=row.pool.model.public_id,
        version=version_label(row.version),
        node=row.node,
        state=row.state,
        reason=row.reason,
        since=row.changed_at,
        epoch=row.epoch,
        is_wanted=row.is_wanted,
        is_standby=row.is_standby,
        replaced_by=row.replaced_by,
        load=load if load is not None and load.epoch == row.epoch else None,
    )


def demand() -> list[Demand]:
    """Capacity and what is asked of it, by model."""
    loads = {load.replica: load for load in ReplicaLoad.objects.filter(at__gte=timezone.now() - lost_after())}
    found = []
    there = Prefetch("replicas", Replica.objects.exclude(state=ReplicaState.STOPPED))
    for pool in Pool.objects.select_related("model").prefetch_related(there).order_by("model__public_id"):
        ready = [row for row in pool.replicas.all() if row.state == ReplicaState.READY]
        seen = [loads[row.id] for row in ready if row.id in loads]
        found.append(
            Demand(
                model=pool.model.public_id,
                wanted=pool.desired_replicas + sum(not row.node and row.is_wanted for row in pool.replicas.all()),
                warm=sum(row.state == ReplicaState.WARM for row in pool.replicas.all()),
                ready=len(ready),
                slots=len(ready) * pool.max_in_flight,
                running=sum(load.running for load in seen),
                waiting=sum(load.waiting for load in seen),
            )
        )
    return found


def failed_replicas() -> list[ReplicaView]:
    """Wanted, and failed: the newest first."""
    rows = Replica.objects.filter(state=ReplicaState.FAILED, is_wanted=True).select_related("pool__model", "version")
    return [_view(row, None) for row in rows.order_by("-changed_at")]

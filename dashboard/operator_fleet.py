"""The fleet as operators see it: zones, nodes, replicas; what one of each can be told to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import Http404

from inference.services.fleet_reads import (
    Demand,
    DrainReport,
    NodeView,
    ReplicaView,
    ZoneView,
    drains,
    fleet_by_zone,
    replica_view,
)
from inference.services.fleet_reads import demand as all_demand
from inference.services.log_tails import Told, log_of
from inference.services.pool_seen import PoolNow, pool_now
from inference.services.replica_starts import StartParts, newest_start
from inference.services.zones import Capacity, capacity_without

TONES = {
    "ready": "pill-good",
    "warm": "pill-good",
    "failed": "pill-bad",
    "draining": "pill-warn",
    "stopped": "pill-plain",
    "clean": "pill-good",
    "running": "pill-warn",
    "timed out": "pill-bad",
    "cancelled": "pill-plain",
}


@dataclass(frozen=True)
class DemandRow:
    it: Demand
    now: PoolNow | None
    """By the dispatcher, which knows of engines by URL, too; None: it does not answer."""

    @property
    def running(self) -> int:
        return self.it.running if self.now is None else self.now.in_flight

    @property
    def queued(self) -> int | None:
        return None if self.now is None else sum(self.now.queued.values())


@dataclass(frozen=True)
class FleetPage:
    zones: list[ZoneView]
    demand: list[DemandRow]

    @property
    def num_nodes(self) -> int:
        return sum(len(zone.nodes) for zone in self.zones)


@dataclass(frozen=True)
class ZonePage:
    zone: ZoneView
    capacity: Capacity
    drains: list[DrainReport]

    @property
    def is_draining(self) -> bool:
        return self.zone.drain is not None and not self.zone.drain.is_over


@dataclass(frozen=True)
class ReplicaPage:
    replica: ReplicaView
    log: Told
    start: StartParts | None
    """How its engine came up last; None: nobody saw it."""


def fleet_page(shown: Mapping[str, Any] | None) -> FleetPage:
    """`shown`: what the dispatcher shows; None: it does not answer."""
    return FleetPage(zones=fleet_by_zone(), demand=[DemandRow(each, pool_now(shown, each.model)) for each in all_demand()])


def zone_page(name: str) -> ZonePage:
    """Raises Http404."""
    zone = next((zone for zone in fleet_by_zone() if name and zone.name == name), None)
    if zone is None:
        raise Http404("there is no such zone")
    return ZonePage(zone, capacity_without(name), [report for report in drains(100) if report.zone == name][:10])


def node_named(name: str) -> NodeView:
    """Raises Http404."""
    found = next((node for zone in fleet_by_zone() for node in zone.nodes if node.name == name), None)
    if found is None or found.seen_at is None:
        raise Http404("there is no such node")
    return found


def replica_page(replica_id: str) -> ReplicaPage:
    """Raises Http404."""
    found: Any = replica_view(replica_id)
    if found is None:
        raise Http404("there is no such replica")
    return ReplicaPage(found, log_of(replica_id), newest_start(replica_id))

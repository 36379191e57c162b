"""Jobs and incidents as operators see them: the background's backlog, what failed, what was lost, what does not add up."""

from dataclasses import dataclass
from typing import Any

from billing.selectors import ReconciliationView, latest_reconciliation
from inference.services.fleet_reads import NodeView, ReplicaView, failed_replicas, fleet_by_zone
from tenants.selectors import newest_audit
from workers.services.outbox_reads import Backlog, backlog, failing_entries

EVENTS = ("node.", "zone.", "rollout.", "replica.")
NUM_EVENTS = 25


@dataclass(frozen=True)
class JobsPage:
    backlog: Backlog
    failing: list[Any]
    replicas: list[ReplicaView]
    lost: list[NodeView]
    drift: ReconciliationView | None
    events: list[Any]

    @property
    def is_quiet(self) -> bool:
        drifts = self.drift is not None and not self.drift.is_clean
        return not (self.backlog.late or self.failing or self.replicas or self.lost or drifts)


def jobs_page() -> JobsPage:
    return JobsPage(
        backlog=backlog(),
        failing=failing_entries(),
        replicas=failed_replicas(),
        lost=[node for zone in fleet_by_zone() for node in zone.nodes if node.lost_at is not None],
        drift=latest_reconciliation(),
        events=newest_audit(prefixes=EVENTS, limit=NUM_EVENTS),
    )

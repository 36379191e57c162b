"""How long replicas existed: from when each was made until it was stopped, whether it was ready or not.

It is on record since the first replica: a row is kept after its replica has stopped. A machine's kind is what its node
agent says today (blank: it never came); that of a replica by URL is "external".
"""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q

from inference.models import NodeHeartbeat, Replica, ReplicaState

EXTERNAL = "external"


@dataclass(frozen=True)
class Uptime:
    """Half-open."""

    replica: str
    model: str
    machine_kind: str
    starts_at: datetime
    ends_at: datetime


def machine_kinds() -> list[str]:
    """As node agents name them, and EXTERNAL."""
    return [*NodeHeartbeat.objects.order_by("machine_kind").values_list("machine_kind", flat=True).distinct(), EXTERNAL]


def uptimes(*, starts_at: datetime, ends_at: datetime, now: datetime) -> list[Uptime]:
    """Cut to the range, which does not reach beyond `now`; by model and replica."""
    ends_at = min(ends_at, now)
    kinds = dict(NodeHeartbeat.objects.values_list("name", "machine_kind"))
    gone = Q(state=ReplicaState.STOPPED, changed_at__lte=starts_at)
    rows = Replica.objects.filter(created_at__lt=ends_at).exclude(gone).select_related("pool__model")
    found = []
    for row in rows.order_by("pool__model__public_id", "id"):
        end = min(row.changed_at, ends_at) if row.state == ReplicaState.STOPPED else ends_at
        start = max(row.created_at, starts_at)
        if start < end:
            kind = kinds.get(row.node, "") if row.node else EXTERNAL
            found.append(Uptime(row.id, row.pool.model.public_id, kind, start, end))
    return found

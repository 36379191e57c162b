"""How requests ended that some engines took part in: the proof of a drain."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from billing.models import Attempt, UsageRecord

FAILURES = frozenset({"engine_error", "engine_died", "deadline", "cut_by_drain", "gateway_lost"})
"""End states of requests that an engine was given and whose client did not get the whole answer."""


@dataclass(frozen=True)
class ReplicaEnds:
    ends: dict[str, int] = field(default_factory=dict)
    """Requests by end state."""
    moved: int = 0
    """Of them, those that another engine answered whole."""

    @property
    def failed(self) -> int:
        return sum(count for state, count in self.ends.items() if state in FAILURES)


def replica_ends(replicas: Sequence[str], *, since: datetime, until: datetime) -> ReplicaEnds:
    """Of the requests that ended in the half-open range; those that the ledger does not have yet are missing."""
    ended = UsageRecord.objects.filter(ended_at__gte=since, ended_at__lt=until)
    tried = Attempt.objects.filter(replica__in=replicas, ended_at__gte=since, ended_at__lt=until).values("request_id")
    ends: Counter[str] = Counter()
    moved = 0
    for state in ended.filter(replica__in=replicas).values_list("end_state", flat=True):
        ends[state] += 1
    for state in ended.filter(request_id__in=tried).exclude(replica__in=replicas).values_list("end_state", flat=True):
        ends[state] += 1
        moved += state == "done"
    return ReplicaEnds(dict(ends), moved)

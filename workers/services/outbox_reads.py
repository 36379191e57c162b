"""How the background work stands: what waits, what is late, what failed."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Q
from django.utils import timezone

from workers.models import Mail, OutboxEntry

LATE_AFTER = timedelta(minutes=1)


@dataclass(frozen=True)
class Backlog:
    """Of entries that are neither done nor given up: due now, due for more than LATE_AFTER, and to come."""

    due: int
    late: int
    to_come: int
    oldest_due_at: datetime | None
    given_up: int
    unsent_mails: int


def backlog() -> Backlog:
    now = timezone.now()
    is_open, is_due = Q(done_at=None, given_up_at=None), Q(due_at__lte=now)
    counts = OutboxEntry.objects.filter(done_at=None).aggregate(
        due=Count("id", filter=is_open & is_due),
        late=Count("id", filter=is_open & Q(due_at__lte=now - LATE_AFTER)),
        to_come=Count("id", filter=is_open & ~is_due),
        oldest_due_at=Min("due_at", filter=is_open & is_due),
        given_up=Count("id", filter=~Q(given_up_at=None)),
    )
    return Backlog(**counts, unsent_mails=Mail.objects.filter(sent_at=None).count())


def failing_entries(limit: int = 50) -> list[Any]:
    """Given up first, then those that failed and are tried again; each with `last_error`."""
    rows = OutboxEntry.objects.filter(done_at=None, attempts__gt=0).exclude(last_error="")
    return list(rows.order_by("given_up_at", "-attempts", "id")[:limit])

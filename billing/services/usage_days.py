"""Usage by days of each tenant's own calendar: a hundredth of the rows that hours take, for pages over a year."""

from datetime import UTC
from uuid import UUID

from django.db.models import Max, Sum
from django.db.models.functions import TruncDate

from billing.models import UsageDay, UsageQuarter
from billing.services.usage_rows import wait_for_writers
from billing.services.usage_slots import SUMS
from headway.months import midnight, zone_named

_GROUP = ("key_id", "member_id", "model", "version", "tier")


def rebuild_days(*, tenant_id: UUID, time_zone: str) -> int:
    """Make the tenant's days anew in this zone; returns how many rows. Call it in the transaction that changes the zone,
    which has waited for writers before it took any other lock (`wait_for_writers`): they read the zone when they write.
    """
    wait_for_writers([tenant_id])
    UsageDay.objects.filter(tenant_id=tenant_id).delete()
    rows = UsageQuarter.objects.filter(tenant_id=tenant_id).annotate(
        day=TruncDate("starts_at", tzinfo=zone_named(time_zone) or UTC)
    )
    sums = {f"sum_{name}": Sum(name) for name in SUMS}
    days = rows.values("day", *_GROUP).annotate(newest=Max("newest_at"), **sums).order_by("day")
    made = [
        UsageDay(
            tenant_id=tenant_id,
            starts_at=midnight(row["day"], time_zone),
            newest_at=row["newest"],
            **{name: row[name] for name in _GROUP},
            **{name: int(row[f"sum_{name}"]) for name in SUMS},
        )
        for row in days
    ]
    UsageDay.objects.bulk_create(made, batch_size=500)
    return len(made)

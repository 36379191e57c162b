"""Read adjustments, and records with what they cost now: for operators."""

from uuid import UUID

from django.db.models import QuerySet

from billing.models import Adjustment, UsageRecord


def every_adjustment(
    *, tenant_id: UUID | None = None, month: str = "", request_id: str = "", kind: str = ""
) -> QuerySet[Adjustment]:
    """Newest first. Blanks: of any."""
    named = {"tenant_id": tenant_id, "billing_month": month, "request_id": request_id, "kind": kind}
    return Adjustment.objects.filter(**{name: value for name, value in named.items() if value}).order_by("-id")


def record_of_request(request_id: str) -> UsageRecord | None:
    """Whosever it is."""
    return UsageRecord.objects.filter(request_id=request_id).first()


def adjustments_of_record(record: UsageRecord) -> list[Adjustment]:
    """In the order they were made."""
    return list(Adjustment.objects.filter(record=record).order_by("id"))

"""Read the ledger, prices and months."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Max, QuerySet, Sum
from django.utils import timezone

from billing.models import MonthSpend, Price, UsageHour, UsageRecord

_FIELDS = tuple(field.name for field in UsageRecord._meta.fields if field.name != "id")


def usage_of_tenant(tenant_id: UUID) -> Iterator[dict[str, Any]]:
    """Every usage record of a tenant, oldest first, as plain values (times in ISO 8601, UTC)."""
    rows = UsageRecord.objects.filter(tenant_id=tenant_id).order_by("id").values(*_FIELDS)
    for row in rows.iterator(chunk_size=1000):
        yield {name: _plain(value) for name, value in row.items()}


def usage_of_request(tenant_id: UUID | str, request_id: str) -> dict[str, Any] | None:
    """One record by its request id, if it is the tenant's."""
    found: dict[str, Any] | None = (
        UsageRecord.objects.filter(tenant_id=tenant_id, request_id=request_id).values(*_FIELDS).first()
    )
    return found


def requests_of_tenant(
    tenant_id: UUID, *, starts_at: datetime | None = None, ends_at: datetime | None = None, **named: str
) -> QuerySet[UsageRecord]:
    """Those that ended in the half-open range. `named`: model, key, tier, end_state."""
    rows = UsageRecord.objects.filter(tenant_id=tenant_id)
    if starts_at is not None:
        rows = rows.filter(ended_at__gte=starts_at)
    if ends_at is not None:
        rows = rows.filter(ended_at__lt=ends_at)
    return rows.filter(**{"key_id" if name == "key" else name: value for name, value in named.items()})


def prices_in_force(model: str) -> list[Price]:
    """Of each tier (blank: all) the newest that holds now, and those that will hold later; by tier, then time."""
    now = timezone.now()
    kept: list[Price] = []
    holds: dict[str, Price] = {}
    for price in Price.objects.filter(model=model).order_by("effective_from", "version"):
        if price.effective_from <= now:
            holds[price.tier] = price
        else:
            kept.append(price)
    return sorted([*holds.values(), *kept], key=lambda price: (price.tier, price.effective_from, price.version))


def spent_micros(tenant_id: UUID, month: str) -> int:
    """Of a month, "YYYY-MM" in the tenant's time zone."""
    row = MonthSpend.objects.filter(tenant_id=tenant_id, month=month, key_id="", model="").first()
    return row.amount_micros if row else 0


def spent_by_scope(tenant_id: UUID, month: str, *, scope: str, scope_ids: Sequence[str]) -> int:
    """Micro-dollars of a month, of the whole tenant, of keys (their ids) or of models (their public ids) together."""
    named: dict[str, dict[str, Any]] = {
        "tenant": {"key_id": "", "model": ""},
        "key": {"key_id__in": scope_ids, "model": ""},
        "model": {"key_id": "", "model__in": scope_ids},
    }
    rows = MonthSpend.objects.filter(tenant_id=tenant_id, month=month, **named[scope])
    return rows.aggregate(spent=Sum("amount_micros"))["spent"] or 0


def tenants_with_spend(months: Iterable[str]) -> set[UUID]:
    """Who spent something in any of these months ("YYYY-MM")."""
    rows = MonthSpend.objects.filter(month__in=list(months), key_id="", model="", amount_micros__gt=0)
    return set(rows.values_list("tenant_id", flat=True))


def last_use_of_keys(*, since: datetime | None) -> dict[str, datetime]:
    """When each key's newest request ended; of the hours from `since` on."""
    rows = UsageHour.objects.all() if since is None else UsageHour.objects.filter(starts_at__gte=since)
    return dict(rows.values_list("key_id").annotate(newest=Max("newest_at")))


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value

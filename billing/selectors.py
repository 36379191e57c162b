"""Read the ledger."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from billing.models import UsageRecord

_FIELDS = tuple(field.name for field in UsageRecord._meta.fields if field.name != "id")


def usage_of_tenant(tenant_id: UUID) -> Iterator[dict[str, Any]]:
    """Every usage record of a tenant, oldest first, as plain values (times in ISO 8601, UTC)."""
    rows = UsageRecord.objects.filter(tenant_id=tenant_id).order_by("id").values(*_FIELDS)
    for row in rows.iterator(chunk_size=1000):
        yield {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value

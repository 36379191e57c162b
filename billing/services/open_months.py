"""Whose month is a record on: that of its end in the tenant's time zone, unless that month's statement is made already."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from uuid import UUID

from billing.models import ClosedMonth
from billing.services.usage_rows import wait_for_writers
from headway.months import UTC_NAME, month_of, next_month_name


class OpenMonths:
    """Of some tenants, as they stand. Make it after `wait_for_writers`: then nobody closes one until we are done."""

    def __init__(self, zones: Mapping[UUID, str], tenant_ids: Iterable[UUID], *, now: datetime) -> None:
        """`zones`: the tenants' time zones; one that is not named has UTC."""
        self._zones, self.now = zones, now
        self._closed = set(ClosedMonth.objects.filter(tenant_id__in=set(tenant_ids)).values_list("tenant_id", "month"))

    def month_of(self, tenant_id: UUID, ended_at: datetime) -> str:
        """ "2026-11". What ended in a closed month is late: it is on the month that runs now."""
        zone = self._zones.get(tenant_id, UTC_NAME)
        month = month_of(ended_at, zone).name
        if (tenant_id, month) not in self._closed:
            return month
        # Where clocks or zones differ, the month that runs may lie before the closed one, or be closed itself.
        month = max(month, month_of(self.now, zone).name)
        while (tenant_id, month) in self._closed:
            month = next_month_name(month)
        return month

    def is_closed(self, tenant_id: UUID, month: str) -> bool:
        return (tenant_id, month) in self._closed


def open_month(tenant_id: UUID, ended_at: datetime, zone: str, *, now: datetime | None = None) -> str:
    """The billing month of one record. Call it in a transaction, after `wait_for_writers`."""
    return OpenMonths({tenant_id: zone}, [tenant_id], now=now or datetime.now(UTC)).month_of(tenant_id, ended_at)


def close_month(*, tenant_id: UUID, month: str) -> bool:
    """From here on no usage and no adjustment is stamped with it; False: it was closed already.

    Call it in the transaction that makes the month's statement, before the ledger is read: it waits for those who write
    usage of the tenant, and they for the end of the transaction. So all that has the month is on the statement.
    """
    wait_for_writers([tenant_id])
    _, is_new = ClosedMonth.objects.get_or_create(tenant_id=tenant_id, month=month)
    return is_new

"""What each tenant has spent in each month: changed with the ledger, told to the data plane with it."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from django.db import connection
from django.db.models import F

from billing.models import MonthSpend
from headway.months import UTC_NAME, Month, month_of
from inference.services import control
from tenants.selectors import time_zones


class MonthSums:
    """Amounts to be added by tenant and month, in one transaction: `hold`, `add` what is found to be new, `write`."""

    def __init__(self, tenant_ids: Iterable[UUID]) -> None:
        self._zones = time_zones(tenant_ids)
        self._sums: Counter[tuple[UUID, str]] = Counter()
        self._months: dict[tuple[UUID, str], Month] = {}

    def hold(self, ends: Iterable[tuple[UUID, datetime]]) -> None:
        """Make the rows for records of these tenants that ended then, and lock them: others who write wait for our end.

        So "is this request in the ledger already" has one answer while we look and write, and no amount is added twice.
        On SQLite a transaction that writes is alone anyway.
        """
        keys = sorted({self._key(tenant_id, ended_at) for tenant_id, ended_at in ends})
        if not keys:
            return
        MonthSpend.objects.bulk_create(
            [MonthSpend(tenant_id=tenant_id, month=month) for tenant_id, month in keys], ignore_conflicts=True
        )
        if connection.vendor == "postgresql":
            tenant_ids = {tenant_id for tenant_id, _ in keys}
            rows = MonthSpend.objects.select_for_update().filter(tenant_id__in=tenant_ids)
            list(rows.order_by("tenant_id", "month").values_list("id"))

    def add(self, tenant_id: UUID, ended_at: datetime, amount_micros: int | None) -> None:
        if amount_micros:
            self._sums[self._key(tenant_id, ended_at)] += amount_micros

    def write(self) -> None:
        """Rows in one order, so that two who write do not wait for each other in a ring; telling comes last."""
        for tenant_id, month in sorted(self._sums):
            rows = MonthSpend.objects.filter(tenant_id=tenant_id, month=month)
            rows.update(amount_micros=F("amount_micros") + self._sums[tenant_id, month])
        for tenant_id in sorted({tenant_id for tenant_id, _ in self._sums}):
            self._tell(tenant_id)

    def _key(self, tenant_id: UUID, ended_at: datetime) -> tuple[UUID, str]:
        month = month_of(ended_at, self._zones.get(tenant_id, UTC_NAME))
        self._months[tenant_id, month.name] = month
        return tenant_id, month.name

    def _tell(self, tenant_id: UUID) -> None:
        """The newest month; what is still added to an older one is in nobody's budget any more."""
        row = MonthSpend.objects.filter(tenant_id=tenant_id).order_by("-month").first()
        month = self._months.get((tenant_id, row.month)) if row else None
        if row is not None and month is not None:
            payload = {"month": row.month, "ends_at": month.ends_s, "spent_micros": row.amount_micros}
            control.publish_figure(kind="month", key=str(tenant_id), payload=payload)

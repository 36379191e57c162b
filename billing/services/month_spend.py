"""What has been spent in each month: changed with the ledger, told to the data plane with it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import F

from billing.models import MonthSpend
from headway.months import UTC_NAME, month_named, month_of
from inference.services import control
from tenants.selectors import budgeted, time_zones


@dataclass(frozen=True, slots=True)
class Spent:
    """What a usage record says of money."""

    tenant_id: UUID
    key_id: str
    model: str
    ended_at: datetime
    amount_micros: int


class _Row(NamedTuple):
    tenant_id: UUID
    month: str
    key_id: str = ""
    model: str = ""


class MonthSums:
    """Amounts to be added, in one transaction: `hold` all there may be, `add` what is found to be new, `write`."""

    def __init__(self, tenant_ids: Iterable[UUID]) -> None:
        self._zones = time_zones(tenant_ids)
        self._sums: Counter[_Row] = Counter()

    def hold(self, all_spent: Iterable[Spent]) -> None:
        """Make their rows, and lock those of the tenants: others who write records of them wait for our end.

        So "is this request in the ledger already" has one answer while we look and write, and no amount is added twice.
        On SQLite a transaction that writes is alone anyway.
        """
        rows = sorted({row for spent in all_spent if spent.amount_micros for row in self._rows(spent)})
        if not rows:
            return
        MonthSpend.objects.bulk_create([MonthSpend(**row._asdict()) for row in rows], ignore_conflicts=True)
        if connection.vendor == "postgresql":
            whole = MonthSpend.objects.filter(tenant_id__in={row.tenant_id for row in rows}, key_id="", model="")
            list(whole.select_for_update().order_by("tenant_id", "month").values_list("id"))

    def add(self, spent: Spent) -> None:
        if spent.amount_micros:
            for row in self._rows(spent):
                self._sums[row] += spent.amount_micros

    def write(self) -> None:
        """Rows in one order, so that two who write do not wait for each other in a ring; telling comes last."""
        for row in sorted(self._sums):
            MonthSpend.objects.filter(**row._asdict()).update(amount_micros=F("amount_micros") + self._sums[row])
        for tenant_id in sorted({row.tenant_id for row in self._sums}):
            tell_month(tenant_id, self._zones.get(tenant_id, UTC_NAME))

    def _rows(self, spent: Spent) -> tuple[_Row, _Row, _Row]:
        month = month_of(spent.ended_at, self._zones.get(spent.tenant_id, UTC_NAME)).name
        return (
            _Row(spent.tenant_id, month),
            _Row(spent.tenant_id, month, key_id=spent.key_id),
            _Row(spent.tenant_id, month, model=spent.model),
        )


def tell_month(tenant_id: UUID, time_zone: str) -> None:
    """Publish the tenant's newest month: of it all, and of the keys and models that have a budget.

    What is still added to an older month is in nobody's budget any more. Call it last in a transaction.
    """
    whole = MonthSpend.objects.filter(tenant_id=tenant_id, key_id="", model="").order_by("-month").first()
    if whole is None:
        return
    keys, models = budgeted(tenant_id)
    rows = MonthSpend.objects.filter(tenant_id=tenant_id, month=whole.month)
    named = {key_id for line in keys.values() for key_id in line}
    of_keys = dict(rows.filter(key_id__in=named).values_list("key_id", "amount_micros")) if named else {}
    payload = {
        "month": whole.month,
        "ends_at": month_named(whole.month, time_zone).ends_s,
        "spent_micros": whole.amount_micros,
        "keys": {key: sum(of_keys.get(each, 0) for each in line) for key, line in keys.items() if of_keys.keys() & set(line)},
        "models": dict(rows.filter(model__in=models).values_list("model", "amount_micros")) if models else {},
    }
    control.publish_figure(kind="month", key=str(tenant_id), payload=payload)

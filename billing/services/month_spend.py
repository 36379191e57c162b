"""What has been spent in each month: changed with the ledger, told to the data plane with it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import F

from billing.models import MonthSpend
from billing.services.credit_use import CreditSums, Use
from headway.months import UTC_NAME, month_named
from inference.services import control
from tenants.selectors import budgeted


@dataclass(frozen=True, slots=True)
class Spent:
    """What a usage record, or an adjustment, says of money."""

    tenant_id: UUID
    key_id: str
    model: str
    month: str
    """The billing month."""
    amount_picos: int
    began_at: datetime | None = None
    """Of the request; None: it is of an adjustment."""


class _Row(NamedTuple):
    tenant_id: UUID
    month: str
    key_id: str = ""
    model: str = ""


class MonthSums:
    """Amounts to be added, in one transaction: `hold` all there may be, `add` what is found to be new, `write`."""

    def __init__(self, zones: Mapping[UUID, str], *, now: datetime | None = None) -> None:
        """`zones`: the tenants' time zones."""
        self._zones = zones
        self._credit = CreditSums(now=now)
        self._sums: Counter[_Row] = Counter()

    def hold(self, all_spent: Iterable[Spent]) -> None:
        """Make their rows, and lock those of the tenants: others who write records of them wait for our end.

        So "is this request in the ledger already" has one answer while we look and write, and no amount is added twice.
        On SQLite a transaction that writes is alone anyway.
        """
        rows = sorted({row for spent in all_spent if spent.amount_picos for row in self._rows(spent)})
        if not rows:
            return
        MonthSpend.objects.bulk_create([MonthSpend(**row._asdict()) for row in rows], ignore_conflicts=True)
        if connection.vendor == "postgresql":
            whole = MonthSpend.objects.filter(tenant_id__in={row.tenant_id for row in rows}, key_id="", model="")
            list(whole.select_for_update().order_by("tenant_id", "month").values_list("id"))

    def add(self, spent: Spent) -> None:
        if spent.amount_picos:
            for row in self._rows(spent):
                self._sums[row] += spent.amount_picos
            self._credit.add(spent.tenant_id, Use(spent.month, spent.amount_picos, spent.began_at))

    def write(self) -> None:
        """Rows in one order, so that two who write do not wait for each other in a ring; telling comes last."""
        for row in sorted(self._sums):
            MonthSpend.objects.filter(**row._asdict()).update(amount_picos=F("amount_picos") + self._sums[row])
        self._credit.write()
        for tenant_id in sorted({row.tenant_id for row in self._sums}):
            tell_month(tenant_id, self._zones.get(tenant_id, UTC_NAME))
        self._credit.tell()

    def _rows(self, spent: Spent) -> set[_Row]:
        """Goodwill for nothing has neither a key nor a model: only the whole tenant's row."""
        tenant_id, month = spent.tenant_id, spent.month
        return {_Row(tenant_id, month), _Row(tenant_id, month, spent.key_id), _Row(tenant_id, month, model=spent.model)}


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
    of_keys = dict(rows.filter(key_id__in=named).values_list("key_id", "amount_picos")) if named else {}
    of_models = rows.filter(model__in=models).values_list("model", "amount_picos") if models else []
    payload = {
        "month": whole.month,
        "ends_at": month_named(whole.month, time_zone).ends_s,
        # As text: the sums may be more than 64 bits hold, and what carries this on has no greater numbers.
        "spent_picos": str(whole.amount_picos),
        "keys": {
            key: str(sum(of_keys.get(each, 0) for each in line)) for key, line in keys.items() if of_keys.keys() & set(line)
        },
        "models": {model: str(picos) for model, picos in of_models},
    }
    control.publish_figure(kind="month", key=str(tenant_id), payload=payload)

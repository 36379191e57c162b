"""From what was used to what is invoiced, a billing month at a time: the same sums as the month's statement, or its draft."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import F, Sum

from billing.invoice_models import Statement
from billing.models import GrantReturn, GrantUse, MonthSpend
from billing.services.statements import owed_before


@dataclass(frozen=True)
class BilledMonth:
    """Pico-dollars, exact: before the rounding of lines, and before tax."""

    month: str
    used_picos: int
    """Records and adjustments that have this billing month."""
    credit_picos: int
    carried_in_picos: int
    """What an earlier statement owed the customer."""
    carried_out_picos: int
    """What is owed to the customer after this one."""
    is_closed: bool
    invoice: Any = None
    """None: there is none, or none yet."""

    @property
    def less_credit_picos(self) -> int:
        return -self.credit_picos

    @property
    def less_carried_in_picos(self) -> int:
        return -self.carried_in_picos

    @property
    def invoiced_picos(self) -> int:
        return self.used_picos - self.credit_picos - self.carried_in_picos + self.carried_out_picos


def billed_months(tenant_id: UUID, months: Collection[str]) -> list[BilledMonth]:
    """In their order; those that are not closed as they stand now."""
    rows = Statement.objects.filter(tenant_id=tenant_id, month__in=months).select_related("invoice")
    closed = {statement.month: statement for statement in rows}
    still_open = [month for month in months if month not in closed]
    drafts = _as_they_stand(tenant_id, still_open) if still_open else {}
    return [_closed(closed[month]) if month in closed else drafts[month] for month in months]


def carried_over(months: Collection[str]) -> dict[UUID, int]:
    """What the statements of these months keep for later ones, less what they took over from earlier ones, by tenant.

    Below zero: they took over more. Revenue less credits and with this is what they invoice before tax. Zeros are left out.
    """
    rows = Statement.objects.filter(month__in=months).order_by().values_list("tenant_id")
    sums = rows.annotate(more=Sum(F("carried_out_picos") - F("carried_in_picos")))
    return {tenant_id: int(picos) for tenant_id, picos in sums if picos}


def _closed(statement: Statement) -> BilledMonth:
    return BilledMonth(
        month=statement.month,
        used_picos=statement.ledger_picos,
        credit_picos=statement.credit_picos,
        carried_in_picos=statement.carried_in_picos,
        carried_out_picos=statement.carried_out_picos,
        is_closed=True,
        invoice=getattr(statement, "invoice", None),
    )


def _as_they_stand(tenant_id: UUID, months: Collection[str]) -> dict[str, BilledMonth]:
    spent = MonthSpend.objects.filter(tenant_id=tenant_id, key_id="", model="", month__in=months)
    used, credit = dict(spent.values_list("month", "amount_picos")), Counter[str]()
    for table, sign in ((GrantUse, 1), (GrantReturn, -1)):
        rows = table._default_manager.filter(grant__tenant_id=tenant_id, billing_month__in=months)
        for month, picos in rows.order_by().values_list("billing_month").annotate(sum=Sum("amount_picos")):
            credit[month] += sign * int(picos)
    found = {}
    owed, _ = owed_before(tenant_id, "")  # none of them has a statement
    for month in months:
        left = used.get(month, 0) - credit[month] - owed
        found[month] = BilledMonth(month, used.get(month, 0), credit[month], owed, max(0, -left), is_closed=False)
    return found

"""A tenant's month as a statement: read from the ledger, line by line, with tax, in the currency of its invoices."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from billing.account_models import BillingAccount
from billing.invoice_models import LineKind, Statement
from billing.selectors_credit import CreditLine, credit_used
from billing.services.accounts import billing_account
from billing.services.month_sums import adjustment_sums, usage_sums
from billing.services.rates import exchange_rate_on
from billing.services.rounding import share_of
from billing.services.statement_lines import (
    DraftLine,
    Money,
    adjustment_lines,
    carried_in_line,
    carried_out_line,
    credit_lines,
    usage_lines,
)
from billing.services.tax import Tax, tax_of
from headway.currencies import MINOR_DIGITS
from headway.errors import InvalidInput
from headway.months import MONTH, UTC_NAME, month_named, next_month_name, zone_named
from tenants.selectors import time_zones


@dataclass(frozen=True)
class StatementDraft:
    """What a month comes to as the ledger stands. Nothing of it is stored."""

    tenant_id: UUID
    month: str
    time_zone: str
    starts_at: datetime
    ends_at: datetime
    money: Money
    account: BillingAccount
    tax: Tax
    lines: tuple[DraftLine, ...]
    ledger_picos: int
    credit_picos: int
    carried_in_picos: int
    carried_out_picos: int

    @property
    def subtotal_minor(self) -> int:
        return sum(line.amount_minor for line in self.lines if line.kind is not LineKind.TAX)

    @property
    def tax_minor(self) -> int:
        return sum(line.amount_minor for line in self.lines if line.kind is LineKind.TAX)

    @property
    def total_minor(self) -> int:
        return self.subtotal_minor + self.tax_minor

    @property
    def has_use(self) -> bool:
        """Is there anything to tell of, even where it comes to nothing?"""
        return bool(self.lines)


def draft_statement(tenant_id: UUID, month: str, *, now: datetime | None = None, zone: str | None = None) -> StatementDraft:
    """Of a month ("YYYY-MM" in the tenant's time zone, `zone` where it is known) that is not closed, as it stands.

    Raises InvalidInput for what is no month, RateMissing where its currency has no exchange rate, StatementDiffers where a
    request does not cost what its tokens do. For a month that runs, rates are those of today.
    """
    zone = zone or time_zones([tenant_id]).get(tenant_id, UTC_NAME)
    starts_at, ends_at = month_bounds(month, zone)
    on = rate_day(ends_at, zone, now or timezone.now())
    account = billing_account(tenant_id)
    money = Money(account.currency, MINOR_DIGITS[account.currency], exchange_rate_on(account.currency, on))
    sums, prices = usage_sums(tenant_id, month, starts_at)
    used = [*usage_lines(sums, prices, money), *adjustment_lines(adjustment_sums(tenant_id, month), money)]
    credit, (owed_picos, owed_from) = credit_used(tenant_id, month), owed_before(tenant_id, month)
    settled = _settled(used, owed_picos, owed_from, credit, month, money)
    tax = tax_of(seller_country=settings.COMPANY_COUNTRY, country=account.country, tax_id=account.tax_id, on=on)
    lines = [*settled, *_tax_lines(tax, settled)]
    return StatementDraft(
        tenant_id=tenant_id,
        month=month,
        time_zone=zone,
        starts_at=starts_at,
        ends_at=ends_at,
        money=money,
        account=account,
        tax=tax,
        lines=tuple(lines),
        ledger_picos=sum(line.amount_picos or 0 for line in used),
        credit_picos=sum(each.amount_picos for each in credit),
        carried_in_picos=owed_picos,
        # Where there is nothing to take it off, it goes on to the next.
        carried_out_picos=_sum_of(lines, LineKind.CARRIED_OUT) if lines else owed_picos,
    )


def _settled(
    used: list[DraftLine], owed_picos: int, owed_from: str, credit: list[CreditLine], month: str, money: Money
) -> list[DraftLine]:
    """What was used, less what is owed to the customer and what credits paid; never below zero."""
    lines = list(used)
    if owed_picos and lines:
        lines.append(carried_in_line(owed_picos, owed_from, money))
    lines += credit_lines(credit, lines, money)
    carried_out = carried_out_line(lines, next_month_name(month), money)
    return lines if carried_out is None else [*lines, carried_out]


def _sum_of(lines: list[DraftLine], kind: LineKind) -> int:
    return sum(line.amount_picos or 0 for line in lines if line.kind is kind)


def month_bounds(month: str, zone: str) -> tuple[datetime, datetime]:
    """The half-open range of a calendar month there, in UTC. Raises InvalidInput."""
    if not MONTH.fullmatch(month):
        raise InvalidInput(f"a month is written YYYY-MM, and lies between 2000 and 2999: {month[:20]!r}", param="month")
    bounds = month_named(month, zone)
    return datetime.fromtimestamp(bounds.starts_s, UTC), datetime.fromtimestamp(bounds.ends_s, UTC)


def rate_day(ends_at: datetime, zone: str, now: datetime) -> date:
    """Whose tax and exchange rates hold: the month's last day there; today, while it runs."""
    last = min(ends_at - timedelta(microseconds=1), now)
    return last.astimezone(zone_named(zone) or UTC).date()


def _tax_lines(tax: Tax, lines: list[DraftLine]) -> list[DraftLine]:
    if not tax.name or not lines:
        return []
    amount_minor = share_of(sum(line.amount_minor for line in lines), tax.basis_points)
    return [DraftLine(kind=LineKind.TAX, label=tax.label, amount_picos=None, amount_minor=amount_minor)]


def owed_before(tenant_id: UUID, month: str) -> tuple[int, str]:
    """What the newest statement owes the customer, and its month: each takes over all that was owed before it."""
    newest = Statement.objects.filter(tenant_id=tenant_id).exclude(month=month).order_by("-id").first()
    return (newest.carried_out_picos, newest.month) if newest is not None else (0, "")

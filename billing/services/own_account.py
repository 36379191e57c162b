"""What a customer may do about its own bills, and must know to pay them."""

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from billing.account_models import BillingAccount, ExchangeRate
from billing.models import ClosedMonth, MonthSpend
from billing.services.accounts import billing_account, set_billing_account
from billing.services.statements import month_bounds, rate_day
from headway.currencies import USD
from headway.errors import InvalidInput
from headway.months import UTC_NAME, month_of
from tenants.selectors import time_zones


@dataclass(frozen=True)
class PayTo:
    """Who sends invoices, and where money for them goes."""

    name: str
    """Blank: nobody yet, and no invoice is made."""
    bank_details: tuple[str, ...]
    email: str
    issued_after_days: int
    """After the month has ended."""
    due_after_days: int


def pay_to() -> PayTo:
    return PayTo(
        name=settings.COMPANY_NAME,
        bank_details=tuple(settings.BANK_DETAILS),
        email=settings.COMPANY_EMAIL,
        issued_after_days=settings.STATEMENT_CLOSE_DAYS,
        due_after_days=settings.INVOICE_DUE_DAYS,
    )


def currencies_on_offer(account: BillingAccount, time_zone: str, *, now: datetime | None = None) -> list[str]:
    """US dollars, the one the account is in already, and those in which each month that is not closed yet can be."""
    day = _oldest_rate_day(account.tenant_id, time_zone, now or timezone.now())
    rows = ExchangeRate.objects.filter(effective_from__lte=day)
    codes = {USD, account.currency, *rows.order_by().values_list("currency", flat=True).distinct()}
    return sorted(codes, key=lambda code: (code != USD, code))


def change_own_account(*, tenant_id: UUID, actor: str, now: datetime | None = None, **changes: Any) -> BillingAccount:
    """As set_billing_account; a currency is refused in which a month of the tenant's could not be closed.

    Raises InvalidInput, UnknownTenant.
    """
    currency = changes.get("currency")
    if currency:
        zone = time_zones([tenant_id]).get(tenant_id, UTC_NAME)
        offered = currencies_on_offer(billing_account(tenant_id), zone, now=now)
        if currency.strip().upper() not in offered:
            raise InvalidInput(f"currency must be one of {', '.join(offered)}: {currency!r}", param="currency")
    return set_billing_account(tenant_id=tenant_id, actor=actor, **changes)


def _oldest_rate_day(tenant_id: UUID, zone: str, now: datetime) -> date:
    """Of the months that have something on them and no statement, and the one that runs: whose rates hold for the oldest."""
    closed = ClosedMonth.objects.filter(tenant_id=tenant_id).values("month")
    spent = MonthSpend.objects.filter(tenant_id=tenant_id, key_id="", model="").exclude(month__in=closed)
    months = [month_of(now, zone).name, *spent.values_list("month", flat=True)]
    return rate_day(month_bounds(min(months), zone)[1], zone, now)

"""A month of all tenants, for who closes it: what is closed, what is not, and what is missing for it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.conf import settings

from billing.account_models import BillingAccount
from billing.errors import RateMissing
from billing.invoice_models import Invoice, Statement
from billing.models import MonthSpend
from billing.services.rates import exchange_rate_on
from billing.services.statements import month_bounds, rate_day
from headway.months import UTC_NAME
from tenants.selectors import names_of_tenants, time_zones


@dataclass(frozen=True)
class TenantMonth:
    tenant_id: UUID
    name: str
    spent_picos: int
    is_over: bool
    is_closed: bool
    invoice: Invoice | None
    missing: tuple[str, ...]
    """What the invoice would lack, or why it cannot be made."""


@dataclass(frozen=True)
class MonthOverview:
    month: str
    missing: tuple[str, ...]
    """Settings that invoices are made with."""
    rows: tuple[TenantMonth, ...]

    @property
    def can_close(self) -> bool:
        """An invoice names who sends it."""
        return "HEADWAY_COMPANY_NAME" not in self.missing and any(row.is_over for row in self.open_rows)

    @property
    def open_rows(self) -> list[TenantMonth]:
        return [row for row in self.rows if not row.is_closed]


def month_overview(month: str, *, now: datetime | None = None) -> MonthOverview:
    """Of those who spent something in it, or have a statement of it. Raises InvalidInput for what is no month."""
    now = now or datetime.now(UTC)
    month_bounds(month, UTC_NAME)
    spends = dict(
        MonthSpend.objects.filter(month=month, key_id="", model="").values_list("tenant_id", "amount_picos"),
    )
    closed = set(Statement.objects.filter(month=month).values_list("tenant_id", flat=True))
    invoices = {each.tenant_id: each for each in Invoice.objects.filter(statement__month=month)}
    tenant_ids = closed | spends.keys()
    names, zones = names_of_tenants(tenant_ids), time_zones(tenant_ids)
    accounts = {each.tenant_id: each for each in BillingAccount.objects.filter(tenant_id__in=tenant_ids - closed)}
    lacking = _currencies_without_rate(accounts.values(), month, now)
    rows = [
        TenantMonth(
            tenant_id=tenant_id,
            name=names.get(tenant_id, str(tenant_id)),
            spent_picos=spends.get(tenant_id, 0),
            is_over=month_bounds(month, zones.get(tenant_id, UTC_NAME))[1] <= now,
            is_closed=tenant_id in closed,
            invoice=invoices.get(tenant_id),
            missing=() if tenant_id in closed else _missing(accounts.get(tenant_id), lacking),
        )
        for tenant_id in tenant_ids
    ]
    ordered = sorted(rows, key=lambda row: (row.is_closed, row.name))
    return MonthOverview(month, _missing_of_all(), tuple(ordered))


def _missing_of_all() -> tuple[str, ...]:
    wanted = {
        "HEADWAY_COMPANY_NAME": settings.COMPANY_NAME,
        "HEADWAY_COMPANY_ADDRESS": settings.COMPANY_ADDRESS,
        "HEADWAY_BANK_DETAILS": settings.BANK_DETAILS,
    }
    return tuple(name for name, value in wanted.items() if not value)


def _missing(account: BillingAccount | None, lacking: set[str]) -> tuple[str, ...]:
    if account is None:
        return ("billing details",)
    wanted = {"legal name": account.legal_name, "address": account.address, "country": account.country, "e-mail": account.email}
    missing = [name for name, value in wanted.items() if not value]
    return (*missing, *([f"exchange rate of {account.currency}"] if account.currency in lacking else []))


def _currencies_without_rate(accounts: Iterable[BillingAccount], month: str, now: datetime) -> set[str]:
    on, lacking = rate_day(month_bounds(month, UTC_NAME)[1], UTC_NAME, now), set()
    for currency in {account.currency for account in accounts}:
        try:
            exchange_rate_on(currency, on)
        except RateMissing:
            lacking.add(currency)
    return lacking

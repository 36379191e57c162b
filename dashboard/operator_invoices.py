"""Invoices of all tenants as operators see them, and the months that are to be closed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Q
from django.utils import timezone

from billing.services.closing_runs import closing_runs
from billing.services.invoice_reads import every_invoice, owed_back
from billing.services.month_overview import MonthOverview, month_overview
from dashboard.invoice_pages import STATES, InvoiceRow, invoice_rows
from dashboard.money_shown import money
from dashboard.paging import Page, by_id, by_number
from headway.errors import InvalidInput
from headway.months import month_of, previous_month_name
from tenants.selectors import tenants_like

MAX_TENANTS = 50
MAX_REASONS = 5


@dataclass(frozen=True)
class OperatorInvoices:
    rows: list[InvoiceRow]
    page: Page
    query: str
    state: str
    month: str
    owed_back: str
    """To customers of all tenants, by currency; blank: nothing."""
    states: tuple[str, ...] = STATES

    @property
    def is_filtered(self) -> bool:
        return bool(self.query or self.state or self.month or self.page.newer)


@dataclass(frozen=True)
class ClosePage:
    overview: MonthOverview
    page: Page
    """Of its tenants: those that are open first."""
    run: Any
    """The newest run that closes, or closed, this month; None: none did."""
    problem: str = ""

    @property
    def is_moving(self) -> bool:
        return self.run is not None and self.run.ended_at is None

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """Why tenants of the run stay open, and how many; the most frequent first."""
        reasons = Counter(each["reason"] for each in self.run.failed) if self.run is not None else Counter[str]()
        return reasons.most_common(MAX_REASONS)


def operator_invoices(asked: Mapping[str, str]) -> OperatorInvoices:
    query, state, month = (asked.get(name, "").strip()[:100] for name in ("q", "state", "month"))
    state = state if state in STATES else ""
    rows = every_invoice(state=state, month=month)
    if query:
        tenant_ids = [tenant.id for tenant in tenants_like(query)[:MAX_TENANTS]]
        rows = rows.filter(Q(number__istartswith=query) | Q(tenant_id__in=tenant_ids))
    page = by_id(rows, asked.get("page", ""))
    owed = ", ".join(money(minor, currency) for currency, minor in owed_back().items())
    return OperatorInvoices(invoice_rows(page.rows), page, query, state, month, owed)


def close_page(asked: Mapping[str, str]) -> ClosePage:
    """Of the month that is asked for, else of the last one (UTC)."""
    last, problem = previous_month_name(month_of(timezone.now(), "UTC").name), ""
    try:
        overview = month_overview(asked.get("month", "").strip() or last)
    except InvalidInput as error:
        overview, problem = month_overview(last), error.message
    page = by_number(overview.rows, asked.get("page", ""))  # type: ignore[arg-type]  # sliced alike
    return ClosePage(overview, page, closing_runs(overview.month).first(), problem)

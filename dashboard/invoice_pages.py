"""Invoices as pages show them: a page of the list, one with all that belongs to it, and the requests of a line."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from billing.services.invoice_reads import (
    credit_minor_of,
    credit_notes_of_invoice,
    invoices_of_tenant,
    line_of_invoice,
    lines_of_invoice,
    payments_of_invoice,
)
from billing.services.line_parts import LinePart, parts_of_line
from billing.services.month_sums import adjustments_of_line, requests_of_line
from billing.services.own_account import pay_to
from dashboard.billing_page import first_invoice_on
from dashboard.money_shown import ShownLine, Totals, money, shown_lines, totals_of
from dashboard.paging import Page, by_id, by_time
from tenants.selectors import keys_of_tenant

STATES = ("open", "paid", "void", "uncollectible")
TONES = {"paid": "pill-good", "open": "pill-warn", "uncollectible": "pill-bad"}
MAX_ADJUSTMENTS = 100


@dataclass(frozen=True)
class InvoiceRow:
    invoice: Any
    totals: Totals
    due: str
    tone: str
    tenant_name: str = ""


@dataclass(frozen=True)
class InvoiceList:
    rows: list[InvoiceRow]
    page: Page
    state: str
    first_on: date
    states: tuple[str, ...] = STATES
    has_sender: bool = True

    @property
    def is_filtered(self) -> bool:
        return bool(self.state or self.page.newer)


@dataclass(frozen=True)
class InvoicePage:
    row: InvoiceRow
    lines: list[ShownLine]
    payments: list[tuple[Any, str]]
    notes: list[tuple[Any, str]]
    pay_to: tuple[str, ...]


@dataclass(frozen=True)
class LinePage:
    invoice: Any
    line: ShownLine
    month: str
    page: Page
    parts: list[LinePart]
    adjustments: list[Any]
    key_names: dict[str, str]
    has_tokens: bool


def invoice_list(tenant: Any, asked: Mapping[str, str]) -> InvoiceList:
    state = asked.get("state", "")
    rows = invoices_of_tenant(tenant.id)
    page = by_id(rows.filter(state=state) if state in STATES else rows, asked.get("page", ""))
    return InvoiceList(
        rows=invoice_rows(page.rows),
        page=page,
        state=state if state in STATES else "",
        first_on=first_invoice_on(tenant),
        has_sender=bool(pay_to().name),
    )


def invoice_rows(invoices: list[Any]) -> list[InvoiceRow]:
    """With what credits paid of them, in one query."""
    paid_by_credit = credit_minor_of([invoice.statement_id for invoice in invoices])
    return [_row(invoice, paid_by_credit.get(invoice.statement_id, 0)) for invoice in invoices]


def invoice_page(invoice: Any) -> InvoicePage:
    currency = invoice.currency
    return InvoicePage(
        row=invoice_rows([invoice])[0],
        lines=shown_lines(lines_of_invoice(invoice), currency),
        payments=[(each, money(each.amount_minor, currency)) for each in payments_of_invoice(invoice)],
        notes=[(each, money(-each.total_minor, currency)) for each in credit_notes_of_invoice(invoice)],
        pay_to=tuple(invoice.seller["bank_details"]),
    )


def line_page(tenant: Any, invoice: Any, position: int, cursor: str) -> LinePage:
    """Raises NotFound."""
    line = line_of_invoice(invoice, position)
    page = by_time(requests_of_line(line), "ended_at", cursor)
    parts = list(parts_of_line(line, page.rows))
    keys = {part.record.key_id for part in parts}
    return LinePage(
        invoice=invoice,
        line=shown_lines([line], invoice.currency)[0],
        month=invoice.statement.month,
        page=page,
        parts=parts,
        adjustments=list(adjustments_of_line(line)[:MAX_ADJUSTMENTS]),
        key_names=dict(keys_of_tenant(tenant).filter(id__in=keys).values_list("id", "name")),
        has_tokens=line.quantity_tokens is not None,
    )


def _row(invoice: Any, credit_minor: int) -> InvoiceRow:
    totals = totals_of(
        subtotal_minor=invoice.subtotal_minor,
        tax_minor=invoice.tax_minor,
        credit_minor=credit_minor,
        currency=invoice.currency,
    )
    is_settled = invoice.state in ("void", "draft")
    return InvoiceRow(
        invoice=invoice,
        totals=totals,
        due=money(0 if is_settled else invoice.due_minor, invoice.currency),
        tone=TONES.get(invoice.state, ""),
        tenant_name=invoice.buyer["tenant"],
    )

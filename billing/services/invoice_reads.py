"""Read invoices, credit notes and payments: what pages and the API list."""

from collections.abc import Collection
from uuid import UUID

from django.db.models import F, QuerySet, Sum

from billing.invoice_models import CreditNote, Invoice, InvoiceState, LineKind, Payment, Statement, StatementLine
from headway.errors import NotFound

UNSETTLED = (InvoiceState.OPEN, InvoiceState.UNCOLLECTIBLE)


def invoices_of_tenant(tenant_id: UUID) -> QuerySet[Invoice]:
    """Newest first, each with its statement."""
    return Invoice.objects.filter(tenant_id=tenant_id).select_related("statement").order_by("-id")


def every_invoice(*, state: str = "", month: str = "") -> QuerySet[Invoice]:
    """Of all tenants, for operators: newest first, each with its statement. Blanks: of any."""
    rows = Invoice.objects.select_related("statement").order_by("-id")
    rows = rows.filter(state=state) if state else rows
    return rows.filter(statement__month=month) if month else rows


def statements_of_tenant(tenant_id: UUID) -> QuerySet[Statement]:
    """Newest month first; each closed month has one, with an invoice or without."""
    return Statement.objects.filter(tenant_id=tenant_id).select_related("invoice").order_by("-month")


def lines_of_invoice(invoice: Invoice) -> QuerySet[StatementLine]:
    return invoice.statement.lines.select_related("statement").order_by("position")


def line_of_invoice(invoice: Invoice, position: int) -> StatementLine:
    """With its statement, for `month_sums.requests_of_line`. Raises NotFound."""
    found = lines_of_invoice(invoice).filter(position=position).first()
    if found is None:
        raise NotFound(f"invoice {invoice} has no line {position}")
    return found


def credit_notes_of_tenant(tenant_id: UUID) -> QuerySet[CreditNote]:
    """Newest first, each with its invoice."""
    return CreditNote.objects.filter(tenant_id=tenant_id).select_related("invoice").order_by("-id")


def payments_of_invoice(invoice: Invoice) -> QuerySet[Payment]:
    return Payment.objects.filter(invoice=invoice).order_by("id")


def due_by_currency(tenant_id: UUID) -> dict[str, int]:
    """What a tenant still has to pay, in minor units."""
    rows = Invoice.objects.filter(tenant_id=tenant_id, state__in=UNSETTLED).values("currency")
    sums = rows.annotate(total=Sum("total_minor"), credited=Sum("credited_minor"), paid=Sum("paid_minor"))
    return {row["currency"]: row["total"] - row["credited"] - row["paid"] for row in sums}


def owed_back() -> dict[str, int]:
    """What is owed back to customers of all tenants, of invoices that were paid and taken back, in minor units by currency."""
    rows = Invoice.objects.filter(paid_minor__gt=F("total_minor") - F("credited_minor")).order_by("currency").values("currency")
    sums = rows.annotate(owed=Sum(F("paid_minor") + F("credited_minor") - F("total_minor")))
    return {row["currency"]: row["owed"] for row in sums}


def credit_notes_of_invoice(invoice: Invoice) -> QuerySet[CreditNote]:
    return CreditNote.objects.filter(invoice=invoice).order_by("id")


def credit_minor_of(statement_ids: Collection[int]) -> dict[int, int]:
    """What grants paid of each, as its lines show it: below zero. In one query."""
    rows = StatementLine.objects.filter(statement_id__in=statement_ids, kind=LineKind.CREDIT).order_by()
    return dict(rows.values_list("statement_id").annotate(Sum("amount_minor")))

"""Invoices and credit notes: lists, one, its lines and their requests, documents."""

from collections.abc import Iterable, Iterator
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api import shapes
from billing.api.values import credit_note_values, invoice_values, line_values, part_values
from billing.invoice_models import Invoice
from billing.models import UsageRecord
from billing.services.credit_notes import credit_note_numbered
from billing.services.documents import credit_note_pdf, invoice_pdf, lines_csv
from billing.services.invoice_reads import credit_notes_of_tenant, invoices_of_tenant, line_of_invoice, lines_of_invoice
from billing.services.invoices import invoice_numbered
from billing.services.line_parts import LinePart, parts_of_line
from billing.services.month_sums import requests_of_line
from headway.errors import NotFound
from tenants.access import Action
from tenants.api.base import AsItIs, TenantView

PDF = {(200, "application/pdf"): OpenApiTypes.BINARY}
CSV = {(200, "text/csv"): OpenApiTypes.STR}


class BillingView(TenantView):
    actions = {"GET": Action.VIEW_BILLING}

    def invoice(self, number: str) -> Invoice:
        """Raises NotFound, also for another tenant's."""
        return invoice_numbered(number, tenant_id=self.standing.tenant.id)


class FileView(BillingView):
    content_negotiation_class = AsItIs


class Invoices(BillingView):
    @extend_schema(operation_id="invoices_list", parameters=[shapes.InvoicesAsked], responses=shapes.InvoiceShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        """Newest first."""
        asked = self.read_query(shapes.InvoicesAsked, is_paged=True)
        rows = invoices_of_tenant(self.standing.tenant.id).exclude(number=None).filter(**asked)
        return self.page(rows, shapes.InvoiceShape, ordering=("-id",), prepare=invoice_values)


class OneInvoice(BillingView):
    @extend_schema(operation_id="invoices_read", responses=shapes.InvoiceShape)
    def get(self, _request: Request, tenant: str, number: str) -> Response:
        return Response(shapes.InvoiceShape(invoice_values(self.invoice(number))).data)


class InvoiceLines(BillingView):
    @extend_schema(operation_id="invoices_lines", responses=shapes.LineShape(many=True))
    def get(self, _request: Request, tenant: str, number: str) -> Response:
        """As they are printed. The invoice's total is their sum."""
        invoice = self.invoice(number)

        def values(line: Any) -> dict[str, Any]:
            return line_values(line, invoice.currency, position=line.position)

        return self.page(lines_of_invoice(invoice), shapes.LineShape, ordering=("position",), prepare=values)


class LineRequests(BillingView):
    @extend_schema(operation_id="invoices_line_requests", responses=shapes.LinePartShape(many=True))
    def get(self, _request: Request, tenant: str, number: str, position: int) -> Response:
        """The requests behind a line, newest first; what they bring to it adds up to it."""
        line = line_of_invoice(self.invoice(number), position)

        def parts(records: Iterable[UsageRecord]) -> Iterator[LinePart]:
            return parts_of_line(line, records)

        order = ("-ended_at", "-id")
        rows = requests_of_line(line)
        return self.page(rows, shapes.LinePartShape, ordering=order, prepare_all=parts, prepare=part_values)


class InvoicePdf(FileView):
    @extend_schema(operation_id="invoices_pdf", responses=PDF)
    def get(self, _request: Request, tenant: str, number: str) -> HttpResponse:
        """As it was issued: the same bytes each time."""
        return attached(invoice_pdf(str(self.invoice(number))), f"{number}.pdf", "application/pdf")


class InvoiceCsv(FileView):
    @extend_schema(operation_id="invoices_csv", responses=CSV)
    def get(self, _request: Request, tenant: str, number: str) -> HttpResponse:
        """A row a line, with its exact amount in US dollars."""
        return attached(lines_csv(self.invoice(number)).encode(), f"{number}.csv", "text/csv; charset=utf-8")


class CreditNotes(BillingView):
    @extend_schema(operation_id="credit_notes_list", responses=shapes.CreditNoteShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        """Newest first."""
        rows = credit_notes_of_tenant(self.standing.tenant.id)
        return self.page(rows, shapes.CreditNoteShape, ordering=("-id",), prepare=credit_note_values)


class CreditNotePdf(FileView):
    @extend_schema(operation_id="credit_notes_pdf", responses=PDF)
    def get(self, _request: Request, tenant: str, note: str) -> HttpResponse:
        if credit_note_numbered(note).tenant_id != self.standing.tenant.id:
            raise NotFound(f"there is no credit note {note!r}")
        return attached(credit_note_pdf(note), f"{note}.pdf", "application/pdf")


def attached(content: bytes, name: str, content_type: str) -> HttpResponse:
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return HttpResponse(content, content_type=content_type, headers=headers)

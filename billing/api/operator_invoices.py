"""Operators: invoices of all tenants, what is paid, taken back and written off."""

from collections.abc import Iterable
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api import operator_shapes as o
from billing.api.invoices import attached
from billing.api.shapes import CreditNoteShape, LinePartShape, LineShape
from billing.api.values import credit_note_values, invoice_values, line_values, part_values
from billing.invoice_models import Invoice, Payment
from billing.models import UsageRecord
from billing.services.credit_notes import issue_credit_note
from billing.services.documents import credit_note_pdf, invoice_pdf, lines_csv
from billing.services.invoice_reads import (
    credit_notes_of_invoice,
    every_invoice,
    line_of_invoice,
    lines_of_invoice,
    payments_of_invoice,
)
from billing.services.invoices import invoice_numbered, write_off_invoice
from billing.services.line_parts import LinePart, parts_of_line
from billing.services.month_sums import requests_of_line
from billing.services.payments import mark_paid, pay_back
from headway.currencies import minor_to_text, text_to_minor
from headway.errors import InvalidInput
from tenants.api.base import AsItIs, OperatorView
from tenants.selectors import names_of_tenants
from tenants.services.tenants import tenant_named


class Invoices(OperatorView):
    @extend_schema(
        operation_id="operator_invoices_list",
        parameters=[o.OperatorInvoicesAsked],
        responses=o.OperatorInvoiceShape(many=True),
    )
    def get(self, _request: Request) -> Response:
        """Of all tenants, newest first."""
        asked = self.read_query(o.OperatorInvoicesAsked, is_paged=True)
        rows = every_invoice(state=asked.get("state", ""), month=asked.get("month", "")).exclude(number=None)
        if "tenant" in asked:
            rows = rows.filter(tenant_id=tenant_named(asked["tenant"]).id)
        return self.page(rows, o.OperatorInvoiceShape, ordering=("-id",), prepare_all=invoices_values)


class OneInvoice(OperatorView):
    @extend_schema(operation_id="operator_invoices_read", responses=o.OperatorInvoiceShape)
    def get(self, _request: Request, number: str) -> Response:
        return _shown(number)


class InvoiceLines(OperatorView):
    @extend_schema(operation_id="operator_invoices_lines", responses=LineShape(many=True))
    def get(self, _request: Request, number: str) -> Response:
        """As they are printed. The invoice's total is their sum."""
        invoice = invoice_numbered(number)

        def values(line: Any) -> dict[str, Any]:
            return line_values(line, invoice.currency, position=line.position)

        return self.page(lines_of_invoice(invoice), LineShape, ordering=("position",), prepare=values)


class InvoicePdf(OperatorView):
    content_negotiation_class = AsItIs

    @extend_schema(operation_id="operator_invoices_pdf", responses={(200, "application/pdf"): OpenApiTypes.BINARY})
    def get(self, _request: Request, number: str) -> HttpResponse:
        """As it was issued: the same bytes each time."""
        return attached(invoice_pdf(str(invoice_numbered(number))), f"{number}.pdf", "application/pdf")


class InvoiceCsv(OperatorView):
    content_negotiation_class = AsItIs

    @extend_schema(operation_id="operator_invoices_csv", responses={(200, "text/csv"): OpenApiTypes.STR})
    def get(self, _request: Request, number: str) -> HttpResponse:
        """A row a line, with its exact amount in US dollars."""
        return attached(lines_csv(invoice_numbered(number)).encode(), f"{number}.csv", "text/csv; charset=utf-8")


class LineRequests(OperatorView):
    @extend_schema(operation_id="operator_invoices_line_requests", responses=LinePartShape(many=True))
    def get(self, _request: Request, number: str, position: int) -> Response:
        """The requests behind a line, newest first; what they bring to it adds up to it."""
        line = line_of_invoice(invoice_numbered(number), position)

        def parts(records: Iterable[UsageRecord]) -> Iterable[LinePart]:
            return parts_of_line(line, records)

        order = ("-ended_at", "-id")
        return self.page(requests_of_line(line), LinePartShape, ordering=order, prepare_all=parts, prepare=part_values)


class CreditNotePdf(OperatorView):
    content_negotiation_class = AsItIs

    @extend_schema(operation_id="operator_credit_notes_pdf", responses={(200, "application/pdf"): OpenApiTypes.BINARY})
    def get(self, _request: Request, note: str) -> HttpResponse:
        """As it was issued: the same bytes each time."""
        return attached(credit_note_pdf(note), f"{note}.pdf", "application/pdf")


class Payments(OperatorView):
    @extend_schema(operation_id="operator_payments_list", responses=o.PaymentShape(many=True))
    def get(self, _request: Request, number: str) -> Response:
        """What came in for it, and what was paid back (below zero), oldest first."""
        invoice = invoice_numbered(number)

        def values(payment: Payment) -> dict[str, Any]:
            return payment_values(payment, invoice.currency)

        return self.page(payments_of_invoice(invoice), o.PaymentShape, ordering=("id",), prepare=values)

    @extend_schema(operation_id="operator_payments_create", request=o.NewPayment, responses={201: o.PaymentShape})
    def post(self, _request: Request, number: str) -> Response:
        """Count what came in. The same reference with the same amount is counted once; what is paid whole is paid."""
        invoice, asked = invoice_numbered(number), self.read(o.NewPayment)
        text = asked["amount"]
        amount_minor = None if text is None else text_to_minor(text, invoice.currency, param="amount")
        payment = mark_paid(number=number, reference=asked["reference"], amount_minor=amount_minor, actor=self.actor)
        return Response(o.PaymentShape(payment_values(payment, invoice.currency)).data, status=201)


class Refunds(OperatorView):
    @extend_schema(operation_id="operator_refunds_create", request=o.NewRefund, responses={201: o.PaymentShape})
    def post(self, _request: Request, number: str) -> Response:
        """Note a transfer to the customer of what is owed back: of a paid invoice that credit notes took back. It is among the
        payments, below zero. The same reference with the same amount is counted once.
        """
        invoice, asked = invoice_numbered(number), self.read(o.NewRefund)
        text = asked.pop("amount")
        amount_minor = None if text is None else text_to_minor(text, invoice.currency, param="amount")
        payment = pay_back(number=number, amount_minor=amount_minor, actor=self.actor, **asked)
        return Response(o.PaymentShape(payment_values(payment, invoice.currency)).data, status=201)


class CreditNotes(OperatorView):
    @extend_schema(operation_id="operator_credit_notes_list", responses=CreditNoteShape(many=True))
    def get(self, _request: Request, number: str) -> Response:
        """Of this invoice, oldest first."""
        rows = credit_notes_of_invoice(invoice_numbered(number)).select_related("invoice")
        return self.page(rows, CreditNoteShape, ordering=("id",), prepare=credit_note_values)

    @extend_schema(operation_id="operator_credit_notes_create", request=o.NewCreditNote, responses={201: CreditNoteShape})
    def post(self, _request: Request, number: str) -> Response:
        """Take back part of some lines, of none more than is left of it; tax goes along. With a reference that was given
        before, and the same wish, it is the note that was issued then; without a reference each post makes one.
        """
        invoice, asked = invoice_numbered(number), self.read(o.NewCreditNote)
        amounts = {
            line["position"]: text_to_minor(line["amount"], invoice.currency, param=f"lines[{place}].amount")
            for place, line in enumerate(asked["lines"])
        }
        if len(amounts) < len(asked["lines"]):
            raise InvalidInput("a line is named once", param="lines")
        named = {name: asked[name] for name in ("reason", "reference")}
        note = issue_credit_note(number=number, amounts=amounts, actor=self.actor, **named)
        return Response(CreditNoteShape(credit_note_values(note)).data, status=201)


class Void(OperatorView):
    @extend_schema(operation_id="operator_invoices_void", request=o.TakenBack, responses={201: CreditNoteShape})
    def post(self, _request: Request, number: str) -> Response:
        """A credit note of all that is left of it. There is no way back."""
        note = issue_credit_note(number=number, actor=self.actor, **self.read(o.TakenBack))
        return Response(CreditNoteShape(credit_note_values(note)).data, status=201)


class WriteOff(OperatorView):
    @extend_schema(operation_id="operator_invoices_write_off", request=o.Reason, responses=o.OperatorInvoiceShape)
    def post(self, _request: Request, number: str) -> Response:
        """Nobody will pay it. It may still be paid, or taken back."""
        write_off_invoice(number=number, reason=self.read(o.Reason)["reason"], actor=self.actor)
        return _shown(number)


def invoices_values(invoices: Iterable[Invoice]) -> list[dict[str, Any]]:
    found = list(invoices)
    names = names_of_tenants({invoice.tenant_id for invoice in found})
    return [invoice_values(each) | {"tenant": names.get(each.tenant_id, str(each.tenant_id))} for each in found]


def payment_values(payment: Payment, currency: str) -> dict[str, Any]:
    named = {name: getattr(payment, name) for name in ("reference", "provider", "paid_at", "actor")}
    return {**named, "amount": minor_to_text(payment.amount_minor, currency)}


def _shown(number: str) -> Response:
    (values,) = invoices_values([invoice_numbered(number)])
    return Response(o.OperatorInvoiceShape(values).data)

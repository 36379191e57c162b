"""Invoices of an organisation: the list, one, the requests of a line, and all of them as files."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_GET

from billing.services.credit_notes import credit_note_numbered
from billing.services.documents import credit_note_pdf, invoice_pdf, lines_csv
from billing.services.invoices import invoice_numbered
from dashboard.invoice_files import invoice_files
from dashboard.invoice_pages import invoice_list, invoice_page, line_page
from dashboard.seats import Seat, seated
from dashboard.zipped import zipped
from headway.errors import NotFound
from headway.streaming import file_of_pieces
from tenants.access import Action


@require_GET
@seated(Action.VIEW_BILLING)
def invoices(request: HttpRequest, seat: Seat) -> HttpResponse:
    return render(request, "dashboard/invoices.html", {"list": invoice_list(seat.tenant, request.GET)})


@require_GET
@seated(Action.VIEW_BILLING)
def invoice(request: HttpRequest, seat: Seat, number: str) -> HttpResponse:
    return render(request, "dashboard/invoice.html", {"page": invoice_page(_found(seat, number))})


@require_GET
@seated(Action.VIEW_BILLING)
def line(request: HttpRequest, seat: Seat, number: str, position: int) -> HttpResponse:
    try:
        page = line_page(seat.tenant, _found(seat, number), position, request.GET.get("page", ""))
    except NotFound as error:
        raise Http404(error.message) from None
    return render(request, "dashboard/invoice_line.html", {"page": page})


@require_GET
@seated(Action.VIEW_BILLING)
def pdf(request: HttpRequest, seat: Seat, number: str) -> HttpResponse:
    return _file(invoice_pdf(str(_found(seat, number))), f"{number}.pdf", "application/pdf")


@require_GET
@seated(Action.VIEW_BILLING)
def csv(request: HttpRequest, seat: Seat, number: str) -> HttpResponse:
    return _file(lines_csv(_found(seat, number)).encode(), f"{number}.csv", "text/csv; charset=utf-8")


@require_GET
@seated(Action.VIEW_BILLING)
def note_pdf(request: HttpRequest, seat: Seat, number: str) -> HttpResponse:
    try:
        note = credit_note_numbered(number)
    except NotFound as error:
        raise Http404(error.message) from None
    if note.tenant_id != seat.tenant.id:
        raise Http404(f"there is no credit note {number!r}")
    return _file(credit_note_pdf(number), f"{number}.pdf", "application/pdf")


@require_GET
@seated(Action.VIEW_BILLING)
def archive(request: HttpRequest, seat: Seat) -> HttpResponseBase:
    name = f"headway-invoices-{seat.tenant.name}.zip"
    return file_of_pieces(request, name=name, content_type="application/zip", pieces=zipped(invoice_files(seat.tenant)))


def _found(seat: Seat, number: str) -> Any:
    try:
        return invoice_numbered(number, tenant_id=seat.tenant.id)
    except NotFound as error:
        raise Http404(error.message) from None


def _file(content: bytes, name: str, content_type: str) -> HttpResponse:
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return HttpResponse(content, content_type=content_type, headers=headers)

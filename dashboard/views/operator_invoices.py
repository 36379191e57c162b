"""Operators: invoices of all tenants; payments, credit notes, write-offs, and months that are closed."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from billing.services.closing_runs import ask_to_close
from billing.services.credit_notes import issue_credit_note
from billing.services.documents import credit_note_pdf, invoice_pdf
from billing.services.invoices import invoice_numbered, write_off_invoice
from billing.services.payments import mark_paid, pay_back
from dashboard.confirming import is_confirmed
from dashboard.invoice_pages import invoice_page
from dashboard.money_shown import money
from dashboard.once import once
from dashboard.operator_area import actor_of, operators_only
from dashboard.operator_forms import CreditNoteForm, PaymentForm, RefundForm
from dashboard.operator_invoices import close_page, operator_invoices
from dashboard.telling import telling
from headway.clean_text import cleaned
from headway.errors import NotFound

ENDINGS = (
    ("void", "Take back", "A credit note of all that is left of it. There is no way back.", "operator_void", "Take it back"),
    (
        "write-off",
        "Write off",
        "Nobody will pay it. It may still be paid, or taken back.",
        "operator_write_off",
        "Write it off",
    ),
)
"""Id, title, what it does, address, button."""


@require_GET
@operators_only
def invoices(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/invoices.html", {"list": operator_invoices(request.GET)})


@require_GET
@operators_only
def invoice(request: HttpRequest, number: str) -> HttpResponse:
    return render(request, "operator/invoice.html", _shown(_found(number)))


@require_POST
@operators_only
def pay(request: HttpRequest, number: str) -> HttpResponse:
    found = _found(number)
    form = PaymentForm(request.POST, currency=found.currency)
    if not form.is_valid():
        return render(request, "operator/invoice.html", {**_shown(found), "payment_form": form})
    asked = form.cleaned_data
    with telling(request, "The payment is counted"):
        mark_paid(number=number, reference=asked["reference"], amount_minor=asked["amount"], actor=actor_of(request))
    return redirect("operator_invoice", number)


@require_POST
@operators_only
def refund(request: HttpRequest, number: str) -> HttpResponse:
    """Paid out to the customer, as the bank's statement has it."""
    found = _found(number)
    form = RefundForm(request.POST, currency=found.currency, auto_id="refund-%s")
    if not form.is_valid():
        return render(request, "operator/invoice.html", {**_shown(found), "refund_form": form})
    asked = form.cleaned_data
    with telling(request, "What was paid back is on record"):
        named = {"reference": asked["reference"], "amount_minor": asked["amount"], "paid_on": asked["paid_on"]}
        pay_back(number=number, actor=actor_of(request), **named)
    return redirect("operator_invoice", number)


@require_POST
@operators_only
def credit(request: HttpRequest, number: str) -> HttpResponse:
    """Lines in part; the number is typed."""
    found = _found(number)
    form = CreditNoteForm(request.POST, currency=found.currency, lines=invoice_page(found).lines)
    if not form.is_valid():
        return render(request, "operator/invoice.html", {**_shown(found), "credit_form": form})
    if not form.amounts():
        messages.error(request, "Nothing was changed: give an amount of at least one line")
    elif is_confirmed(request, number):
        with telling(request, f"Part of {number} is taken back by a credit note"), once(request):
            reason = form.cleaned_data["reason"]
            issue_credit_note(number=number, reason=reason, amounts=form.amounts(), actor=actor_of(request))
    return redirect("operator_invoice", number)


@require_POST
@operators_only
def void(request: HttpRequest, number: str) -> HttpResponse:
    """All that is left of it; the number is typed."""
    _found(number)
    if is_confirmed(request, number):
        with telling(request, f"All that was left of {number} is taken back by a credit note"):
            issue_credit_note(number=number, reason=cleaned(request.POST.get("reason", "")), actor=actor_of(request))
    return redirect("operator_invoice", number)


@require_POST
@operators_only
def write_off(request: HttpRequest, number: str) -> HttpResponse:
    _found(number)
    if is_confirmed(request, number):
        with telling(request, f"{number} is written off"):
            write_off_invoice(number=number, reason=cleaned(request.POST.get("reason", "")), actor=actor_of(request))
    return redirect("operator_invoice", number)


@require_GET
@operators_only
def pdf(request: HttpRequest, number: str) -> HttpResponse:
    """Of an invoice or of a credit note."""
    try:
        content = invoice_pdf(number)
    except NotFound:
        try:
            content = credit_note_pdf(number)
        except NotFound as error:
            raise Http404(error.message) from None
    headers = {"content-disposition": f'attachment; filename="{number}.pdf"', "cache-control": "no-store"}
    return HttpResponse(content, content_type="application/pdf", headers=headers)


@require_GET
@operators_only
def closing(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/close.html", {"close": close_page(request.GET)})


@require_POST
@operators_only
def close(request: HttpRequest) -> HttpResponse:
    """Asked for here, done by a worker; the page shows how far it is."""
    month = cleaned(request.GET.get("month", "")).strip()[:7]
    if is_confirmed(request, month):
        with telling(request, f"{month} is being closed: this page shows how far it is"):
            ask_to_close(month=month, actor=actor_of(request))
    return redirect(f"{reverse('operator_close')}?month={month}")


def _shown(found: Any) -> dict[str, Any]:
    page = invoice_page(found)
    left = found.total_minor - found.credited_minor
    return {
        "page": page,
        "may_credit": left > 0,
        "endings": ENDINGS[: 2 if found.state == "open" else 1] if left > 0 else (),
        "payment_form": PaymentForm(currency=found.currency),
        "refund_form": RefundForm(currency=found.currency, auto_id="refund-%s"),
        "owed_back": money(-found.due_minor, found.currency) if found.due_minor < 0 else "",
        "credit_form": CreditNoteForm(currency=found.currency, lines=page.lines),
    }


def _found(number: str) -> Any:
    try:
        return invoice_numbered(number)
    except NotFound as error:
        raise Http404(error.message) from None

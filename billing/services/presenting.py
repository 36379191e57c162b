"""What follows an issued invoice or credit note: its PDF, the provider, a mail. Carried out by the outbox, maybe twice."""

from typing import Any

from django.db import transaction
from django.utils import timezone

from billing.invoice_models import CreditNote, Invoice, InvoiceState
from billing.payments.provider import CustomerFacts, InvoiceFacts, InvoiceItem, PaymentProvider
from billing.payments.wiring import payment_provider
from billing.services.documents import credit_note_pdf, invoice_pdf
from headway.currencies import minor_to_print
from workers.services.mail import queue_mail
from workers.services.site_links import site_url

INVOICE_PATH = "/t/{tenant}/billing/invoices/{number}/"
"""Of the page that shows it."""


def carry_out(ids: dict[str, Any]) -> None:
    """An outbox entry's: {"invoice": id} or {"credit_note": id}."""
    if "credit_note" in ids:
        present_credit_note(CreditNote.objects.select_related("invoice__statement").get(pk=ids["credit_note"]))
    else:
        present_invoice(Invoice.objects.select_related("statement").get(pk=ids["invoice"]))


def present_invoice(invoice: Invoice, provider: PaymentProvider | None = None) -> None:
    """Each step is done once however often this runs: the provider knows the invoice by tenant and month, and one mail goes.

    Raises TryLater, DocumentFailed.
    """
    invoice_pdf(str(invoice.number))
    if invoice.state == InvoiceState.OPEN and not invoice.provider_reference:
        provider = provider or payment_provider()
        facts = invoice_facts(invoice)
        presented = provider.present_invoice(provider.ensure_customer(_customer(invoice)), facts)
        Invoice.objects.filter(pk=invoice.pk).update(provider=provider.name, provider_reference=presented.reference)
    _mail_once(invoice)


def present_credit_note(note: CreditNote, provider: PaymentProvider | None = None) -> None:
    credit_note_pdf(note.number)
    invoice = note.invoice
    if invoice.state == InvoiceState.VOID and invoice.provider_reference:
        (provider or payment_provider()).cancel_invoice(invoice.provider_reference)
    amount = f"{invoice.currency} {minor_to_print(note.total_minor, invoice.currency)}"
    with transaction.atomic():
        if CreditNote.objects.filter(pk=note.pk, mailed_at=None).update(mailed_at=timezone.now()):
            _mail(invoice, f"Credit note {note.number}", f"Of invoice {invoice.number} {amount} was taken back: {note.reason}")


def invoice_facts(invoice: Invoice) -> InvoiceFacts:
    lines = invoice.statement.lines.all()
    return InvoiceFacts(
        tenant_id=invoice.tenant_id,
        month=invoice.statement.month,
        number=str(invoice.number),
        currency=invoice.currency,
        total_minor=invoice.total_minor,
        due_on=f"{invoice.due_on}",
        items=tuple(InvoiceItem(line.position, line.label, line.amount_minor) for line in lines),
    )


def _customer(invoice: Invoice) -> CustomerFacts:
    buyer = invoice.buyer
    return CustomerFacts(
        tenant_id=invoice.tenant_id,
        name=buyer["name"],
        email=buyer["email"],
        country=buyer["country"],
        tax_id=buyer["tax_id"],
    )


def _mail_once(invoice: Invoice) -> None:
    with transaction.atomic():
        if not Invoice.objects.filter(pk=invoice.pk, mailed_at=None).update(mailed_at=timezone.now()):
            return
        amount = f"{invoice.currency} {minor_to_print(invoice.total_minor, invoice.currency)}"
        what = f"{amount}, due by {invoice.due_on}" if invoice.total_minor else f"{amount}: {invoice.state_reason}"
        _mail(invoice, f"Invoice {invoice.number} for {invoice.statement.month}", what)


def _mail(invoice: Invoice, subject: str, what: str) -> None:
    """To the billing e-mail, as it was when the invoice was issued; nobody is told where there is none."""
    buyer = invoice.buyer
    if not buyer["email"]:
        return
    link = site_url(INVOICE_PATH.format(tenant=buyer["tenant"], number=invoice.number))
    queue_mail(to=buyer["email"], subject=f"[Headway] {subject}", text=f"{buyer['name']}\n\n{subject}\n{what}\n\n{link}\n")

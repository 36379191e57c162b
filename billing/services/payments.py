"""Count money that came in. A provider's reference is counted once, however often it is told."""

from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from billing.invoice_models import Invoice, InvoiceState, Payment
from billing.payments.provider import TRANSFER
from billing.services.invoice_states import advance
from billing.services.invoices import audit_invoice, invoice_numbered
from headway.errors import Conflict, InvalidInput

MAX_REFERENCE_CHARS = 200


def mark_paid(
    *,
    number: str,
    reference: str,
    actor: str,
    amount_minor: int | None = None,
    provider: str = TRANSFER,
    now: datetime | None = None,
) -> Payment:
    """`reference`: what the bank or provider calls the payment. `amount_minor`: all that is due, unless told.

    An invoice of which all is paid is paid. The same reference again, for the same invoice and amount, changes nothing.
    Raises NotFound, InvalidInput (no reference, more than is due), Conflict (another invoice's reference; nothing is due).
    """
    reference = " ".join(reference.split())
    if not 1 <= len(reference) <= MAX_REFERENCE_CHARS:
        raise InvalidInput(f"a payment has a reference of 1 to {MAX_REFERENCE_CHARS} characters", param="reference")
    try:
        with transaction.atomic():
            invoice = invoice_numbered(number)
            invoice.refresh_from_db(from_queryset=Invoice.objects.select_for_update(of=("self",)))
            known = Payment.objects.filter(provider=provider, reference=reference).first()
            if known is not None:
                return _again(known, invoice, amount_minor)
            return _count(invoice, reference, amount_minor, provider, actor, now or timezone.now())
    except IntegrityError:
        raise Conflict(f"the reference {reference!r} has just been counted for another invoice") from None


def _again(known: Payment, invoice: Invoice, amount_minor: int | None) -> Payment:
    if known.invoice_id != invoice.pk:
        raise Conflict(f"the reference {known.reference!r} was counted for another invoice already")
    if amount_minor not in (None, known.amount_minor):
        raise Conflict(f"the reference {known.reference!r} was counted with another amount: {known.amount_minor}")
    return known


def _count(invoice: Invoice, reference: str, amount_minor: int | None, provider: str, actor: str, now: datetime) -> Payment:
    if invoice.state not in (InvoiceState.OPEN, InvoiceState.UNCOLLECTIBLE):
        raise Conflict(f"invoice {invoice} is {invoice.state}: nothing is due")
    amount_minor = invoice.due_minor if amount_minor is None else amount_minor
    if not 0 < amount_minor <= invoice.due_minor:
        raise InvalidInput(
            f"{invoice.due_minor} is due of invoice {invoice}, in the currency's smallest unit: not {amount_minor}",
            param="amount",
        )
    payment = Payment.objects.create(
        invoice=invoice, provider=provider, reference=reference, amount_minor=amount_minor, paid_at=now, actor=actor[:200]
    )
    Invoice.objects.filter(pk=invoice.pk).update(paid_minor=F("paid_minor") + amount_minor)
    invoice.refresh_from_db()
    if invoice.due_minor == 0:
        advance(invoice, to=InvoiceState.PAID, reason=f"{provider} {reference}", paid_at=now)
    after = {"reference": reference, "amount_minor": amount_minor, "provider": provider}
    audit_invoice(invoice, action="invoice.pay", actor=actor, after=after)
    return payment

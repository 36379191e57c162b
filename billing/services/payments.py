"""Count money that came in, and what was paid back. A provider's reference is counted once, however often it is told."""

from datetime import UTC, date, datetime

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from billing.invoice_models import Invoice, InvoiceState, Payment
from billing.payments.provider import TRANSFER
from billing.services.invoice_states import advance
from billing.services.invoices import audit_invoice, invoice_numbered
from headway.errors import Conflict, InvalidInput
from headway.months import midnight, zone_named

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
    reference = _tidy(reference)
    try:
        with transaction.atomic():
            invoice = _held(number)
            known = Payment.objects.filter(provider=provider, reference=reference).first()
            if known is not None:
                return _again(known, invoice, amount_minor, is_back=False)
            return _count(invoice, reference, amount_minor, provider, actor, now or timezone.now())
    except IntegrityError:
        raise Conflict(f"the reference {reference!r} has just been counted for another invoice") from None


def pay_back(
    *,
    number: str,
    reference: str,
    actor: str,
    amount_minor: int | None = None,
    paid_on: date | None = None,
    provider: str = TRANSFER,
    now: datetime | None = None,
) -> Payment:
    """Note what was paid out of what is owed back (`due_minor` below zero): a payment below zero, so the two meet again.

    `reference`: what the bank calls the transfer; `amount_minor`: all that is owed, unless told; `paid_on`: the day in the
    tenant's zone, today unless told. The same reference again, for the same invoice and amount, changes nothing. Raises
    NotFound, InvalidInput (no reference, more than is owed, a day that lies ahead), Conflict.
    """
    reference, now = _tidy(reference), now or timezone.now()
    try:
        with transaction.atomic():
            invoice = _held(number)
            known = Payment.objects.filter(provider=provider, reference=reference).first()
            if known is not None:
                return _again(known, invoice, None if amount_minor is None else -amount_minor, is_back=True)
            return _count_back(invoice, reference, amount_minor, paid_on, provider, actor, now)
    except IntegrityError:
        raise Conflict(f"the reference {reference!r} has just been counted for another invoice") from None


def _count_back(
    invoice: Invoice, reference: str, amount_minor: int | None, paid_on: date | None, provider: str, actor: str, now: datetime
) -> Payment:
    owed_minor = -invoice.due_minor
    if owed_minor <= 0:
        raise Conflict(f"nothing is owed back of invoice {invoice}")
    amount_minor = owed_minor if amount_minor is None else amount_minor
    if not 0 < amount_minor <= owed_minor:
        raise InvalidInput(
            f"{owed_minor} is owed back of invoice {invoice}, in the currency's smallest unit: not {amount_minor}",
            param="amount",
        )
    paid_at = _instant_of(paid_on, invoice, now)
    payment = _entered(invoice, reference, -amount_minor, provider, actor, paid_at)
    after = {"reference": reference, "amount_minor": amount_minor, "provider": provider, "paid_at": paid_at.isoformat()}
    audit_invoice(invoice, action="invoice.pay_back", actor=actor, after=after)
    return payment


def _tidy(reference: str) -> str:
    tidy = " ".join(reference.split())
    if not 1 <= len(tidy) <= MAX_REFERENCE_CHARS:
        raise InvalidInput(f"a payment has a reference of 1 to {MAX_REFERENCE_CHARS} characters", param="reference")
    return tidy


def _held(number: str) -> Invoice:
    """As it is now, until the transaction ends."""
    invoice = invoice_numbered(number)
    invoice.refresh_from_db(from_queryset=Invoice.objects.select_for_update(of=("self",)))
    return invoice


def _instant_of(paid_on: date | None, invoice: Invoice, now: datetime) -> datetime:
    """Of a day before today its beginning, where the tenant is. Raises InvalidInput."""
    zone = invoice.statement.time_zone
    today = now.astimezone(zone_named(zone) or UTC).date()
    if paid_on is None or paid_on == today:
        return now
    if paid_on > today or (invoice.issued_on is not None and paid_on < invoice.issued_on):
        raise InvalidInput(f"the day lies between {invoice.issued_on} and {today}: not {paid_on}", param="paid_on")
    return midnight(paid_on, zone)


def _again(known: Payment, invoice: Invoice, amount_minor: int | None, *, is_back: bool) -> Payment:
    if known.invoice_id != invoice.pk:
        raise Conflict(f"the reference {known.reference!r} was counted for another invoice already")
    if (known.amount_minor < 0) != is_back:
        raise Conflict(f"the reference {known.reference!r} is of money that went the other way")
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
    payment = _entered(invoice, reference, amount_minor, provider, actor, now)
    if invoice.due_minor == 0:
        advance(invoice, to=InvoiceState.PAID, reason=f"{provider} {reference}", paid_at=now)
    after = {"reference": reference, "amount_minor": amount_minor, "provider": provider}
    audit_invoice(invoice, action="invoice.pay", actor=actor, after=after)
    return payment


def _entered(invoice: Invoice, reference: str, amount_minor: int, provider: str, actor: str, paid_at: datetime) -> Payment:
    payment = Payment.objects.create(
        invoice=invoice, provider=provider, reference=reference, amount_minor=amount_minor, paid_at=paid_at, actor=actor[:200]
    )
    Invoice.objects.filter(pk=invoice.pk).update(paid_minor=F("paid_minor") + amount_minor)
    invoice.refresh_from_db()
    return payment

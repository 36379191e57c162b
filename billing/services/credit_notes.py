"""Credit notes: what an issued invoice is taken back by, whole or by line, never by more than is left of it."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Sum
from django.utils import timezone

from billing.errors import ReferenceUsed
from billing.invoice_models import CreditNote, CreditNoteLine, Invoice, InvoiceState, LineKind, StatementLine
from billing.services.invoice_states import advance
from billing.services.invoices import KIND, audit_invoice, invoice_numbered
from billing.services.numbering import take_number
from billing.services.references import tidy_reference
from billing.services.rounding import share_of
from headway.errors import Conflict, InvalidInput, NotFound
from headway.months import zone_named
from workers.services import outbox

UNSETTLED = frozenset({InvoiceState.OPEN, InvoiceState.UNCOLLECTIBLE})


def issue_credit_note(
    *,
    number: str,
    reason: str,
    actor: str,
    amounts: Mapping[int, int] | None = None,
    reference: str = "",
    now: datetime | None = None,
) -> CreditNote:
    """Take back an invoice: all that is left of it, or `amounts`: minor units, before tax, by a line's position.

    Tax goes along by the invoice's own rate. An open invoice that is taken back whole is void; one of which the rest was
    paid is paid. On a paid one what is taken back is owed to the customer (`due_minor` below zero). The ledger and the
    month stay as they are. The same `reference` again, with the same wish, is the note that was issued then. Raises
    NotFound, InvalidInput (no reason, no such line, more than is left), Conflict, ReferenceUsed.
    """
    now, reason, reference = now or timezone.now(), " ".join(reason.split()), tidy_reference(reference)
    if not 1 <= len(reason) <= 300:
        raise InvalidInput("a credit note says why, in 1 to 300 characters", param="reason")
    try:
        with transaction.atomic():
            invoice = _held(number)
            known = CreditNote.objects.filter(reference=reference).first() if reference else None
            if known is not None:
                return _same_note(known, invoice, reason, amounts)
            return _issue(invoice, reason, amounts, reference=reference, actor=actor, now=now)
    except IntegrityError:
        # Two at once, of two invoices: those of one wait for each other.
        if not CreditNote.objects.filter(reference=reference).exclude(reference="").exists():
            raise
        raise ReferenceUsed(f"the reference {reference!r} was used for another credit note", param="reference") from None


def _issue(
    invoice: Invoice, reason: str, amounts: Mapping[int, int] | None, *, reference: str, actor: str, now: datetime
) -> CreditNote:
    if invoice.total_minor == invoice.credited_minor:
        raise Conflict(f"nothing is left of invoice {invoice} to be taken back")
    taken = _checked(_left_of(invoice), amounts)
    subtotal_minor, tax_minor = _sums(invoice, taken)
    zone = zone_named(invoice.statement.time_zone) or UTC
    note = CreditNote.objects.create(
        invoice=invoice,
        tenant_id=invoice.tenant_id,
        number=take_number(settings.CREDIT_NOTE_PREFIX),
        reason=reason,
        reference=reference,
        subtotal_minor=subtotal_minor,
        tax_minor=tax_minor,
        total_minor=subtotal_minor + tax_minor,
        issued_at=now,
        issued_on=now.astimezone(zone).date(),
        actor=actor[:200],
    )
    CreditNoteLine.objects.bulk_create(
        [CreditNoteLine(credit_note=note, line=line, amount_minor=minor) for line, minor in taken.items()]
    )
    _count(invoice, note)
    after = {"credit_note": note.number, "total_minor": note.total_minor, "reason": reason, "reference": reference}
    audit_invoice(invoice, action="invoice.credit", actor=actor, after=after)
    outbox.put(kind=KIND, ids={"credit_note": note.id})
    return note


def credit_note_numbered(number: str) -> CreditNote:
    """With its invoice and statement. Raises NotFound."""
    found = CreditNote.objects.select_related("invoice__statement").filter(number=number).first()
    if found is None:
        raise NotFound(f"there is no credit note {number!r}")
    return found


def _held(number: str) -> Invoice:
    """As it is now, until the transaction ends: others who credit it, or count a payment for it, wait."""
    invoice = invoice_numbered(number)
    invoice.refresh_from_db(from_queryset=Invoice.objects.select_for_update(of=("self",)))
    return invoice


def _same_note(note: CreditNote, invoice: Invoice, reason: str, amounts: Mapping[int, int] | None) -> CreditNote:
    """Raises ReferenceUsed where it was issued for another wish."""
    taken = {each.line.position: each.amount_minor for each in note.lines.select_related("line")}
    if amounts is None:
        up_to_it = CreditNote.objects.filter(invoice=invoice, id__lte=note.id).aggregate(sum=Sum("total_minor"))["sum"]
        is_same = up_to_it == invoice.total_minor
    else:
        is_same = taken == dict(amounts)
    if note.invoice_id != invoice.pk or note.reason != reason or not is_same:
        raise ReferenceUsed(f"the reference {note.reference!r} was used for another credit note", param="reference")
    return note


def _left_of(invoice: Invoice) -> dict[StatementLine, int]:
    """What is left of each line but tax, with its sign."""
    taken: Counter[int] = Counter()
    rows = CreditNoteLine.objects.filter(credit_note__invoice=invoice)
    for line_id, minor in rows.values_list("line_id", "amount_minor"):
        taken[line_id] += minor
    lines = invoice.statement.lines.exclude(kind=LineKind.TAX)
    return {line: line.amount_minor - taken[line.id] for line in lines}


def _checked(left: Mapping[StatementLine, int], amounts: Mapping[int, int] | None) -> dict[StatementLine, int]:
    if amounts is None:
        return {line: minor for line, minor in left.items() if minor}
    by_position = {line.position: line for line in left}
    taken = {}
    for position, minor in amounts.items():
        line = by_position.get(position)
        if line is None:
            raise InvalidInput(f"the invoice has no line {position} that can be taken back", param="amounts")
        if not 0 < minor <= left[line]:
            raise InvalidInput(
                f"of line {position} {max(0, left[line])} can be taken back, in the currency's smallest unit: not {minor}",
                param="amounts",
            )
        taken[line] = minor
    return taken


def _sums(invoice: Invoice, taken: Mapping[StatementLine, int]) -> tuple[int, int]:
    """Subtotal and tax: with the last of the subtotal goes the last of the tax. Raises InvalidInput."""
    notes = list(CreditNote.objects.filter(invoice=invoice))
    subtotal_left = invoice.subtotal_minor - sum(note.subtotal_minor for note in notes)
    tax_left = invoice.tax_minor - sum(note.tax_minor for note in notes)
    subtotal_minor = sum(taken.values())
    if not 0 < subtotal_minor <= subtotal_left:
        raise InvalidInput(
            f"{subtotal_left} before tax is left of invoice {invoice}, in the currency's smallest unit: not {subtotal_minor}",
            param="amounts",
        )
    if subtotal_minor == subtotal_left:
        return subtotal_minor, tax_left
    return subtotal_minor, min(tax_left, share_of(subtotal_minor, invoice.tax_basis_points))


def _count(invoice: Invoice, note: CreditNote) -> None:
    """The invoice's own sum, and what its state is then."""
    unchanged = Invoice.objects.filter(pk=invoice.pk, credited_minor=invoice.credited_minor)
    if not unchanged.update(credited_minor=invoice.credited_minor + note.total_minor):
        raise Conflict(f"somebody else has just taken back part of invoice {invoice}: look again")
    invoice.refresh_from_db()
    if invoice.state not in UNSETTLED or invoice.due_minor > 0:
        return
    reason = f"taken back by credit note {note.number}"
    if invoice.paid_minor:
        advance(invoice, to=InvoiceState.PAID, reason=reason, paid_at=note.issued_at)
    else:
        advance(invoice, to=InvoiceState.VOID, reason=reason)

"""Issue the invoice of a closed month, and write off what nobody will pay."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction

from billing.invoice_models import Invoice, InvoiceState, LineKind, Statement
from billing.services.invoice_states import advance
from billing.services.numbering import take_number
from billing.services.parties import buyer_now, seller_now
from billing.services.rounding import NANOS
from billing.services.statements import StatementDraft
from headway.currencies import USD
from headway.errors import InvalidInput, NotFound
from headway.months import zone_named
from tenants.selectors import tenant_with_id
from tenants.services.audit import record_audit
from workers.services import outbox

MAX_REASON_CHARS = 300
KIND = "invoice"
"""Of outbox entries: an invoice that was issued (billing/services/presenting.py)."""


def issue_invoice(statement: Statement, draft: StatementDraft, *, now: datetime) -> Invoice:
    """In the transaction that closes the month. One of nothing is paid at once. Raises ConfigurationError."""
    issued_on = now.astimezone(zone_named(statement.time_zone) or UTC).date()
    invoice = Invoice.objects.create(
        statement=statement,
        tenant_id=statement.tenant_id,
        currency=statement.currency,
        subtotal_minor=statement.subtotal_minor,
        tax_minor=statement.tax_minor,
        total_minor=statement.total_minor,
        seller=seller_now(),
        buyer=buyer_now(statement.tenant_id, draft.account),
        tax_treatment=draft.tax.treatment.value,
        tax_basis_points=draft.tax.basis_points,
        notes=_notes(draft),
        provider=settings.PAYMENT_PROVIDER,
    )
    advance(
        invoice,
        to=InvoiceState.OPEN,
        number=take_number(settings.INVOICE_PREFIX),
        issued_at=now,
        issued_on=issued_on,
        due_on=issued_on + timedelta(days=settings.INVOICE_DUE_DAYS),
    )
    if invoice.total_minor == 0:
        advance(invoice, to=InvoiceState.PAID, reason=_why_nothing(draft), paid_at=now)
    outbox.put(kind=KIND, ids={"invoice": invoice.id})
    return invoice


def invoice_numbered(number: str, *, tenant_id: UUID | None = None) -> Invoice:
    """With its statement; of that tenant, where one is named. Raises NotFound."""
    rows = Invoice.objects.select_related("statement").filter(number=number)
    if tenant_id is not None:
        rows = rows.filter(tenant_id=tenant_id)
    found = rows.first()
    if found is None:
        raise NotFound(f"there is no invoice {number!r}")
    return found


def write_off_invoice(*, number: str, reason: str, actor: str) -> Invoice:
    """An open one becomes uncollectible; it may still be paid, or taken back by a credit note.

    Raises NotFound, InvalidInput (no reason), Conflict.
    """
    reason = " ".join(reason.split())
    if not 1 <= len(reason) <= MAX_REASON_CHARS:
        raise InvalidInput(f"say why it is written off, in 1 to {MAX_REASON_CHARS} characters", param="reason")
    with transaction.atomic():
        invoice = invoice_numbered(number)
        advance(invoice, to=InvoiceState.UNCOLLECTIBLE, reason=reason)
        audit_invoice(invoice, action="invoice.write_off", actor=actor, after={"reason": reason})
    return invoice


def audit_invoice(invoice: Invoice, *, action: str, actor: str, after: dict[str, object]) -> None:
    record_audit(actor=actor, action=action, target=str(invoice), tenant=tenant_with_id(invoice.tenant_id), after=after)


def _notes(draft: StatementDraft) -> list[str]:
    notes = [draft.tax.note] if draft.tax.note else []
    if draft.money.currency != USD:
        whole, rest = divmod(draft.money.rate_nanos, NANOS)
        rate = f"{whole}.{rest:09d}".rstrip("0").rstrip(".")
        notes.append(f"Prices are in US dollars; converted at USD 1 = {draft.money.currency} {rate}.")
    if any(line.is_late for line in draft.lines):
        notes.append('"Used earlier": usage from before the month began, that no earlier statement has.')
    return notes


def _why_nothing(draft: StatementDraft) -> str:
    kinds = {line.kind for line in draft.lines}
    if LineKind.CREDIT in kinds:
        return "nothing to pay: credits cover it"
    if LineKind.CARRIED_OUT in kinds:
        return "nothing to pay: what is owed to the customer is more than what was used, and is carried over"
    return "nothing to pay: what was used comes to less than the smallest unit of the currency, or is free"

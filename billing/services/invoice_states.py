"""An invoice's states: one table, and the one way to move along it."""

from typing import Any

from django.db import connection

from billing.invoice_models import Invoice, InvoiceState
from headway.errors import Conflict

TRANSITIONS: dict[InvoiceState, frozenset[InvoiceState]] = {
    InvoiceState.DRAFT: frozenset({InvoiceState.OPEN}),
    InvoiceState.OPEN: frozenset({InvoiceState.PAID, InvoiceState.VOID, InvoiceState.UNCOLLECTIBLE}),
    InvoiceState.UNCOLLECTIBLE: frozenset({InvoiceState.PAID, InvoiceState.VOID}),
    InvoiceState.PAID: frozenset(),
    InvoiceState.VOID: frozenset(),
}


def advance(invoice: Invoice, *, to: InvoiceState, reason: str = "", **changes: Any) -> None:
    """From the state it was read in; `invoice` is then as it is stored. Raises Conflict, also where someone else moved it."""
    assert connection.in_atomic_block, "with what it is moved for"
    expected = InvoiceState(invoice.state)
    if to not in TRANSITIONS[expected]:
        raise Conflict(f"invoice {invoice} is {expected.value}: it cannot become {to.value}")
    moved = Invoice.objects.filter(pk=invoice.pk, state=expected).update(state=to, state_reason=reason[:300], **changes)
    if not moved:
        raise Conflict(f"invoice {invoice} is not {expected.value} any more: look again")
    invoice.refresh_from_db()

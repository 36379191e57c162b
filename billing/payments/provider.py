"""What a payment provider is to us: customers, invoices, and events that it tells.

    InvoiceFacts ──present──> provider ──events──> mark_paid

Every call carries an idempotency key that is made of what is billed and of nothing else (whose, which month): a retry, by
whatever process and after whatever crash, asks for the same thing again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

TRANSFER = "transfer"


@dataclass(frozen=True)
class CustomerFacts:
    tenant_id: UUID
    name: str
    email: str
    country: str
    tax_id: str

    @property
    def idempotency_key(self) -> str:
        return f"customer:{self.tenant_id}"


@dataclass(frozen=True)
class InvoiceItem:
    position: int
    label: str
    amount_minor: int


@dataclass(frozen=True)
class InvoiceFacts:
    """An issued invoice. Amounts are minor units of `currency`, tax among the items."""

    tenant_id: UUID
    month: str
    number: str
    currency: str
    total_minor: int
    due_on: str
    items: tuple[InvoiceItem, ...]

    @property
    def idempotency_key(self) -> str:
        """The billable fact: there is one invoice a tenant and month."""
        return f"invoice:{self.tenant_id}:{self.month}"

    def item_key(self, item: InvoiceItem) -> str:
        return f"{self.idempotency_key}:{item.position}"


@dataclass(frozen=True)
class Presented:
    reference: str
    """What the provider calls the invoice."""
    instructions: tuple[str, ...] = ()
    """Lines that say how to pay."""
    pay_url: str = ""


@dataclass(frozen=True)
class PaymentEvent:
    """Told by a webhook whose signature was checked. `id` is the provider's: one event is acted on once."""

    id: str
    invoice_number: str
    payment_reference: str
    amount_minor: int
    currency: str


class PaymentProvider(Protocol):
    """All may raise workers.errors.TryLater; all may be called again with the same facts."""

    @property
    def name(self) -> str: ...

    def ensure_customer(self, customer: CustomerFacts) -> str:
        """The provider's name of the customer, made at most once."""
        ...

    def present_invoice(self, customer: str, invoice: InvoiceFacts) -> Presented:
        """Tell the provider of an invoice that is due; at most one for its idempotency key."""
        ...

    def cancel_invoice(self, reference: str) -> None:
        """It was taken back: no money is asked for any more."""
        ...

    def read_webhook(self, body: bytes, headers: Mapping[str, str]) -> list[PaymentEvent]:
        """What it tells of payments. Raises InvalidInput for a signature that is not the provider's."""
        ...

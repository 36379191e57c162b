"""Pay by bank transfer: we print where to, the bank's statement says what came, and somebody runs `mark_paid`."""

from collections.abc import Mapping, Sequence

from billing.payments.provider import TRANSFER, CustomerFacts, InvoiceFacts, PaymentEvent, Presented
from headway.errors import InvalidInput


class TransferProvider:
    name = TRANSFER

    def __init__(self, bank_details: Sequence[str]) -> None:
        self._bank_details = tuple(bank_details)

    def ensure_customer(self, customer: CustomerFacts) -> str:
        return str(customer.tenant_id)

    def present_invoice(self, customer: str, invoice: InvoiceFacts) -> Presented:
        """The bank wants nothing to be told; the number is what the customer writes on the transfer."""
        lines = (*self._bank_details, f"Reference: {invoice.number}") if self._bank_details else ()
        return Presented(reference=invoice.number, instructions=lines)

    def cancel_invoice(self, reference: str) -> None:
        """Nobody was told of it."""

    def read_webhook(self, body: bytes, headers: Mapping[str, str]) -> list[PaymentEvent]:
        raise InvalidInput("a bank transfer has no webhooks")

"""The in-memory twin of a provider that has customers, invoices and webhooks: for tests of all that calls one."""

import hashlib
import hmac
import json
from collections.abc import Mapping

from billing.payments.provider import CustomerFacts, InvoiceFacts, PaymentEvent, Presented
from headway.errors import InvalidInput
from workers.errors import TryLater

SIGNATURE = "x-signature"


class InMemoryProvider:
    """Like a real one it knows an idempotency key again, and may fail after it has done what it was asked."""

    name = "in_memory"

    def __init__(self, secret: str = "not a secret") -> None:
        self._secret = secret.encode()
        self.customers: dict[str, CustomerFacts] = {}
        self.invoices: dict[str, InvoiceFacts] = {}
        self.items: dict[str, int] = {}
        """Amounts by the key of the item."""
        self.cancelled: set[str] = set()
        self.num_calls = 0
        self.answers_to_lose = 0

    def ensure_customer(self, customer: CustomerFacts) -> str:
        self.customers.setdefault(customer.idempotency_key, customer)
        self._answer()
        return f"cus_{customer.tenant_id.hex[:8]}"

    def present_invoice(self, customer: str, invoice: InvoiceFacts) -> Presented:
        self.invoices.setdefault(invoice.idempotency_key, invoice)
        for item in invoice.items:
            self.items.setdefault(invoice.item_key(item), item.amount_minor)
        self._answer()
        reference = "in_" + hashlib.sha256(invoice.idempotency_key.encode()).hexdigest()[:12]
        return Presented(reference=reference, pay_url=f"https://pay.example/{reference}")

    def cancel_invoice(self, reference: str) -> None:
        self.cancelled.add(reference)
        self._answer()

    def read_webhook(self, body: bytes, headers: Mapping[str, str]) -> list[PaymentEvent]:
        if not hmac.compare_digest(self.signature(body), headers.get(SIGNATURE, "")):
            raise InvalidInput("this webhook is not signed by the provider")
        return [PaymentEvent(**json.loads(body))]

    def signature(self, body: bytes) -> str:
        return hmac.new(self._secret, body, hashlib.sha256).hexdigest()

    def _answer(self) -> None:
        self.num_calls += 1
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise TryLater("the provider's answer was lost")

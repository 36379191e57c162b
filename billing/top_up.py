"""Filling a balance by itself: what a payment provider will have to do. Nothing charges yet; credit is granted by people.

`billing.services.top_ups` keeps what tenants want and says what is due, each with a reference. A charger takes the money
once per reference, and whoever hears that it was paid grants the credit with the same reference, which grants once.
"""

from typing import Protocol
from uuid import UUID


class Charger(Protocol):
    def charge(self, *, tenant_id: UUID, amount_micros: int, reference: str) -> None:
        """Begin to take the money from what the tenant pays with; asked again with a reference, it does nothing.

        Raises HeadwayError where the tenant has nothing to pay with, or the provider refuses.
        """

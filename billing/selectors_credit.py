"""What grants paid: the lines of credit that a statement shows."""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True)
class CreditLine:
    grant_id: str
    label: str
    """As the invoice prints it: what the grant was given for."""
    amount_picos: int
    """What was used of it in the month: above zero."""


def credit_used(tenant_id: UUID, billing_month: str) -> list[CreditLine]:
    """In the order grants are eaten."""
    return []

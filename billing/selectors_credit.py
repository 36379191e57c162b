"""What grants paid: the lines of credit that a statement shows."""

from dataclasses import dataclass
from uuid import UUID

from django.db.models import F

from billing.models import GrantUse

_KINDS = {"prepaid": "Prepaid credit", "promotion": "Promotional credit", "goodwill": "Credit"}


@dataclass(frozen=True)
class CreditLine:
    grant_id: str
    label: str
    """As the invoice prints it: what the grant was given for."""
    amount_picos: int
    """What was used of it in the month: above zero."""


def credit_used(tenant_id: UUID, billing_month: str) -> list[CreditLine]:
    """In the order grants are eaten."""
    uses = GrantUse.objects.filter(grant__tenant_id=tenant_id, billing_month=billing_month, amount_picos__gt=0)
    ordered = uses.select_related("grant").order_by(
        F("grant__expires_at").asc(nulls_last=True), "grant__created_at", "grant_id"
    )
    return [CreditLine(str(use.grant_id), f"{_KINDS[use.grant.kind]}: {use.grant.reason}", use.amount_picos) for use in ordered]

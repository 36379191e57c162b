"""What grants paid: the lines of credit that a statement shows."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet

from billing.models import Grant, GrantReturn, GrantUse

_KINDS = {"prepaid": "Prepaid credit", "promotion": "Promotional credit", "goodwill": "Credit"}


@dataclass(frozen=True)
class CreditLine:
    grant_id: str
    label: str
    """As the invoice prints it: what the grant was given for."""
    amount_picos: int
    """What was used of it in the month; below zero: given back to it."""


def credit_used(tenant_id: UUID, billing_month: str) -> list[CreditLine]:
    """In the order grants are eaten; below zero, and last: what was given back of what they paid of other months."""
    order = (F("grant__expires_at").asc(nulls_last=True), "grant__created_at", "grant_id")
    uses = GrantUse.objects.filter(grant__tenant_id=tenant_id, billing_month=billing_month, amount_picos__gt=0)
    returns = GrantReturn.objects.filter(grant__tenant_id=tenant_id, billing_month=billing_month)
    return [
        *(CreditLine(str(use.grant_id), _label(use.grant), use.amount_picos) for use in _with_grants(uses, *order)),
        *(
            CreditLine(str(each.grant_id), f"given back of {each.paid_month} · {_label(each.grant)}", -each.amount_picos)
            for each in _with_grants(returns, *order, "paid_month")
        ),
    ]


def _with_grants(rows: QuerySet[Any], *order: Any) -> QuerySet[Any]:
    return rows.select_related("grant").order_by(*order)


def _label(grant: Grant) -> str:
    return f"{_KINDS[grant.kind]}: {grant.reason}"

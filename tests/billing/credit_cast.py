"""A tenant that pays in advance, one that pays later, and what they use."""

from datetime import UTC, datetime
from typing import Any

from billing.models import Grant, GrantUse
from billing.services.balance_reads import balance_of, unbalanced_grants
from billing.services.balances import grant_credit
from billing.services.ledger import UsageDraft, record_usage
from headway.money import PICOS_A_MICRO
from inference.models import ControlChange
from tenants.models import Tenant
from tenants.services.tenants import create_tenant
from tenants.services.terms import define_plan, set_plan
from tests.inference.gateway.usage_drafts import draft

NOVEMBER = datetime(2026, 11, 15, 12, tzinfo=UTC)


def prepaid(name: str = "acme") -> Tenant:
    define_plan(name="prepaid", is_prepaid=True, actor="test")
    tenant = create_tenant(name=name, actor="test")
    set_plan(tenant=tenant, plan="prepaid", actor="test")
    return tenant


def grant(tenant: Tenant, micros: int, **others: Any) -> Grant:
    given: dict[str, Any] = {"reason": "a payment", "actor": "user:ann", "now": NOVEMBER, "kind": "prepaid"} | others
    return grant_credit(tenant_id=tenant.id, amount_micros=micros, **given)


def used(
    tenant: Tenant, request_id: str, micros: int, end_state: str = "done", began_at: datetime = NOVEMBER, **others: Any
) -> UsageDraft:
    at_s = began_at.timestamp()
    fields = {"tenant_id": str(tenant.id), "started_at_s": at_s, "ended_at_s": at_s + 1, "price_version": "1"} | others
    return draft(request_id, end_state, amount_picos=micros * PICOS_A_MICRO, **fields)


def record(*drafts: UsageDraft, now: datetime = NOVEMBER) -> None:
    record_usage(drafts=list(drafts), now=now)


def lefts(tenant: Tenant) -> list[int]:
    """Of each grant, in micro-dollars, as they were given."""
    rows = Grant.objects.filter(tenant_id=tenant.id).order_by("created_at", "amount_micros")
    return [picos // PICOS_A_MICRO for picos in rows.values_list("left_picos", flat=True)]


def paid(month: str = "2026-11") -> int:
    """By all grants, in micro-dollars."""
    return sum(GrantUse.objects.filter(billing_month=month).values_list("amount_picos", flat=True)) // PICOS_A_MICRO


def told(tenant: Tenant) -> dict[str, Any]:
    """What the feed says, in micro-dollars: what is left, and what was spent."""
    payload: dict[str, Any] | None = ControlChange.objects.filter(kind="balance", key=str(tenant.id)).latest("id").payload
    assert payload is not None
    credit, spent = (int(payload[name]) // PICOS_A_MICRO for name in ("credit_picos", "spent_picos"))
    expiring = [(at_s, int(picos) // PICOS_A_MICRO) for at_s, picos in payload["expiring"]]
    return {"left": credit - spent, "spent": spent, "expiring": expiring}


def check(tenant: Tenant, *, overdrawn: int = 0) -> None:
    assert unbalanced_grants() == []
    assert balance_of(tenant.id, now=NOVEMBER).overdrawn_picos == overdrawn * PICOS_A_MICRO

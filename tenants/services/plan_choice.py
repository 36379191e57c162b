"""A tenant chooses its plan, having seen what changes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tenants.errors import NotAllowed, UnknownPlan
from tenants.models import LimitKind, Plan, Tenant
from tenants.selectors import TermsInForce, plan_of, terms_on_each
from tenants.services.terms import set_plan


class PlanChange(NamedTuple):
    field: str
    before: Any
    after: Any


def plan_named(name: str) -> Plan:
    """Raises UnknownPlan."""
    found = Plan.objects.filter(name=name).first()
    if found is None:
        raise UnknownPlan(f"there is no plan {name!r}", param="plan")
    return found


def plans_on_offer(tenant: Tenant) -> list[Plan]:
    """Those a tenant may choose by itself, and the one it is on."""
    mine = plan_of(tenant)
    return [plan for plan in Plan.objects.order_by("name") if plan.is_self_service or plan.name == mine.name]


def preview_plan_change(tenant: Tenant, plan: str) -> list[PlanChange]:
    """What would hold otherwise for it on that plan; limits of its own stay, so what they cover does not change.

    Raises UnknownPlan.
    """
    return preview_plan_changes(tenant, [plan_named(plan)])[plan]


def preview_plan_changes(tenant: Tenant, plans: Sequence[Plan]) -> dict[str, list[PlanChange]]:
    """The same for several plans, by name."""
    before, *afters = (_plain(terms) for terms in terms_on_each(tenant, [plan_of(tenant), *plans]))
    return {
        plan.name: [PlanChange(field, before[field], after[field]) for field in before if before[field] != after[field]]
        for plan, after in zip(plans, afters, strict=True)
    }


def choose_plan(*, tenant: Tenant, plan: str, actor: str) -> TermsInForce:
    """By the tenant itself. Raises UnknownPlan, and NotAllowed for a plan that is agreed upon with us."""
    if not plan_named(plan).is_self_service:
        raise NotAllowed(f"the plan {plan!r} is agreed upon with us: ask our support", param="plan")
    return set_plan(tenant=tenant, plan=plan, actor=actor)


def _plain(terms: TermsInForce) -> dict[str, Any]:
    """None: no such limit."""
    limits = {limit.kind: limit.value for limit in terms.limits if limit.scope == "tenant"}
    return {
        "plan": terms.plan,
        "weight": terms.weight,
        "tier_ceiling": terms.tier_ceiling,
        "default_max_tokens": terms.default_max_tokens,
        "discount_percent": terms.discount_percent,
        "salt_per_key": terms.salt_per_key,
        "is_prepaid": terms.is_prepaid,
        **{kind.value: limits.get(kind.value) for kind in LimitKind},
    }

"""The plans a tenant may choose, each with what would change."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.limit_page import LABELS
from dashboard.templatetags.dashboard import usd
from tenants.selectors import all_plans, plan_of
from tenants.services.plan_choice import plans_on_offer, preview_plan_changes

_FIELDS = {
    **LABELS,
    "weight": "Share of a busy pool",
    "tier_ceiling": "Most urgent tier",
    "default_max_tokens": "Tokens where none are named",
    "discount_percent": "Discount, %",
    "salt_per_key": "Cache apart for each key",
    "is_prepaid": "Paid in advance",
}


@dataclass(frozen=True)
class Change:
    label: str
    before: str
    after: str


@dataclass(frozen=True)
class Offer:
    name: str
    is_current: bool
    is_self_service: bool
    changes: list[Change]


def plan_offers(tenant: Any) -> list[Offer]:
    """Those it may choose by itself, and its own."""
    return _offers(tenant, plans_on_offer(tenant))


def plan_offers_of_operator(tenant: Any) -> list[Offer]:
    return _offers(tenant, all_plans())


def _offers(tenant: Any, plans: Sequence[Any]) -> list[Offer]:
    mine, previews = plan_of(tenant).name, preview_plan_changes(tenant, plans)
    return [
        Offer(
            name=plan.name,
            is_current=plan.name == mine,
            is_self_service=plan.is_self_service,
            changes=[
                Change(_FIELDS.get(each.field, each.field), _shown(each.field, each.before), _shown(each.field, each.after))
                for each in previews[plan.name]
                if each.field != "plan"
            ],
        )
        for plan in plans
    ]


def _shown(field: str, value: Any) -> str:
    if value is None:
        return "no limit"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field == "monthly_budget":
        return usd(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)

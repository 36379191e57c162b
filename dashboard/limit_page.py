"""The limits of a tenant as their page shows them: each with what is used of it now, and what a client gets at it."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.safestring import SafeString

from billing.selectors import spend_of_month
from dashboard.templatetags.dashboard import ago
from headway.money import micros_up
from headway.months import month_of
from inference.selectors import limit_error_example
from tenants.selectors import TermsInForce, keys_of_tenant, terms_in_force

LABELS = {
    "requests_per_minute": "Requests a minute",
    "input_tokens_per_minute": "Input tokens a minute",
    "output_tokens_per_minute": "Output tokens a minute",
    "concurrent_requests": "Requests at once",
    "monthly_budget": "Hard limit a month",
}
_TITLES = {
    "tenant": ("In force for the whole organisation", "What all its keys use together, as it is now"),
    "model": ("Of single models", "Beside those above: what the organisation uses of one model"),
    "key": ("Of single keys", "Beside those above: what one key uses"),
}


@dataclass(frozen=True)
class Meter:
    id: str
    label: str
    whose: str
    value: int
    unit: str  # "usd": micro-dollars | "": a number
    resets: str | SafeString
    is_from_plan: bool
    used: int = 0
    """Of money as the ledger has it; of anything else the socket tells."""


@dataclass(frozen=True)
class Group:
    """Limits of one scope."""

    title: str
    note: str
    meters: list[Meter]


@dataclass(frozen=True)
class LimitPage:
    lead: str
    groups: list[Group]
    rate_error: str
    model_error: str
    """At a limit of a single model; a blank: there is none that refuses."""
    budget_error: str


def meter_id(scope: str, scope_id: str, kind: str) -> str:
    """As the dispatcher names it in its frames."""
    return f"{scope}/{scope_id}/{kind}"


def limit_page(tenant: Any) -> LimitPage:
    terms = terms_in_force(tenant)
    month = month_of(timezone.now(), tenant.time_zone)
    month_ends, spent = datetime.fromtimestamp(month.ends_s, UTC), spend_of_month(tenant.id, month.name)
    names = {key.id: key.name for key in keys_of_tenant(tenant).filter(revoked_at=None)}
    by_scope: dict[str, list[Meter]] = {scope: [] for scope in _TITLES}
    for limit in terms.limits:
        meter = Meter(
            id=meter_id(limit.scope, limit.id, limit.kind),
            label=LABELS[limit.kind],
            whose=_whose(limit, tenant, names),
            value=limit.value,
            unit="usd" if limit.kind == "monthly_budget" else "",
            resets=_resets(limit.kind, month_ends, tenant.time_zone),
            is_from_plan=limit.is_from_plan,
            used=micros_up(spent.get(_scope_of(limit), 0)) if limit.kind == "monthly_budget" else 0,
        )
        by_scope[limit.scope].append(meter)
    return LimitPage(
        lead=f"Plan {terms.plan}, up to the {terms.tier_ceiling} tier. Months are those of {tenant.time_zone}.",
        groups=[Group(*_TITLES[scope], meters) for scope, meters in by_scope.items() if meters],
        rate_error=_example(terms, "requests_per_minute", 60),
        model_error=_model_example(terms),
        budget_error=_example(terms, "monthly_budget", 5_000_000),
    )


def _scope_of(limit: Any) -> tuple[str, str]:
    """As months name it."""
    return (limit.id if limit.scope == "key" else "", limit.id.partition("/")[2] if limit.scope == "model" else "")


def _whose(limit: Any, tenant: Any, names: dict[str, str]) -> str:
    if limit.scope == "key":
        return f"Key {names.get(limit.id, limit.id)}"
    if limit.scope == "model":
        return f"Model {limit.id.partition('/')[2]}"
    return f"All of {tenant.name}"


def _resets(kind: str, month_ends: datetime, zone: str) -> str | SafeString:
    if kind == "monthly_budget":
        return SafeString(f"Resets {ago(month_ends)}")
    return "Waits, never refuses" if kind == "concurrent_requests" else "Over any 60 seconds"


def _model_example(terms: TermsInForce) -> str:
    """Of the first limit of a single model that refuses rather than waits."""
    found = [limit for limit in terms.limits if limit.scope == "model" and limit.kind != "concurrent_requests"]
    return _answer(*limit_error_example(found[0].kind, found[0].value, "model")) if found else ""


def _example(terms: TermsInForce, kind: str, else_value: int) -> str:
    """Of the tenant's own limit if it has one, made by the code that answers clients."""
    values = [limit.value for limit in terms.limits if limit.kind == kind and limit.scope == "tenant"]
    return _answer(*limit_error_example(kind, values[0] if values else else_value))


def _answer(status: str, headers: list[tuple[str, str]], body: dict[str, Any]) -> str:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers), "", json.dumps(body, indent=2)]
    return "\n".join(lines)

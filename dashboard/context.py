"""What every page of the site is given."""

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from dashboard.api_address import api_url
from tenants.selectors import tenants_of

# (address, label, icon, action that shows it), by group
NAVIGATION = (
    (
        "Build",
        (
            ("overview", "Overview", "layout-dashboard", "view_tenant"),
            ("playground", "Playground", "message-square", "use_playground"),
            ("keys", "API keys", "key-round", "view_keys"),
            ("models", "Models", "box", "view_tenant"),
        ),
    ),
    (
        "Observe",
        (
            ("usage", "Usage", "chart-column", "view_usage"),
            ("requests", "Requests", "list", "view_requests"),
            ("exports", "Exports", "download", "view_requests"),
            ("limits", "Limits", "gauge", "view_limits"),
        ),
    ),
    (
        "Manage",
        (
            ("members", "Members", "users", "view_members"),
            ("billing", "Billing", "credit-card", "view_billing"),
            ("invoices", "Invoices", "receipt-text", "view_billing"),
            ("webhooks", "Webhooks", "webhook", "view_webhooks"),
            ("audit", "Audit log", "scroll-text", "view_audit"),
            ("settings", "Settings", "settings", "view_tenant"),
        ),
    ),
)

_OPERATOR_PARENTS = {
    "operator_tenant": "operator_tenants",
    "operator_grant": "operator_tenants",
    "operator_price_new": "operator_prices",
    "operator_rates_of": "operator_rates",
    "operator_rate_new": "operator_rates",
    "operator_re_rating_new": "operator_re_ratings",
    "operator_invoice": "operator_invoices",
    "operator_pay": "operator_invoices",
    "operator_credit": "operator_invoices",
}


def site(request: HttpRequest) -> dict[str, Any]:
    seat = getattr(request, "seat", None)
    found: dict[str, Any] = {"seat": seat, "api_url": api_url()}
    if seat is not None:
        match = request.resolver_match
        here = (match.url_name or "").split("_")[0] if match else ""
        shown = [(group, [item for item in items if seat.can[item[3]]]) for group, items in NAVIGATION]
        found["navigation"] = [(group, items) for group, items in shown if items]
        found["here"] = here
    elif hasattr(request, "operator_navigation"):
        name = request.resolver_match.url_name if request.resolver_match else ""
        found["here"] = _OPERATOR_PARENTS.get(name or "", name)
    user = getattr(request, "user", None)
    if user is not None:
        found["memberships"] = SimpleLazyObject(lambda: tenants_of(user))
    return found

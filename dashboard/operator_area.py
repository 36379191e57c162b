"""The operators' own pages: who may open them."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import urlencode

from tenants.selectors import is_operator
from tenants.services.second_factor import owes_second_factor

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]

NAVIGATION = (
    ("operator_tenants", "Tenants", "building-2"),
    ("operator_fleet", "Fleet", "monitor"),
    ("operator_jobs", "Jobs and incidents", "triangle-alert"),
    ("operator_models", "Models", "box"),
    ("operator_rollouts", "Rollouts", "activity"),
    ("operator_evals", "Evals", "circle-check"),
    ("operator_pools", "Pools", "gauge"),
    ("operator_decisions", "Autoscaler", "sliders-horizontal"),
    ("operator_reports", "Reports", "chart-column"),
    ("operator_exports", "Exports", "download"),
    ("operator_prices", "Prices", "tag"),
    ("operator_rates", "Rates and costs", "landmark"),
    ("operator_re_ratings", "Re-ratings", "rotate-ccw"),
    ("operator_invoices", "Invoices", "receipt-text"),
    ("operator_close", "Close a month", "lock"),
    ("operator_adjustments", "Adjustments", "pencil"),
    ("operator_reconciliations", "Reconciliation", "shield-check"),
)
"""(address, label, icon)"""


def operators_only(view: View[P]) -> Callable[..., HttpResponseBase]:
    """Strangers log in; who is no operator is told that there is nothing; who has a second factor has used it."""

    @wraps(view)
    def page(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path(), reverse("admin:login"))
        if not is_operator(request.user):
            raise Http404("there is no such page")
        if owes_second_factor(request):
            following = request.get_full_path() if request.method == "GET" else reverse("operator_tenants")
            return redirect(f"{reverse('mfa_reauthenticate')}?{urlencode({'next': following})}")
        request.operator_navigation = NAVIGATION  # type: ignore[attr-defined]  # the layout shows it
        return view(request, *args, **kwargs)

    return page


def actor_of(request: HttpRequest) -> str:
    """As the audit log names this person."""
    return f"operator:{request.user}"

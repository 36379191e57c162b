"""Operators: tenants, what they use, their plan; suspend, take back, visit."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from billing.services.balances import debit_balance, grant_credit, refund_credit
from dashboard.confirming import is_confirmed
from dashboard.form_errors import tell
from dashboard.once import nonce_of, once
from dashboard.operator_area import actor_of, operators_only
from dashboard.operator_forms import DebitForm, GrantForm
from dashboard.operator_tenants import refundable_grants, tenant_list, tenant_page
from dashboard.telling import tell_next_page, telling
from headway.errors import HeadwayError
from tenants.access import Role
from tenants.errors import UnknownTenant
from tenants.services.suspension import resume_tenant, suspend_tenant
from tenants.services.tenants import tenant_named
from tenants.services.terms import set_plan
from tenants.services.visits import begin_visit, end_visits


@require_GET
@operators_only
def tenants(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/tenants.html", {"list": tenant_list(request.GET)})


@require_GET
@operators_only
def tenant(request: HttpRequest, tenant: str) -> HttpResponse:
    return _page(request, _found(tenant), GrantForm())


@require_POST
@operators_only
def suspend(request: HttpRequest, tenant: str) -> HttpResponse:
    found = _found(tenant)
    if is_confirmed(request, found.name):
        with telling(request, f"{found.name} is suspended: its keys are refused within a second"):
            suspend_tenant(tenant=found, reason=request.POST.get("reason", ""), actor=actor_of(request))
    return redirect("operator_tenant", found.name)


@require_POST
@operators_only
def resume(request: HttpRequest, tenant: str) -> HttpResponse:
    found = _found(tenant)
    with telling(request, f"{found.name} is served again"):
        resume_tenant(tenant=found, actor=actor_of(request))
    return redirect("operator_tenant", found.name)


@require_POST
@operators_only
def plan(request: HttpRequest, tenant: str) -> HttpResponse:
    found, wanted = _found(tenant), request.POST.get("plan", "")
    if is_confirmed(request, wanted):
        with telling(request, f"{found.name} is on the plan {wanted}"):
            set_plan(tenant=found, plan=wanted, actor=actor_of(request))
    return redirect("operator_tenant", found.name)


@require_POST
@operators_only
def grant(request: HttpRequest, tenant: str) -> HttpResponse:
    found, form = _found(tenant), GrantForm(request.POST)
    if form.is_valid():
        asked = form.cleaned_data
        try:
            with once(request):
                grant_credit(
                    tenant_id=found.id,
                    amount_micros=asked["amount_micros"],
                    kind=asked["kind"],
                    reason=asked["reason"],
                    reference=asked["reference"],
                    expires_at=form.expires_at(),
                    actor=actor_of(request),
                )
            messages.success(request, f"{found.name} may use it at once")
            return redirect("operator_tenant", found.name)
        except HeadwayError as error:
            tell(form, error)
    return _page(request, found, form)


@require_POST
@operators_only
def debit(request: HttpRequest, tenant: str) -> HttpResponse:
    """Through a hold: so it is no transaction, and a form that is posted twice takes once by its own reference."""
    found = _found(tenant)
    form = _debit_form(found, request.POST)
    if not form.is_valid():
        return _page(request, found, GrantForm(), form)
    if is_confirmed(request, found.name):
        asked = form.cleaned_data
        with telling(request, f"It is taken from {found.name}"):
            named = {name: asked[name] for name in ("amount_micros", "reason")}
            named |= {"tenant_id": found.id, "actor": actor_of(request)}
            named["reference"] = asked["reference"] or f"form:{nonce_of(request)}"
            if asked["grant"]:
                refund_credit(grant=form.grants[asked["grant"]], **named)
            else:
                debit_balance(**named)
    return redirect("operator_tenant", found.name)


@require_POST
@operators_only
def visit(request: HttpRequest, tenant: str) -> HttpResponse:
    found, role, reason = _found(tenant), request.POST.get("role", ""), request.POST.get("reason", "")
    try:
        begin_visit(operator=request.user, tenant=found, role=role, reason=reason, actor=actor_of(request))  # type: ignore[arg-type]
    except HeadwayError as error:
        tell_next_page(request, error)
        return redirect("operator_tenant", found.name)
    return redirect("overview", found.name)


@require_POST
@operators_only
def leave(request: HttpRequest) -> HttpResponse:
    if end_visits(operator=request.user, actor=actor_of(request)):  # type: ignore[arg-type]
        messages.success(request, "The visit is over")
    return redirect("operator_tenants")


def _page(request: HttpRequest, found: Any, grant_form: GrantForm, debit_form: DebitForm | None = None) -> HttpResponse:
    debit_form = debit_form or _debit_form(found)
    shown = {"page": tenant_page(found), "roles": list(Role), "grant_form": grant_form, "debit_form": debit_form}
    return render(request, "operator/tenant.html", shown)


def _debit_form(found: Any, posted: Any = None) -> DebitForm:
    return DebitForm(posted, grants=refundable_grants(found), auto_id="debit_%s")


def _found(name: str):  # type: ignore[no-untyped-def]  # a tenant; apps meet at doors, and models are none
    try:
        return tenant_named(name)
    except UnknownTenant as error:
        raise Http404(error.message) from None

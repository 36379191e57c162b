"""Settings of an organisation: its time zone, who is told of what by mail, its plan with what a change of it changes."""

from functools import cache

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.confirming import is_confirmed
from dashboard.form_errors import tell
from dashboard.forms import AlertsForm, SettingsForm
from dashboard.plan_page import plan_offers
from dashboard.seats import Seat, seated
from dashboard.telling import telling
from headway.clean_text import cleaned
from headway.errors import HeadwayError
from headway.months import zone_names
from tenants.access import Action, Role
from tenants.errors import NotAllowed
from tenants.services.alert_mails import alert_roles, set_alert_roles
from tenants.services.plan_choice import choose_plan
from tenants.services.terms import set_limits, set_shadowing

ALERTS = {
    "key.expiring": "A key ends in 7 days, or in one",
    "budget.reached": "50, 80 or 100 % of a hard limit are spent",
    "model.retiring": "A model you use has an end",
    "balance.low": "A balance is down to 20 % of what was paid in last, or used up",
}


@require_http_methods(["GET", "POST"])
@seated(Action.VIEW_TENANT)
def settings(request: HttpRequest, seat: Seat) -> HttpResponse:
    form = SettingsForm(request.POST or None, initial={"time_zone": seat.tenant.time_zone})
    if request.method == "POST" and form.is_valid():
        try:
            if not seat.may(Action.MANAGE_SETTINGS):
                raise NotAllowed("your role may look at settings, not change them")
            zone = form.cleaned_data["time_zone"]
            set_limits(tenant=seat.tenant, limits={}, time_zone=zone, actor=seat.actor, is_self_service=True)
            messages.success(request, "The settings were saved")
            return redirect("settings", seat.tenant.name)
        except HeadwayError as error:
            tell(form, error)
    shown = {"form": form, "zones": _zones(), "offers": plan_offers(seat.tenant), "alerts": _alerts_form(seat)}
    return render(request, "dashboard/settings.html", shown)


@require_POST
@seated(Action.MANAGE_BILLING)
def plan(request: HttpRequest, seat: Seat) -> HttpResponse:
    wanted = cleaned(request.POST.get("plan", ""))
    if is_confirmed(request, wanted):
        with telling(request, f"{seat.tenant.name} is on the plan {wanted}"):
            choose_plan(tenant=seat.tenant, plan=wanted, actor=seat.actor)
    return redirect("settings", seat.tenant.name)


@require_POST
@seated(Action.MANAGE_SETTINGS)
def alerts(request: HttpRequest, seat: Seat) -> HttpResponse:
    form = _alerts_form(seat, request.POST)
    if not form.is_valid():
        messages.error(request, "Nothing was changed: choose roles from the list")
        return redirect("settings", seat.tenant.name)
    with telling(request, "Who is told by mail was saved"):
        set_alert_roles(tenant=seat.tenant, roles=form.cleaned_data, actor=seat.actor)
    return redirect("settings", seat.tenant.name)


@require_POST
@seated(Action.MANAGE_SETTINGS)
def shadow(request: HttpRequest, seat: Seat) -> HttpResponse:
    is_allowed = request.POST.get("is_allowed") == "yes"
    said = "Requests may be mirrored" if is_allowed else "No request of yours is mirrored"
    with telling(request, f"{said}: gateways know within a second"):
        set_shadowing(tenant=seat.tenant, is_allowed=is_allowed, actor=seat.actor)
    return redirect("settings", seat.tenant.name)


def _alerts_form(seat: Seat, data: QueryDict | None = None) -> AlertsForm:
    initial = alert_roles(seat.tenant)
    kinds = {kind: ALERTS[kind] for kind in initial}
    return AlertsForm(data, initial=initial, kinds=kinds, roles=list(Role))


@cache
def _zones() -> list[str]:
    """Of this machine; looking for them reads hundreds of files."""
    return sorted(zone_names())

"""Settings of an organisation: its time zone and its plan, with what a change of plan changes."""

from functools import cache

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.confirming import is_confirmed
from dashboard.form_errors import tell
from dashboard.forms import SettingsForm
from dashboard.plan_page import plan_offers
from dashboard.seats import Seat, seated
from dashboard.telling import telling
from headway.clean_text import cleaned
from headway.errors import HeadwayError
from headway.months import zone_names
from tenants.access import Action
from tenants.errors import NotAllowed
from tenants.services.plan_choice import choose_plan
from tenants.services.terms import set_limits


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
    shown = {"form": form, "zones": _zones(), "offers": plan_offers(seat.tenant)}
    return render(request, "dashboard/settings.html", shown)


@require_POST
@seated(Action.MANAGE_BILLING)
def plan(request: HttpRequest, seat: Seat) -> HttpResponse:
    wanted = cleaned(request.POST.get("plan", ""))
    if is_confirmed(request, wanted):
        with telling(request, f"{seat.tenant.name} is on the plan {wanted}"):
            choose_plan(tenant=seat.tenant, plan=wanted, actor=seat.actor)
    return redirect("settings", seat.tenant.name)


@cache
def _zones() -> list[str]:
    """Of this machine; looking for them reads hundreds of files."""
    return sorted(zone_names())

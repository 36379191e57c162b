"""What can be called, and which version of it answers."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from dashboard.catalogue import catalogue
from dashboard.seats import Seat, seated
from dashboard.telling import telling
from headway.clean_text import cleaned
from inference.services.rollouts.pins import pin_version, unpin_version
from tenants.access import Action


@require_GET
@seated(Action.VIEW_TENANT)
def models(request: HttpRequest, seat: Seat) -> HttpResponse:
    return render(request, "dashboard/models.html", {"models": catalogue(seat.tenant.id)})


@require_POST
@seated(Action.MANAGE_SETTINGS)
def pin(request: HttpRequest, seat: Seat) -> HttpResponse:
    """A blank version: the stable one, whichever that is."""
    model, label = cleaned(request.POST.get("model", "")), cleaned(request.POST.get("version", ""))
    if label:
        with telling(request, f"{model}: you stay on {label}, until it retires"):
            pin_version(tenant=seat.tenant, public_id=model, label=label, actor=seat.actor, is_self_service=True)
    else:
        with telling(request, f"{model}: you go with the stable version"):
            unpin_version(tenant=seat.tenant, public_id=model, actor=seat.actor)
    return redirect("models", seat.tenant.name)

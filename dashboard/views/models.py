"""What can be called."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.catalogue import catalogue
from dashboard.seats import Seat, seated
from tenants.access import Action


@require_GET
@seated(Action.VIEW_TENANT)
def models(request: HttpRequest, seat: Seat) -> HttpResponse:
    return render(request, "dashboard/models.html", {"models": catalogue()})

"""The first page of an organisation: how today goes, and what a newcomer does next."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.overview import overview_of
from dashboard.seats import Seat, seated
from tenants.access import Action


@require_GET
@seated(Action.VIEW_TENANT)
def overview(request: HttpRequest, seat: Seat) -> HttpResponse:
    return render(request, "dashboard/overview.html", {"overview": overview_of(seat.tenant)})

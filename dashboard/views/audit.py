"""The audit log."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.audit_log import audit_log
from dashboard.seats import Seat, seated
from tenants.access import Action


@require_GET
@seated(Action.VIEW_AUDIT)
def audit(request: HttpRequest, seat: Seat) -> HttpResponse:
    return render(request, "dashboard/audit.html", {"log": audit_log(seat.tenant, request.GET)})

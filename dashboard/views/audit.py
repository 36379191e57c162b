"""The audit log, and the same as a file."""

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.audit_log import HEAD, audit_log, audit_rows
from dashboard.seats import Seat, seated
from headway.streaming import csv_file
from tenants.access import Action


@require_GET
@seated(Action.VIEW_AUDIT)
def audit(request: HttpRequest, seat: Seat) -> HttpResponse:
    return render(request, "dashboard/audit.html", {"log": audit_log(seat.tenant, request.GET)})


@require_GET
@seated(Action.VIEW_AUDIT)
def export(request: HttpRequest, seat: Seat) -> HttpResponseBase:
    rows = audit_rows(seat.tenant, request.GET)
    return csv_file(request, name=f"headway-audit-{seat.tenant.name}.csv", head=HEAD, rows=rows)

"""Usage over time, and the same as a file."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from dashboard.seats import Seat, seated
from dashboard.usage_page import usage_csv, usage_page
from tenants.access import Action


@require_GET
@seated(Action.VIEW_USAGE)
def usage(request: HttpRequest, seat: Seat) -> HttpResponse:
    return render(request, "dashboard/usage.html", {"usage": usage_page(seat.tenant, request.GET, timezone.now())})


@require_GET
@seated(Action.VIEW_USAGE)
def export(request: HttpRequest, seat: Seat) -> HttpResponse:
    text = usage_csv(seat.tenant, request.GET, timezone.now())
    name = f"headway-usage-{seat.tenant.name}.csv"
    return HttpResponse(
        text, content_type="text/csv; charset=utf-8", headers={"content-disposition": f'attachment; filename="{name}"'}
    )

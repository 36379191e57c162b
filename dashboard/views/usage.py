"""Usage over time, the same as a file, the requests behind it as another, and views that a member keeps."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from dashboard.request_file import head, request_rows
from dashboard.seats import Seat, seated
from dashboard.services.saved_views import delete_view, save_view, views_of
from dashboard.telling import tell_next_page
from dashboard.usage_page import billed_in, usage_csv, usage_page
from headway.errors import HeadwayError
from headway.streaming import csv_file
from tenants.access import Action


@require_GET
@seated(Action.VIEW_USAGE)
def usage(request: HttpRequest, seat: Seat) -> HttpResponse:
    now = timezone.now()
    page = usage_page(seat.tenant, request.GET, now)
    billed = billed_in(seat.tenant, page.query, now) if seat.may(Action.VIEW_BILLING) else []
    return render(request, "dashboard/usage.html", {"usage": page, "billed": billed, "views": views_of(seat.tenant, seat.user)})


@require_GET
@seated(Action.VIEW_USAGE)
def export(request: HttpRequest, seat: Seat) -> HttpResponse:
    text = usage_csv(seat.tenant, request.GET, timezone.now())
    name = f"headway-usage-{seat.tenant.name}.csv"
    return HttpResponse(
        text, content_type="text/csv; charset=utf-8", headers={"content-disposition": f'attachment; filename="{name}"'}
    )


@require_GET
@seated(Action.VIEW_REQUESTS)
def export_requests(request: HttpRequest, seat: Seat) -> HttpResponseBase:
    try:
        query, rows = request_rows(seat.tenant, request.GET, timezone.now())
    except HeadwayError as error:
        tell_next_page(request, error)
        return redirect(f"{reverse('usage', args=[seat.tenant.name])}?{request.GET.urlencode()}")
    return csv_file(request, name=f"headway-requests-{seat.tenant.name}.csv", head=head(query), rows=rows)


@require_POST
@seated(Action.VIEW_USAGE)
def save(request: HttpRequest, seat: Seat) -> HttpResponse:
    try:
        view = save_view(
            tenant=seat.tenant, member=seat.user, name=request.POST.get("name", ""), query=request.POST.get("query", "")
        )
    except HeadwayError as error:
        tell_next_page(request, error)
        return redirect("usage", seat.tenant.name)
    messages.success(request, f"The view {view.name} is kept for you")
    return redirect(f"{reverse('usage', args=[seat.tenant.name])}?{view.query}")


@require_POST
@seated(Action.VIEW_USAGE)
def delete(request: HttpRequest, seat: Seat, view_id: int) -> HttpResponse:
    if view_id < 2**63 and delete_view(tenant=seat.tenant, member=seat.user, view_id=view_id):
        messages.success(request, "The view is deleted")
    else:
        messages.error(request, "There is no such view of yours")
    return redirect("usage", seat.tenant.name)

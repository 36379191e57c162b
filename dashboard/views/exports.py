"""Requests of an organisation as a file of any size, made by a worker."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from billing.services.exports import cancel_export, export_requests
from dashboard.export_list import days_of, export_file, export_list
from dashboard.once import once
from dashboard.seats import Seat, seated
from dashboard.telling import telling
from tenants.access import Action


@require_GET
@seated(Action.VIEW_REQUESTS)
def exports(request: HttpRequest, seat: Seat) -> HttpResponse:
    return render(request, "dashboard/exports.html", {"list": export_list(seat.tenant, request.GET, timezone.now())})


@require_POST
@seated(Action.VIEW_REQUESTS)
def new(request: HttpRequest, seat: Seat) -> HttpResponse:
    email, posted = seat.user.email, request.POST
    with telling(request, f"The file is being made{'; a mail tells you when it is ready' if email else ''}"), once(request):
        first, last = days_of(posted)
        model, key = posted.get("model", "")[:200], posted.get("key", "")[:16]
        export_requests(tenant=seat.tenant, first=first, last=last, actor=seat.actor, email=email, model=model, key=key)
    return redirect("exports", seat.tenant.name)


@require_GET
@seated(Action.VIEW_REQUESTS)
def download(request: HttpRequest, seat: Seat, export_id: UUID) -> HttpResponseBase:
    return export_file(request, export_id, tenant_id=seat.tenant.id)


@require_POST
@seated(Action.VIEW_REQUESTS)
def cancel(request: HttpRequest, seat: Seat, export_id: UUID) -> HttpResponse:
    with telling(request, "The file is made no further"):
        cancel_export(export_id, tenant_id=seat.tenant.id, actor=seat.actor)
    return redirect("exports", seat.tenant.name)

"""Operators: the ledger of a month as a file, made by a worker."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from billing.services.exports import cancel_export, export_ledger
from dashboard.export_list import export_file, export_list
from dashboard.once import once
from dashboard.operator_area import actor_of, operators_only
from dashboard.telling import telling


@require_GET
@operators_only
def exports(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/exports.html", {"list": export_list(None, request.GET, timezone.now())})


@require_POST
@operators_only
def new(request: HttpRequest) -> HttpResponse:
    email = getattr(request.user, "email", "")
    with telling(request, f"The file is being made{'; a mail tells you when it is ready' if email else ''}"), once(request):
        export_ledger(month=request.POST.get("month", ""), actor=actor_of(request), email=email)
    return redirect("operator_exports")


@require_GET
@operators_only
def download(request: HttpRequest, export_id: UUID) -> HttpResponseBase:
    return export_file(request, export_id, tenant_id=None)


@require_POST
@operators_only
def cancel(request: HttpRequest, export_id: UUID) -> HttpResponse:
    with telling(request, "The file is made no further"):
        cancel_export(export_id, tenant_id=None, actor=actor_of(request))
    return redirect("operator_exports")

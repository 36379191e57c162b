"""Operators: jobs and incidents."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from dashboard.operator_area import operators_only
from dashboard.operator_jobs import jobs_page
from workers.services.outbox import try_again


@require_GET
@operators_only
def jobs(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/jobs.html", {"page": jobs_page()})


@require_POST
@operators_only
def again(request: HttpRequest, entry_id: int) -> HttpResponse:
    """Of one that was given up."""
    if try_again(entry_id):
        messages.success(request, f"Job {entry_id} is tried again")
    else:
        messages.info(request, f"Job {entry_id} was not given up: it is done, or tried again by itself")
    return redirect("operator_jobs")

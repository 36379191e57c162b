"""Operators: does the ledger agree with the engines' own counters?"""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from billing.services.reconcile_runs import ask_for_reconciliation
from dashboard.once import once
from dashboard.operator_area import actor_of, operators_only
from dashboard.operator_reconciliation import run_list, run_page
from dashboard.telling import telling
from headway.errors import NotFound


@require_GET
@operators_only
def runs(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/reconciliations.html", {"list": run_list(request.GET, timezone.now())})


@require_POST
@operators_only
def ask(request: HttpRequest) -> HttpResponse:
    with telling(request, "Ledger and engines are being compared: within half a minute it is here"), once(request):
        ask_for_reconciliation(actor=actor_of(request))
    return redirect("operator_reconciliations")


@require_GET
@operators_only
def run(request: HttpRequest, run_id: int) -> HttpResponse:
    try:
        return render(request, "operator/reconciliation.html", {"page": run_page(run_id, timezone.now())})
    except NotFound as error:
        raise Http404(error.message) from None

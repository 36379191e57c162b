"""Operators: correct what a request cost, or give something for nothing; each a further line of the ledger."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_POST

from billing.services.adjustments import MAX_PICOS, adjust_usage
from dashboard.form_errors import tell
from dashboard.once import once
from dashboard.operator_adjustments import adjustment_list, record_found
from dashboard.operator_area import actor_of, operators_only
from dashboard.operator_forms import AdjustmentForm
from headway.errors import HeadwayError
from headway.money import PICOS_A_USD, usd_to_picos
from tenants.services.tenants import tenant_named


@require_GET
@operators_only
def adjustments(request: HttpRequest) -> HttpResponse:
    return _page(request)


@require_POST
@operators_only
def adjust(request: HttpRequest, request_id: str) -> HttpResponse:
    found, form = record_found(request_id), _form(False, request.POST)
    if found is None:
        raise Http404("there is no such request")
    if form.is_valid() and _is_made(request, form, found.record.tenant_id, request_id, form.cleaned_data["kind"]):
        return redirect(f"{reverse('operator_adjustments')}?{urlencode({'q': request_id})}")
    return _page(request, request_id, adjust_form=form)


@require_POST
@operators_only
def goodwill(request: HttpRequest) -> HttpResponse:
    form = _form(True, request.POST)
    if form.is_valid():
        try:
            tenant_id = tenant_named(form.cleaned_data["tenant"]).id
        except HeadwayError as error:
            tell(form, error)
        else:
            if _is_made(request, form, tenant_id, None, "goodwill"):
                return redirect("operator_adjustments")
    return _page(request, goodwill_form=form)


def _is_made(request: HttpRequest, form: AdjustmentForm, tenant_id: Any, request_id: str | None, kind: str) -> bool:
    """False: the form says why not."""
    try:
        amount_picos = usd_to_picos(form.cleaned_data["amount_usd"], param="amount_usd", max_usd=MAX_PICOS // PICOS_A_USD)
        with once(request):
            made = adjust_usage(
                tenant_id=tenant_id,
                request_id=request_id,
                amount_picos=amount_picos,
                kind=kind,
                reason=form.cleaned_data["reason"],
                actor=actor_of(request),
            )
    except HeadwayError as error:
        tell(form, error)
        return False
    messages.success(request, f"It is on the statement of {made.billing_month}")
    return True


def _page(request: HttpRequest, request_id: str = "", **forms: AdjustmentForm) -> HttpResponse:
    asked = {"q": request_id} if request_id else request.GET
    shown = {
        "list": adjustment_list(asked),
        "adjust_form": _form(False),
        "goodwill_form": _form(True),
    }
    return render(request, "operator/adjustments.html", {**shown, **forms})


def _form(of_nothing: bool, posted: Any = None) -> AdjustmentForm:
    return AdjustmentForm(posted, of_nothing=of_nothing, auto_id="goodwill_%s" if of_nothing else "adjust_%s")

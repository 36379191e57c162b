"""Operators: pools, how they scale, and what the autoscaler decided."""

from dataclasses import dataclass

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from dashboard.confirming import is_confirmed
from dashboard.form_errors import tell
from dashboard.operator_area import actor_of, operators_only
from dashboard.paging import by_id
from dashboard.pool_charts import pool_charts
from dashboard.pool_forms import PoolForm
from dashboard.telling import telling
from headway.errors import HeadwayError
from inference.selectors import brain_seen_now
from inference.services.pool_overview import PoolOverview, decisions_of, pools_overview
from inference.services.pools import set_pool
from inference.services.restarts import cancel_restart, restart_model


@dataclass(frozen=True)
class PoolPanel:
    it: PoolOverview
    form: PoolForm


@require_GET
@operators_only
def pools(request: HttpRequest) -> HttpResponse:
    return _page(request)


def _page(request: HttpRequest, *, posted: PoolForm | None = None, pool_id: int | None = None) -> HttpResponse:
    found = pools_overview(brain_seen_now())
    panels = [PoolPanel(one, posted if posted and one.id == pool_id else PoolForm.of(one.pool)) for one in found]
    charts = pool_charts(found, request.GET, timezone.now())
    shown = {"panels": panels, "charts": charts, "has_starts": any(one.starts for one in found)}
    return render(request, "operator/pools.html", shown, status=400 if posted else 200)


@require_POST
@operators_only
def change(request: HttpRequest, pool_id: int) -> HttpResponse:
    """Posted twice it is what it is: no form here makes anything."""
    model = _model_of(pool_id)
    form = PoolForm(request.POST, auto_id=f"id_{pool_id}_%s")
    if form.is_valid():
        try:
            set_pool(public_id=model, changes=form.cleaned_data, actor=actor_of(request))
            messages.success(request, f"{model}: gateways and the autoscaler know within seconds")
            return redirect("operator_pools")
        except HeadwayError as error:
            tell(form, error)
    return _page(request, posted=form, pool_id=pool_id)


@require_POST
@operators_only
def restart(request: HttpRequest, pool_id: int) -> HttpResponse:
    model = _model_of(pool_id)
    if is_confirmed(request, model):
        with telling(request, f"{model}: its replicas are restarted one after the other"):
            restart_model(public_id=model, actor=actor_of(request))
    return redirect("operator_pools")


@require_POST
@operators_only
def cancel(request: HttpRequest, pool_id: int) -> HttpResponse:
    model = _model_of(pool_id)
    with telling(request, f"{model}: no further replica is restarted"):
        cancel_restart(public_id=model, actor=actor_of(request))
    return redirect("operator_pools")


def _model_of(pool_id: int) -> str:
    """Raises Http404."""
    model = next((one.model for one in pools_overview(None) if one.id == pool_id), None)
    if model is None:
        raise Http404("there is no such pool")
    return model


@require_GET
@operators_only
def decisions(request: HttpRequest) -> HttpResponse:
    asked = request.GET.get("pool", "")
    pool_id = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else None
    page = by_id(decisions_of(pool_id), request.GET.get("page", ""))
    choices = [(one.id, one.model) for one in pools_overview(None)]
    return render(request, "operator/decisions.html", {"page": page, "pools": choices, "pool_id": pool_id})

"""Operators: models, their versions, and how two of them differ."""

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_POST

from billing.selectors import list_prices
from dashboard.confirming import is_confirmed
from dashboard.operator_area import actor_of, operators_only
from dashboard.operator_registry import compared_rows
from dashboard.rollout_forms import RetireForm
from dashboard.telling import telling
from headway.errors import NotFound
from inference.selectors import weight_copies
from inference.services.registry_reads import ModelPage, model_page, model_rows
from inference.services.weight_copies import stage_version
from tenants.services.alerts import announce_version_retirement


@require_GET
@operators_only
def models(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/models.html", {"rows": model_rows()})


@require_GET
@operators_only
def model(request: HttpRequest, model: int) -> HttpResponse:
    page = _found(model)
    shown: dict[str, Any] = {"page": page, "price": list_prices().get(page.model.public_id), "retire_form": RetireForm()}
    now = timezone.now()
    copies = weight_copies(now, model=page.model.public_id)
    shown["copies"] = [(copy, now - timedelta(seconds=copy.since_s)) for copy in copies]
    rows = {row.label: row for row in page.rows}
    before, after = request.GET.get("before", ""), request.GET.get("after", "")
    if before in rows and after in rows:
        differences = compared_rows(page.model, rows[before], rows[after], shown["price"])
        shown |= {"before": before, "after": after, "differences": differences}
    return render(request, "operator/model.html", shown)


@require_POST
@operators_only
def retire(request: HttpRequest, model: int, label: str) -> HttpResponse:
    """Its name is typed; those who stay on it are told."""
    page, form = _found(model), RetireForm(request.POST)
    if not form.is_valid():
        messages.error(request, "Nothing was changed: give the day on which it goes")
    elif is_confirmed(request, f"{page.model} {label}"):
        with telling(request, f"{label} retires; those who stay on it are told"):
            public_id, actor = page.model.public_id, actor_of(request)
            announce_version_retirement(model=public_id, version=label, retires_at=form.at(), actor=actor)
    return redirect("operator_model", model)


@require_POST
@operators_only
def stage(request: HttpRequest, model: int) -> HttpResponse:
    """Want a version on every node that can run it; what failed or was evicted there is tried again."""
    page, label = _found(model), request.POST.get("version", "")
    version = next((row.version for row in page.rows if row.label == label), None)
    if version is None:
        messages.error(request, "Nothing was changed: choose one of its versions")
    else:
        with telling(request, f"{label} is wanted on every node that can run it"):
            stage_version(version=version, actor=actor_of(request))
    return redirect("operator_model", model)


def _found(model: int) -> ModelPage:
    try:
        return model_page(model)
    except NotFound as error:
        raise Http404(error.message) from None

"""Operators: releases. What takes a version out of service, or puts one in at once, is typed."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from dashboard.confirming import is_confirmed
from dashboard.form_errors import tell
from dashboard.once import once
from dashboard.operator_area import actor_of, operators_only
from dashboard.operator_rollouts import rollout_list, rollout_page
from dashboard.rollout_forms import RolloutForm
from dashboard.telling import telling
from headway.clean_text import cleaned
from headway.errors import HeadwayError, NotFound
from inference.services.registry_reads import ModelPage, model_page
from inference.services.rollouts.approving import approve_rollout
from inference.services.rollouts.moves import rollout_numbered
from inference.services.rollouts.operating import (
    abort_rollout,
    create_rollout,
    pause_rollout,
    promote_rollout,
    resume_rollout,
    roll_back_rollout,
    start_rollout,
)

PLAIN: dict[str, tuple[Callable[..., None], str]] = {
    "start": (start_rollout, "The rollout begins"),
    "pause": (pause_rollout, "The rollout is paused: its share stays"),
    "resume": (resume_rollout, "The rollout goes on where it was"),
}
TYPED: dict[str, tuple[Callable[..., None], str, str]] = {
    "approve": (approve_rollout, "to_version", "Approved: {} is promoted once its steps are through"),
    "promote": (promote_rollout, "to_version", "{} is promoted as soon as replicas enough of it serve"),
    "roll-back": (roll_back_rollout, "from_version", "On the way back to {}"),
    "abort": (abort_rollout, "from_version", "The rollout ends: {} stays stable"),
}
"""What does it, the version that is typed, what is said then."""


@require_GET
@operators_only
def rollouts(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/rollouts.html", {"list": rollout_list(request.GET)})


@require_GET
@operators_only
def rollout(request: HttpRequest, number: int) -> HttpResponse:
    return render(request, "operator/rollout.html", {"page": rollout_page(_found(number), actor=actor_of(request))})


@require_http_methods(["GET", "POST"])
@operators_only
def new(request: HttpRequest, model: int) -> HttpResponse:
    page = _model(model)
    versions = [row.label for row in page.rows if row.may_be_released]
    form = RolloutForm(request.POST or None, versions=versions, initial={"to": request.GET.get("to", "")})
    if request.method == "POST" and form.is_valid():
        try:
            with once(request):
                made = create_rollout(
                    public_id=page.model.public_id,
                    to=form.cleaned_data["to"],
                    actor=actor_of(request),
                    schedule=form.schedule(),
                    gates=form.gates(),
                    window_s=form.cleaned_data["window_s"],
                    kept_warm=form.cleaned_data["kept_warm"],
                    scheduled_for=form.starts_at(),
                )
            messages.success(request, "The rollout is drafted: nothing has changed yet")
            return redirect("operator_rollout", made.pk)
        except HeadwayError as error:
            tell(form, error)
    return render(request, "operator/rollout_new.html", {"form": form, "page": page, "versions": versions})


@require_POST
@operators_only
def act(request: HttpRequest, number: int, verb: str) -> HttpResponse:
    found = _found(number)
    if verb in PLAIN:
        does, said = PLAIN[verb]
        with telling(request, said):
            does(rollout=found, actor=actor_of(request))
    elif verb in TYPED:
        does, version, said = TYPED[verb]
        target = str(getattr(found, version))
        if is_confirmed(request, target):
            reason = cleaned(request.POST.get("reason", "")).strip()[:500]
            with telling(request, said.format(target)):
                does(rollout=found, actor=actor_of(request), reason=reason)
    else:
        raise Http404("there is no such page")
    return redirect("operator_rollout", number)


def _found(number: int) -> Any:
    try:
        return rollout_numbered(number)
    except NotFound as error:
        raise Http404(error.message) from None


def _model(model: int) -> ModelPage:
    try:
        return model_page(model)
    except NotFound as error:
        raise Http404(error.message) from None

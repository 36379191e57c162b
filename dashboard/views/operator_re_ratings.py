"""Operators: requests that are rated again by another price. What it would change is shown before a worker does it."""

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from billing.services.re_rating_runs import ask_to_re_rate, carry_on_again
from dashboard.confirming import is_confirmed
from dashboard.form_errors import tell
from dashboard.once import once
from dashboard.operator_area import actor_of, operators_only
from dashboard.operator_rate_forms import ReRatingForm
from dashboard.operator_re_ratings import Preview, preview_re_rating, run_list, span_asked
from headway.errors import HeadwayError, NotFound


@require_GET
@operators_only
def re_ratings(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/re_ratings.html", {"list": run_list(request.GET, timezone.now())})


@require_http_methods(["GET", "POST"])
@operators_only
def new(request: HttpRequest) -> HttpResponse:
    """Posted once it is tried; posted with the model's name typed a worker is asked to do it."""
    initial = {name: request.GET.get(name, "") for name in ("model", "version")}
    form, preview = ReRatingForm(request.POST or None, initial=initial), None
    if request.method == "POST" and form.is_valid():
        try:
            if "confirm" in request.POST and is_confirmed(request, form.cleaned_data["model"]):
                with once(request):
                    asked = {"span": span_asked(form.cleaned_data), "reason": form.cleaned_data["reason"]}
                    ask_to_re_rate(**asked, actor=actor_of(request))
                messages.success(request, "It is asked for: this page shows how far it is")
                return redirect("operator_re_ratings")
            preview = _preview(form)
        except HeadwayError as error:
            tell(form, error)
    return render(request, "operator/re_rating_new.html", {"form": form, "preview": preview})


@require_POST
@operators_only
def again(request: HttpRequest, run_id: int) -> HttpResponse:
    """Of one that was cut off."""
    try:
        if carry_on_again(run_id, actor=actor_of(request)):
            messages.success(request, "A worker carries it on")
        else:
            messages.info(request, "It has ended, or somebody is at it")
    except NotFound as error:
        raise Http404(error.message) from None
    return redirect("operator_re_ratings")


def _preview(form: ReRatingForm) -> Preview:
    return preview_re_rating(span_asked(form.cleaned_data))

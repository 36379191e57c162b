"""Operators: tax rates, exchange rates, what machines cost. A new one is shown beside what holds before it is set."""

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods

from dashboard.confirming import is_confirmed
from dashboard.form_errors import tell
from dashboard.once import once
from dashboard.operator_area import actor_of, operators_only
from dashboard.operator_rates import KINDS, Kind, RatePreview, preview_rate, rate_list
from headway.errors import HeadwayError
from inference.services.uptime import machine_kinds


@require_GET
@operators_only
def rates(request: HttpRequest, kind: str = "tax") -> HttpResponse:
    found = rate_list(_kind(kind), request.GET, timezone.now())
    return render(request, "operator/rates.html", {"list": found})


@require_http_methods(["GET", "POST"])
@operators_only
def new(request: HttpRequest, kind: str) -> HttpResponse:
    """Posted once it is shown; posted with the country, currency, machine or model typed it is set."""
    of = _kind(kind)
    form = of.form(request.POST or None, initial={of.scope[0]: request.GET.get("whose", "")})
    preview: RatePreview | None = None
    if request.method == "POST" and form.is_valid():
        try:
            preview = preview_rate(of, form.cleaned_data, timezone.now())
            if "confirm" in request.POST and is_confirmed(request, preview.word):
                with once(request):
                    of.set(**of.arguments(form.cleaned_data), actor=actor_of(request))
                messages.success(request, f"{preview.whose}: {preview.after} is set")
                return redirect("operator_rates_of", of.slug)
        except HeadwayError as error:
            tell(form, error)
    kinds = machine_kinds() if of.slug == "machines" else ()
    shown = {"kind": of, "form": form, "preview": preview, "machine_kinds": kinds}
    return render(request, "operator/rate_new.html", shown)


def _kind(slug: str) -> Kind:
    if slug not in KINDS:
        raise Http404("there is no such kind of rate")
    return KINDS[slug]

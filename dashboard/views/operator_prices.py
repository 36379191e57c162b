"""Operators: prices. A new one is shown with what it would have made of last month before it is set."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from billing.services.prices import set_price
from dashboard.confirming import is_confirmed
from dashboard.form_errors import tell
from dashboard.once import once
from dashboard.operator_area import actor_of, operators_only
from dashboard.operator_forms import PriceForm
from dashboard.operator_prices import Preview, preview_price, price_list
from headway.errors import HeadwayError


@require_GET
@operators_only
def prices(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/prices.html", {"list": price_list(request.GET)})


@require_http_methods(["GET", "POST"])
@operators_only
def new(request: HttpRequest) -> HttpResponse:
    """Posted once it is shown; posted with the model's name typed it is set."""
    form = PriceForm(request.POST or None, initial={"model": request.GET.get("model", "")})
    preview: Preview | None = None
    if request.method == "POST" and form.is_valid():
        asked = form.cleaned_data
        try:
            preview = preview_price(asked)
            if "confirm" in request.POST and is_confirmed(request, asked["model"]):
                is_meant = bool(request.POST.get("is_meant"))
                with once(request):
                    price = set_price(**asked, is_confirmed=is_meant, actor=actor_of(request))
                messages.success(request, f"Version {price.version} of {price.model}: gateways know within a second")
                return redirect("operator_prices")
        except HeadwayError as error:
            tell(form, error)
    return render(request, "operator/price_new.html", {"form": form, "preview": preview})

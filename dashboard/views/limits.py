"""The limits of an organisation: what is used of each now, and changing them."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from dashboard.form_errors import tell
from dashboard.forms import LimitsForm
from dashboard.key_forms import initial_limits, limits_from
from dashboard.limit_page import limit_page
from dashboard.seats import Seat, seated
from headway.errors import HeadwayError
from tenants.access import Action
from tenants.errors import NotAllowed
from tenants.selectors import own_limits
from tenants.services.terms import set_limits


@require_http_methods(["GET", "POST"])
@seated(Action.VIEW_LIMITS)
def limits(request: HttpRequest, seat: Seat) -> HttpResponse:
    current = own_limits(seat.tenant)
    form = LimitsForm(request.POST or None, initial=initial_limits(current))
    if request.method == "POST" and form.is_valid():
        try:
            if not seat.may(Action.MANAGE_LIMITS):
                raise NotAllowed("your role may look at limits, not change them")
            limits = limits_from(form.cleaned_data, current)
            set_limits(tenant=seat.tenant, limits=limits, actor=seat.actor, is_self_service=True)
            messages.success(request, "The limits hold within a second")
            return redirect("limits", seat.tenant.name)
        except HeadwayError as error:
            tell(form, error)
    status = 200 if seat.may(Action.MANAGE_LIMITS) or request.method == "GET" else 403
    return render(request, "dashboard/limits.html", {"page": limit_page(seat.tenant), "form": form}, status=status)

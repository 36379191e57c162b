"""Billing of an organisation: its next invoice, credit and budget; who is billed is changed here."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from billing.services.own_account import change_own_account
from billing.services.top_ups import set_top_up
from dashboard.billing_forms import account_form, top_up_form
from dashboard.billing_page import billing_page
from dashboard.form_errors import tell
from dashboard.seats import Seat, seated
from headway.errors import HeadwayError
from tenants.access import Action
from tenants.errors import NotAllowed


@require_http_methods(["GET", "POST"])
@seated(Action.VIEW_BILLING)
def billing(request: HttpRequest, seat: Seat) -> HttpResponse:
    page, may = billing_page(seat.tenant), seat.may(Action.MANAGE_BILLING)
    form = account_form(page.account, seat.tenant.time_zone, request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            if not may:
                raise NotAllowed("your role may look at billing, not change it")
            change_own_account(tenant_id=seat.tenant.id, actor=seat.actor, **form.cleaned_data)
            messages.success(request, "The billing details were saved: they are on the next invoice")
            return redirect("billing", seat.tenant.name)
        except HeadwayError as error:
            tell(form, error)
    shown = {"page": page, "form": form, "top_up_form": top_up_form(page.top_up)}
    return render(request, "dashboard/billing.html", shown, status=200 if may or request.method == "GET" else 403)


@require_POST
@seated(Action.MANAGE_BILLING)
def top_up(request: HttpRequest, seat: Seat) -> HttpResponse:
    """What is wanted is kept; nothing charges yet, as the page says."""
    page = billing_page(seat.tenant)
    form = top_up_form(page.top_up, request.POST)
    if form.is_valid():
        try:
            set_top_up(tenant_id=seat.tenant.id, actor=seat.actor, **form.cleaned_data)
            messages.success(request, "What you want of automatic top-ups was saved: nothing is charged yet")
            return redirect("billing", seat.tenant.name)
        except HeadwayError as error:
            tell(form, error)
    shown = {"page": page, "form": account_form(page.account, seat.tenant.time_zone), "top_up_form": form}
    return render(request, "dashboard/billing.html", shown)

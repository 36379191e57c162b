"""Webhooks of an organisation: where events are sent, and each one's deliveries."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from dashboard.confirming import is_confirmed
from dashboard.errors import FormAlreadySent
from dashboard.form_errors import tell
from dashboard.forms import WebhookForm
from dashboard.once import once
from dashboard.paging import by_number
from dashboard.seats import Seat, seated
from dashboard.shown_once import forget, keep_for_next_page, taken
from dashboard.telling import telling
from headway.errors import HeadwayError
from tenants.access import Action
from tenants.errors import NotAllowed, UnknownWebhook
from tenants.selectors import deliveries_of, webhooks_of_tenant
from tenants.services import webhooks as service

EVENTS = [
    ("key.expiring", "key.expiring: a key ends in 7 days, or in one"),
    ("budget.reached", "budget.reached: 50, 80 or 100 % of a hard limit are spent"),
    ("balance.low", "balance.low: a fifth of the newest credit is left, or nothing"),
    ("model.retiring", "model.retiring: a model you use has an end"),
    ("balance.low", "balance.low: 20 % of what was paid in last are left, or nothing"),
]


@never_cache
@require_http_methods(["GET", "POST"])
@seated(Action.VIEW_WEBHOOKS)
def webhooks(request: HttpRequest, seat: Seat) -> HttpResponse:
    form = WebhookForm(request.POST or None, events=EVENTS)
    if request.method == "POST" and form.is_valid():
        try:
            if not seat.may(Action.MANAGE_WEBHOOKS):
                raise NotAllowed("your role may look at webhooks, not change them")
            data = form.cleaned_data
            with once(request):
                made = service.add_endpoint(tenant=seat.tenant, url=data["url"], events=data["events"], actor=seat.actor)
            next_page = redirect("webhooks", seat.tenant.name)
            keep_for_next_page(request, next_page, "webhook", made.secret, tenant=seat.tenant.name)
            return next_page
        except FormAlreadySent:
            return redirect("webhooks", seat.tenant.name)
        except HeadwayError as error:
            tell(form, error)
    found = taken(request, "webhook")
    secret = found[0] if found is not None and found[1]["tenant"] == seat.tenant.name else ""
    shown = {"endpoints": list(webhooks_of_tenant(seat.tenant)), "form": form, "secret": secret}
    response = render(request, "dashboard/webhooks.html", shown)
    if secret:
        forget(response, "webhook")
    return response


@require_GET
@seated(Action.VIEW_WEBHOOKS)
def webhook(request: HttpRequest, seat: Seat, webhook_id: str) -> HttpResponse:
    endpoint = _endpoint(seat, webhook_id)
    page = by_number(deliveries_of(seat.tenant, endpoint.id), request.GET.get("page", ""))
    return render(request, "dashboard/webhook.html", {"endpoint": endpoint, "page": page})


@require_POST
@seated(Action.MANAGE_WEBHOOKS)
def switch(request: HttpRequest, seat: Seat, webhook_id: str) -> HttpResponse:
    endpoint = _endpoint(seat, webhook_id)
    is_enabled = endpoint.disabled_at is not None
    with telling(request, f"The webhook is {'enabled' if is_enabled else 'disabled'}"):
        service.change_endpoint(tenant=seat.tenant, endpoint_id=webhook_id, actor=seat.actor, is_enabled=is_enabled)
    return redirect("webhooks_one", seat.tenant.name, webhook_id)


@require_POST
@seated(Action.MANAGE_WEBHOOKS)
def test(request: HttpRequest, seat: Seat, webhook_id: str) -> HttpResponse:
    with telling(request, "A test event is on its way"), once(request):
        service.send_test(tenant=seat.tenant, endpoint_id=webhook_id, actor=seat.actor)
    return redirect("webhooks_one", seat.tenant.name, webhook_id)


@require_POST
@seated(Action.MANAGE_WEBHOOKS)
def delete(request: HttpRequest, seat: Seat, webhook_id: str) -> HttpResponse:
    endpoint = _endpoint(seat, webhook_id)
    if not is_confirmed(request, endpoint.url):
        return redirect("webhooks_one", seat.tenant.name, webhook_id)
    with telling(request, "The webhook was removed"):
        service.remove_endpoint(tenant=seat.tenant, endpoint_id=webhook_id, actor=seat.actor)
    return redirect("webhooks", seat.tenant.name)


@require_POST
@seated(Action.MANAGE_WEBHOOKS)
def resend(request: HttpRequest, seat: Seat, webhook_id: str, delivery_id: str) -> HttpResponse:
    with telling(request, "It is sent again under the same id"):
        service.resend(tenant=seat.tenant, delivery_id=delivery_id, actor=seat.actor)
    return redirect("webhooks_one", seat.tenant.name, webhook_id)


def _endpoint(seat: Seat, webhook_id: str) -> Any:
    try:
        return service.endpoint_of(seat.tenant, webhook_id)
    except UnknownWebhook as error:
        raise Http404(error.message) from error

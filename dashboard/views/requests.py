"""The request log, and the receipt of one request."""

import time

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from billing.selectors import usage_of_request
from dashboard.api_address import api_url
from dashboard.request_log import curl_of, is_request_id, names_of_keys, opened_at_s, pace_of, phases_of, request_log
from dashboard.seats import Seat, seated
from dashboard.templatetags.dashboard import usd_of_picos
from tenants.access import Action
from tenants.selectors import keys_of_tenant


@require_GET
@seated(Action.VIEW_REQUESTS)
def requests(request: HttpRequest, seat: Seat) -> HttpResponse:
    return render(request, "dashboard/requests.html", {"log": request_log(seat.tenant, request.GET)})


@require_GET
@seated(Action.VIEW_REQUESTS)
def request(request: HttpRequest, seat: Seat, request_id: str) -> HttpResponse:
    """A request of another tenant looks like one that has not ended: nobody learns that it is there."""
    if not is_request_id(request_id):
        raise Http404("this is no id of a request")
    record = usage_of_request(seat.tenant.id, request_id)
    if record is None:
        opened_s = opened_at_s(request.GET.get("opened", ""), time.time())
        return render(request, "dashboard/request.html", {"record": None, "opened": opened_s})
    names = names_of_keys(list(keys_of_tenant(seat.tenant).filter(id=record["key_id"])))
    shown = {
        "phases": phases_of(record),
        "pace": pace_of(record),
        "key_name": names.get(record["key_id"], record["key_id"]),
        "curl": curl_of(record, api_url()),
    }
    return render(request, "dashboard/request.html", {"record": record, **shown})


@require_GET
@seated(Action.VIEW_REQUESTS)
def cost(request: HttpRequest, seat: Seat, request_id: str) -> HttpResponse:
    """Of a receipt, as the playground shows it; null until there is one."""
    if not is_request_id(request_id):
        raise Http404("this is no id of a request")
    record = usage_of_request(seat.tenant.id, request_id)
    return JsonResponse({"cost": None if record is None else usd_of_picos(record["amount_picos"])})

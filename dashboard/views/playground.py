"""Talk to a model from a page: the answer streams from the gateway to the browser, past the site."""

import json

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from dashboard.api_address import socket_url
from dashboard.catalogue import catalogue
from dashboard.seats import Seat, seated
from dashboard.services.playground import mint_ticket
from headway.errors import HeadwayError
from tenants.access import Action


@require_GET
@seated(Action.USE_PLAYGROUND)
def playground(request: HttpRequest, seat: Seat) -> HttpResponse:
    models = catalogue()
    wanted = request.GET.get("model", "")
    chosen = wanted if any(model.id == wanted for model in models) else next((m.id for m in models if m.ready), "")
    return render(request, "dashboard/playground.html", {"models": models, "chosen": chosen, "socket_url": socket_url()})


@require_POST
@seated(Action.USE_PLAYGROUND)
def ticket(request: HttpRequest, seat: Seat) -> HttpResponse:
    try:
        sent = json.loads(request.body)
        nonce = sent.get("nonce") if isinstance(sent, dict) else None
        text = mint_ticket(tenant=seat.tenant, member=seat.user, nonce=nonce, origin=request.headers.get("origin", ""))
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=400)
    except HeadwayError as error:
        return JsonResponse({"error": error.message}, status=error.http_status)
    return JsonResponse({"ticket": text}, headers={"cache-control": "no-store"})

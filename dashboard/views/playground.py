"""Talk to a model from a page: the answer streams from the gateway to the browser, past the site."""

import json
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from dashboard.api_address import socket_url
from dashboard.catalogue import catalogue
from dashboard.seats import Seat, seated
from dashboard.services.playground import mint_ticket
from dashboard.services.presets import preset_for, presets_for
from headway.errors import HeadwayError
from tenants.access import Action


@require_GET
@seated(Action.USE_PLAYGROUND)
def playground(request: HttpRequest, seat: Seat) -> HttpResponse:
    """`model`, or `preset`: the id of one of the member's or of one that is shared."""
    models, asked = catalogue(seat.tenant.id), request.GET.get("preset", "")
    preset = preset_for(seat.tenant, seat.user, asked) if asked else None
    wanted = preset.model if preset is not None else request.GET.get("model", "")
    chosen = wanted if any(model.id == wanted for model in models) else next((m.id for m in models if m.ready), "")
    shown = {
        "models": models,
        "chosen": chosen,
        "other": next((m.id for m in models if m.id != chosen and m.ready), chosen),
        "socket_url": socket_url(),
        "presets": presets_for(seat.tenant, seat.user),
        "preset": preset,
        "preset_values": {} if preset is None else {"system": preset.system_prompt, **preset.parameters},
        "problem": _problem(asked, preset, chosen),
    }
    return render(request, "dashboard/playground.html", shown)


def _problem(asked: str, preset: Any, chosen: str) -> str:
    if asked and preset is None:
        return "There is no such preset, or it is not shared with you."
    if preset is not None and preset.model != chosen:
        return f"The preset's model {preset.model} is not served any more; another is chosen."
    return ""


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

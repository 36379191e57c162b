"""Presets of the playground: saved and deleted by its page, which stays as it is meanwhile."""

import json
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.views.decorators.http import require_POST

from dashboard.seats import Seat, seated
from dashboard.services.presets import delete_preset, save_preset
from headway.errors import HeadwayError, InvalidInput
from tenants.access import Action

_TEXTS = ("name", "visibility", "model", "system")


@require_POST
@seated(Action.USE_PLAYGROUND)
def save(request: HttpRequest, seat: Seat) -> HttpResponse:
    """{"name", "visibility": "mine" | "tenant", "model", "system", "parameters": {...}} -> {"name", "url"}"""
    try:
        sent = _read(request.body)
        preset = save_preset(
            tenant=seat.tenant,
            member=seat.user,
            name=sent["name"],
            visibility=sent["visibility"],
            model=sent["model"],
            system_prompt=sent["system"],
            parameters=sent["parameters"],
        )
    except HeadwayError as error:
        return JsonResponse({"error": error.message}, status=error.http_status)
    return JsonResponse({"name": preset.name, "url": f"{reverse('playground', args=[seat.tenant.name])}?preset={preset.id}"})


@require_POST
@seated(Action.USE_PLAYGROUND)
def delete(request: HttpRequest, seat: Seat, preset_id: UUID) -> HttpResponse:
    may_manage = seat.may(Action.MANAGE_SETTINGS)
    try:
        delete_preset(tenant=seat.tenant, member=seat.user, preset_id=preset_id, may_manage=may_manage)
    except HeadwayError as error:
        return JsonResponse({"error": error.message}, status=error.http_status)
    return JsonResponse({})


def _read(body: bytes) -> dict[str, Any]:
    """Raises InvalidInput."""
    try:
        sent = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidInput("this is no JSON") from None
    if not isinstance(sent, dict) or not isinstance(sent.get("parameters"), dict):
        raise InvalidInput("send a preset as the page does")
    texts = {name: sent.get(name, "") for name in _TEXTS}
    if not all(isinstance(text, str) for text in texts.values()) or any("\0" in text for text in texts.values()):
        raise InvalidInput(f"{', '.join(_TEXTS)} are texts")
    return {**texts, "parameters": sent["parameters"]}

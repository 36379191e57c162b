"""Presets of the playground: a model, a system prompt, parameters. A member keeps them, for themselves or for their tenant."""

import json
import math
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from dashboard.models import Preset
from headway.errors import Conflict, InvalidInput, NotFound

MAX_PRESETS = 100
"""Of one member in a tenant."""
MAX_NAME_CHARS = 60
MAX_TEXT_CHARS = 32_000
MAX_STOPS = 32


def save_preset(
    *, tenant: Any, member: Any, name: str, visibility: str, model: str, system_prompt: str, parameters: dict[str, Any]
) -> Preset:
    """One of the member's with the same name is replaced. Raises InvalidInput, Conflict (too many)."""
    name = " ".join(name.split())
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise InvalidInput(f"a preset's name has 1 to {MAX_NAME_CHARS} characters", param="name")
    if visibility not in Preset.Visibility.values:
        raise InvalidInput(f"a preset is for {' or '.join(Preset.Visibility.values)}", param="visibility")
    if not 0 < len(model) <= 200:
        raise InvalidInput("choose a model", param="model")
    if len(system_prompt) > MAX_TEXT_CHARS:
        raise InvalidInput(f"a system prompt has at most {MAX_TEXT_CHARS:,} characters", param="system")
    kept = {
        "visibility": visibility,
        "model": model,
        "system_prompt": system_prompt,
        "parameters": {field: _checked(field, value) for field, value in parameters.items()},
    }
    with transaction.atomic():
        preset: Preset
        preset, is_new = Preset.unscoped.update_or_create(tenant=tenant, member=member, name=name, defaults=kept)
        if is_new and Preset.objects.for_tenant(tenant).filter(member=member).count() > MAX_PRESETS:
            raise Conflict(f"you keep {MAX_PRESETS} presets already: delete one first")
    return preset


def delete_preset(*, tenant: Any, member: Any, preset_id: UUID, may_manage: bool) -> None:
    """`may_manage`: they may take away what others share. Raises NotFound."""
    theirs = Q(member=member) | (Q(visibility=Preset.Visibility.TENANT) if may_manage else Q(pk__in=[]))
    if not Preset.objects.for_tenant(tenant).filter(theirs, id=preset_id).delete()[0]:
        raise NotFound("there is no such preset of yours")


def presets_for(tenant: Any, member: Any) -> list[Preset]:
    """Their own, and those that others share."""
    return list(_seen(tenant, member).select_related("member").order_by("name", "saved_at"))


def preset_for(tenant: Any, member: Any, preset_id: str) -> Preset | None:
    try:
        asked = UUID(preset_id)
    except ValueError:
        return None
    found: Preset | None = _seen(tenant, member).filter(id=asked).first()
    return found


def _seen(tenant: Any, member: Any) -> Any:
    return Preset.objects.for_tenant(tenant).filter(Q(member=member) | Q(visibility=Preset.Visibility.TENANT))


def _number(least: float, most: float) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and least <= value <= most
    )


def _whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_stop(value: Any) -> bool:
    are_texts = isinstance(value, list) and all(isinstance(each, str) and 0 < len(each) <= 1024 for each in value)
    return are_texts and len(value) <= MAX_STOPS


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict) and len(json.dumps(value)) <= MAX_TEXT_CHARS


_PARAMETERS: dict[str, Callable[[Any], bool]] = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "max_tokens": _whole(1, 2**31 - 1),
    "seed": _whole(-(2**53), 2**53),
    "stop": _is_stop,
    "schema": _is_schema,
}


def _checked(field: str, value: Any) -> Any:
    """Raises InvalidInput, also for what is no parameter: nothing else is kept, no message and no answer."""
    is_good = _PARAMETERS.get(field)
    if is_good is None:
        raise InvalidInput(f"{field[:40]!r} is no parameter; there are {', '.join(_PARAMETERS)}", param=field[:40])
    if not is_good(value):
        raise InvalidInput(f"{field} is not as it may be", param=field)
    return value

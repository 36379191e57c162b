"""Between a key's form and what the services take."""

from typing import Any

from tenants.selectors import limits_of_key
from tenants.services.key_settings import KeySettings
from tenants.services.terms import LimitKind

_FIELDS = {
    LimitKind.REQUESTS: "requests_per_minute",
    LimitKind.INPUT_TOKENS: "input_tokens_per_minute",
    LimitKind.OUTPUT_TOKENS: "output_tokens_per_minute",
    LimitKind.CONCURRENCY: "concurrent_requests",
    LimitKind.BUDGET: "monthly_budget",
}


def limits_from(data: dict[str, Any], current: dict[str, int]) -> dict[LimitKind, int | None]:
    """What differs from those there are (by kind); None removes one. A hard limit of nothing is one micro-dollar."""
    found = {kind: data.get(field) for kind, field in _FIELDS.items()}
    if found[LimitKind.BUDGET] == 0:
        found[LimitKind.BUDGET] = 1
    return {kind: value for kind, value in found.items() if value != current.get(kind.value)}


def initial_limits(limits: dict[str, int]) -> dict[str, int | None]:
    return {field: limits.get(kind.value) for kind, field in _FIELDS.items()}


def initial_of(tenant: Any, key: Any) -> dict[str, Any]:
    return {
        "name": key.name,
        "scopes": key.scopes,
        "allowed_models": key.allowed_models,
        "allowed_addresses": tuple(key.allowed_addresses),
        "tier_ceiling": key.tier_ceiling,
        **initial_limits(limits_of_key(tenant, key.id)),
    }


def settings_from(data: dict[str, Any], key: Any) -> KeySettings:
    """The expiry stays as it is: a key is made to live longer by rotating it."""
    return KeySettings(
        data["name"],
        tuple(data["scopes"]),
        tuple(data["allowed_models"]),
        tuple(data["allowed_addresses"]),
        data["tier_ceiling"],
        key.expires_at,
    )

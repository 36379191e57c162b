"""Nobody makes, changes or rotates a key into one that may more than who asks.

Who asks is a person (their role in the tenant), a key (what it may, and is set to) or None: an operator's command.
"""

import ipaddress
from collections.abc import Mapping
from typing import Any

from tenants.access import Action, actions_of_key, actions_of_role
from tenants.errors import NotAllowed
from tenants.models import ApiKey, Limit, LimitKind, Tenant, Tier, User
from tenants.selectors import role_in, role_of_key
from tenants.services.key_settings import KeySettings, settings_of

Asker = User | ApiKey | None
_TIERS = Tier.values  # most urgent first


def check_may_touch(asker: Asker, key: ApiKey) -> None:
    """Raises NotAllowed: a key never changes itself, and nobody a key that may more than they."""
    if isinstance(asker, ApiKey) and asker.pk == key.pk:
        raise NotAllowed("a key does not change itself: log in, or use another key")
    _check_actions(asker, key.tenant, actions_of_key(key.scopes, member_role=role_of_key(key)))


def check_may_give(asker: Asker, tenant: Tenant, settings: KeySettings, member: User | None) -> None:
    """May who asks make such a key of that member's? Raises NotAllowed."""
    role = role_in(tenant, member) if member is not None else None
    _check_actions(asker, tenant, actions_of_key(settings.scopes, member_role=role))
    if isinstance(asker, ApiKey):
        _check_within(settings, settings_of(asker))


def check_limits_within(asker: Asker, limits: Mapping[LimitKind, int | None]) -> None:
    """Of what a key with limits of its own gives to another. Raises NotAllowed."""
    if not isinstance(asker, ApiKey):
        return
    own = dict(Limit.objects.for_tenant(asker.tenant).filter(key=asker).values_list("kind", "value"))
    for kind, value in limits.items():
        if kind in own and (value is None or value > own[kind]):
            raise NotAllowed(f"this key has a limit of {own[kind]} for {kind.value} and gives no more", param="limits")


def limits_of_new_key(limits: Mapping[LimitKind, int | None] | None) -> dict[LimitKind, int | None]:
    """Every kind: what is not given is not limited."""
    return dict.fromkeys(LimitKind) | dict(limits or {})


def _check_actions(asker: Asker, tenant: Tenant, needed: frozenset[Action]) -> None:
    if asker is None:
        return
    if isinstance(asker, ApiKey):
        may = actions_of_key(asker.scopes, member_role=role_of_key(asker))
    else:
        may = actions_of_role(role_in(tenant, asker))
    if not needed <= may:
        who = "this key" if isinstance(asker, ApiKey) else "you"
        raise NotAllowed(f"that key may more than {who} may: ask an owner of {tenant.name}", param="scopes")


def _check_within(settings: KeySettings, bound: KeySettings) -> None:
    checks: dict[str, Any] = {
        "allowed_models": _listed_within(settings.allowed_models, bound.allowed_models),
        "allowed_addresses": _networks_within(settings.allowed_addresses, bound.allowed_addresses),
        "tier_ceiling": _tier_rank(settings.tier_ceiling) >= _tier_rank(bound.tier_ceiling),
        "expires_at": bound.expires_at is None or (settings.expires_at is not None and settings.expires_at <= bound.expires_at),
    }
    for param, is_within in checks.items():
        if not is_within:
            raise NotAllowed(f"a key gives no more than it has itself: {param} goes beyond this key's", param=param)


def _listed_within(names: tuple[str, ...], bound: tuple[str, ...]) -> bool:
    """Empty: all."""
    return not bound or (bool(names) and set(names) <= set(bound))


def _networks_within(given: tuple[str, ...], bound: tuple[str, ...]) -> bool:
    """Empty: from anywhere."""
    around = [ipaddress.ip_network(each) for each in bound]
    return not bound or (bool(given) and all(_is_in(ipaddress.ip_network(each), around) for each in given))


def _is_in(network: Any, around: list[Any]) -> bool:
    return any(network.version == other.version and network.subnet_of(other) for other in around)


def _tier_rank(tier: str) -> int:
    return _TIERS.index(tier) if tier else 0

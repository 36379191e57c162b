"""What can be set of an API key, and the rules for it."""

import ipaddress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from django.utils import timezone

from headway.errors import InvalidInput
from inference.selectors import has_model
from tenants.access import Scope
from tenants.models import ApiKey, Tier

MAX_LISTED = 100
"""Models or addresses of one key."""
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")


@dataclass(frozen=True)
class KeySettings:
    name: str
    scopes: tuple[str, ...] = (Scope.INFERENCE.value,)
    allowed_models: tuple[str, ...] = ()
    """Public ids; empty: all."""
    allowed_addresses: tuple[str, ...] = ()
    """CIDR; empty: from anywhere."""
    tier_ceiling: str = ""
    """Blank: the plan's."""
    expires_at: datetime | None = None

    def as_plain(self) -> dict[str, Any]:
        """For the audit log."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return plain | {"expires_at": self.expires_at.isoformat() if self.expires_at else None}


def settings_of(key: ApiKey) -> KeySettings:
    return KeySettings(
        key.name,
        tuple(key.scopes),
        tuple(key.allowed_models),
        tuple(key.allowed_addresses),
        key.tier_ceiling,
        key.expires_at,
    )


def allows_address(key: ApiKey, address: str) -> bool:
    """May it be used from there? Gateways ask their own copy (inference/gateway/key_rows.py), by the same rule."""
    if not key.allowed_addresses:
        return True
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return any((mapped or ip) in ipaddress.ip_network(network) for network in key.allowed_addresses)


def check_settings(settings: KeySettings, *, expires_before: datetime | None = None) -> KeySettings:
    """The same in its one form (addresses as networks, lists sorted). Raises InvalidInput.

    `expires_before`: the expiry it has already, which may stay though it has passed.
    """
    name = settings.name.strip()
    if not 1 <= len(name) <= 100:
        raise InvalidInput("a key's name has 1 to 100 characters", param="name")
    if "\0" in name:
        raise InvalidInput("a key's name has no null characters", param="name")
    expires_at = settings.expires_at
    if expires_at is not None and expires_at != expires_before and expires_at <= timezone.now():
        raise InvalidInput("a key's expiry must lie in the future", param="expires_at")
    scopes = _listed("scopes", settings.scopes)
    if not scopes or not set(scopes) <= set(Scope):
        raise InvalidInput(f"a key has one or more of the scopes {', '.join(Scope)}", param="scopes")
    if settings.tier_ceiling and settings.tier_ceiling not in Tier.values:
        raise InvalidInput(f"a tier is one of {', '.join(Tier.values)}", param="tier_ceiling")
    models = _listed("allowed_models", settings.allowed_models)
    unknown = next((model for model in models if not has_model(model)), None)
    if unknown is not None:
        raise InvalidInput(f"there is no model {unknown!r}", param="allowed_models")
    addresses = _listed("allowed_addresses", tuple(_network(each) for each in settings.allowed_addresses))
    return replace(settings, name=name, scopes=scopes, allowed_models=models, allowed_addresses=addresses)


def _listed(param: str, values: tuple[str, ...]) -> tuple[str, ...]:
    if len(values) > MAX_LISTED or not all(isinstance(value, str) and "\0" not in value for value in values):
        raise InvalidInput(f"at most {MAX_LISTED} texts", param=param)
    return tuple(sorted({str(value) for value in values}))


def _network(text: str) -> str:
    try:
        return str(_as_ipv4(ipaddress.ip_network(text.strip(), strict=False)))
    except (ValueError, AttributeError):
        raise InvalidInput(
            f"{text!r} is no address or network, such as 203.0.113.7 or 2001:db8::/32", param="allowed_addresses"
        ) from None


def _as_ipv4(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """What is mapped into IPv6 as the IPv4 it is: clients that come by it are compared as IPv4."""
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        return ipaddress.IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - _MAPPED.prefixlen))
    return network

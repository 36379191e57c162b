"""API keys as the feed tells them, and what each may be used for."""

import hashlib
import ipaddress
from dataclasses import dataclass, replace

import msgspec

from headway.errors import HeadwayError
from inference.policy.decisions import Tier
from tenants.access import Action, Scope, actions_of_key, actions_of_role

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class KeyNotAllowed(HeadwayError):
    """Use another key, or have this one's settings changed."""

    code = "key_not_allowed"
    http_status = 403
    error_type = "invalid_request_error"


class ModelNotAllowed(KeyNotAllowed):
    """Use a model this key may use, or have its settings changed."""

    code = "model_not_allowed"


class AddressNotAllowed(KeyNotAllowed):
    """Use the key from an address it may be used from, or have its settings changed."""

    code = "address_not_allowed"


class KeyRow(msgspec.Struct, frozen=True):
    """What is not told is not restricted; the scopes are those of keys from before there were any."""

    tenant_id: str
    member_id: int | None
    secret_sha256: str
    expires_at: float | None
    scopes: tuple[str, ...] = (Scope.INFERENCE.value,)
    models: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    tier_ceiling: str = ""
    is_disabled: bool = False


class MemberRow(msgspec.Struct, frozen=True):
    """A person who belongs to the tenant and may log in; the row's key is `<tenant id>/<user id>`."""

    role: str


def member_row_key(tenant_id: str, member_id: int) -> str:
    return f"{tenant_id}/{member_id}"


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """What a key may be used for."""

    actions: frozenset[Action] = frozenset({Action.RUN_INFERENCE, Action.VIEW_REQUESTS})
    models: frozenset[str] = frozenset()
    """Empty: all."""
    networks: tuple[_Network, ...] = ()
    """Empty: from anywhere."""
    tier_ceiling: Tier = Tier.INTERACTIVE

    def check(self, action: Action, address: str) -> None:
        """Raises KeyNotAllowed, AddressNotAllowed."""
        if action not in self.actions:
            raise KeyNotAllowed("The scopes of this API key, or the role of its member, do not allow that. Use another key.")
        if self.networks and not self._has(address):
            raise AddressNotAllowed("This API key may not be used from your address.")

    def of_member(self, role: str) -> "KeyTerms":
        """What is left of them in the hands of a member of that role."""
        actions = actions_of_role(role)
        return self if self.actions <= actions else replace(self, actions=self.actions & actions)

    def check_model(self, model: str) -> None:
        """Raises ModelNotAllowed."""
        if not self.allows_model(model):
            raise ModelNotAllowed("This API key may not use that model. GET /v1/models lists those it may.", param="model")

    def allows_model(self, model: str) -> bool:
        return not self.models or model in self.models

    def _has(self, address: str) -> bool:
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None  # as dual-stack sockets name them
        return any((mapped or ip) in network for network in self.networks)


UNRESTRICTED = KeyTerms()


def key_terms_of(row: KeyRow) -> KeyTerms:
    """Raises ValueError for what this release does not know: such a key is not used rather than used too freely."""
    if row.tier_ceiling and row.tier_ceiling.upper() not in Tier.__members__:
        raise ValueError(f"there is no tier {row.tier_ceiling!r}")
    return KeyTerms(
        actions=actions_of_key(row.scopes, member_role=None),  # its member's role is a row of its own
        models=frozenset(row.models),
        networks=tuple(ipaddress.ip_network(address) for address in row.addresses),
        tier_ceiling=Tier[row.tier_ceiling.upper()] if row.tier_ceiling else Tier.INTERACTIVE,
    )


def salt_of_key(tenant_salt: str, key_id: str) -> str:
    """For plans under which no key sees what another one of the same tenant has in the prefix caches."""
    return hashlib.sha256(f"{tenant_salt}/{key_id}".encode()).hexdigest()[:32]

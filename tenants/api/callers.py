"""Who calls, by session or by API key, and what they may do in a tenant. Every check is made anew on each request."""

from dataclasses import dataclass
from typing import Any

import structlog
from django.contrib.auth.models import AnonymousUser
from django.core.cache import cache
from django.utils import timezone
from redis.exceptions import RedisError
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import NotAuthenticated
from rest_framework.request import Request

from tenants.access import Action, Role, actions_of_key, actions_of_role
from tenants.acting_from import address_of
from tenants.api.errors import KeyRefused, TooManyBadKeys
from tenants.errors import NotAllowed, UnknownTenant
from tenants.models import ApiKey, Membership, Tenant, User
from tenants.selectors import membership_of, role_of_key
from tenants.services.key_format import parse_key
from tenants.services.key_settings import allows_address

log = structlog.get_logger(__name__)

BAD_KEYS_PER_MINUTE = 60
WINDOW_S = 60


@dataclass(frozen=True)
class Standing:
    """Of a caller in one tenant."""

    tenant: Tenant
    actions: frozenset[Action]
    role: str
    """What `may_assign` is asked with. A key counts as an admin at most."""
    user: User | None
    """The person, or whose key it is; None: a key of nobody's."""
    key: ApiKey | None
    actor: str

    @property
    def asker(self) -> User | ApiKey | None:
        """Whom services ask what may be made of keys: the key, else the person."""
        return self.key or self.user

    def check(self, action: Action) -> None:
        """Raises NotAllowed."""
        if action not in self.actions:
            who = "this key's scopes do" if self.key is not None else "your role does"
            raise NotAllowed(f"{who} not allow that ({action.value}): ask an owner of {self.tenant.name}")


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer hw_live_...`; without one, the session is looked at."""

    def authenticate(self, request: Request) -> tuple[User | AnonymousUser, ApiKey] | None:
        """Raises KeyRefused, TooManyBadKeys."""
        header: str = request.META.get("HTTP_AUTHORIZATION", "")
        if not header:
            return None
        scheme, _, text = header.strip().partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise KeyRefused("Send your API key as `Authorization: Bearer <key>`.")
            key = key_that_works(text.strip(), address=address_of(request._request))
        except KeyRefused:
            _count_bad_key(address_of(request._request))
            raise
        return key.member or AnonymousUser(), key

    def authenticate_header(self, _request: Request) -> str:
        return "Bearer"


AUTHENTICATION = (KeyAuthentication, SessionAuthentication)


def key_that_works(text: str, *, address: str) -> ApiKey:
    """The key with its tenant and member. Raises KeyRefused, NotAllowed (not from that address)."""
    parsed = parse_key(text)
    if parsed is None:
        raise KeyRefused("This is not an API key of this service. Check that it was copied whole, without changes.")
    rows = ApiKey.unscoped.select_related("tenant", "tenant__plan", "member")
    key: ApiKey | None = rows.filter(id=parsed.id).first()
    if not parsed.matches(key.secret_sha256 if key else "0" * 64) or key is None:
        raise KeyRefused("This API key is not known here. Check that it belongs to this service.")
    if key.revoked_at is not None:
        raise KeyRefused("This API key was revoked. Use another one.")
    if key.expires_at is not None and key.expires_at <= timezone.now():
        raise KeyRefused("This API key has expired. Use another one.")
    if key.disabled_at is not None:
        raise KeyRefused("This API key is disabled. Enable it, or use another one.")
    if key.tenant.suspended_at is not None:
        raise KeyRefused("The organisation of this API key is suspended. Ask its owner or our support.")
    if not allows_address(key, address):
        raise NotAllowed("this API key may not be used from your address")
    return key


def standing_in(request: Request, tenant_name: str) -> Standing:
    """Raises NotAuthenticated, UnknownTenant (also for one that the caller has nothing to do with)."""
    if isinstance(request.auth, ApiKey):
        return _of_key(request.auth, tenant_name)
    if not request.user.is_authenticated:
        raise NotAuthenticated
    member = membership_of(request.user, tenant_name)
    if member is None:
        raise UnknownTenant(f"there is no organisation {tenant_name!r} that you belong to")
    return standing_of_member(member)


def standing_of_member(member: Membership) -> Standing:
    return Standing(member.tenant, actions_of_role(member.role), member.role, member.user, None, f"user:{member.user}")


def _of_key(key: ApiKey, tenant_name: str) -> Standing:
    if key.tenant.name != tenant_name:
        raise UnknownTenant(f"there is no organisation {tenant_name!r} that this key belongs to")
    role = role_of_key(key)
    allowed = actions_of_key(key.scopes, member_role=role)
    at_most = role if role not in (None, Role.OWNER) else Role.ADMIN.value
    return Standing(key.tenant, allowed, str(at_most), key.member, key, f"key:{key.id}")


def _count_bad_key(address: str) -> None:
    """Guessing is slow. Raises TooManyBadKeys. With the cache away nothing is counted: 256 bits are not guessed either way."""
    name = f"bad-keys:{address}"
    try:
        cache.add(name, 0, WINDOW_S)
        number: Any = cache.incr(name)
    except (RedisError, OSError, ValueError) as error:
        log.warning("bad_keys_not_counted", reason=type(error).__name__)
        return
    if number > BAD_KEYS_PER_MINUTE:
        raise TooManyBadKeys(
            "Too many requests with bad keys came from this address. Fix the key, then retry.", retry_after_s=WINDOW_S
        )

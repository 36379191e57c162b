"""Idempotency-Key: one charge for a request that a client sends again. In memory: of this gateway process, which so can refuse
before it reads a body, and of the dispatcher, which decides for all processes (inference/dispatch/repeats.py).

A key that is in use, or was used lately for a request that made tokens, is refused with the id of that request; answers
are never stored. A request that made no tokens frees its key, so that a retry after a failure goes through.
"""

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass, field

from headway import env
from headway.errors import Conflict
from inference.gateway.openai_errors import BadRequest

HEADER = "Idempotency-Key"
_VALID = re.compile(rb"[!-~]{1,255}")


class IdempotencyKeyUsed(Conflict):
    """Do not send it again: the request named in the message holds the key. Use a new key for a new request."""

    code = "idempotency_key_in_use"
    holder = ""
    """The request that has it."""


@dataclass
class _Tenant:
    """Request ids by the digest of their key. In use: as many as the tenant has requests open; used: the oldest first."""

    in_use: dict[bytes, str] = field(default_factory=dict)
    used: "OrderedDict[bytes, tuple[str, float]]" = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True)
class IdempotencyTunables:
    keep_s: float = 3600.0
    """How long a key is remembered after the request that made tokens under it."""
    max_per_tenant: int = 2048
    """How many such keys are remembered for a tenant; the oldest go first."""

    @classmethod
    def from_env(cls) -> "IdempotencyTunables":
        return cls(
            keep_s=env.seconds("HEADWAY_IDEMPOTENCY_KEEP_S", cls().keep_s),
            max_per_tenant=env.whole("HEADWAY_MAX_IDEMPOTENCY_KEYS", cls().max_per_tenant, at_least=1),
        )


class IdempotencyKeys:
    """Times are of one monotonic clock. Belongs to one event loop."""

    def __init__(self, tunables: IdempotencyTunables) -> None:
        self._keep_s, self._max_per_tenant = tunables.keep_s, tunables.max_per_tenant
        # The one whose key was taken longest ago first.
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    def take(self, tenant_id: str, key: bytes, request_id: str, *, now_s: float) -> bytes:
        """Returns the name under which to `settle` it. Raises BadRequest, IdempotencyKeyUsed."""
        if not _VALID.fullmatch(key):
            raise BadRequest(f"`{HEADER}` must be 1 to 255 visible ASCII characters.", param=HEADER)
        name = hashlib.blake2b(key, digest_size=16).digest()
        self.claim(tenant_id, name, request_id, now_s=now_s)
        return name

    def claim(self, tenant_id: str, name: bytes, request_id: str, *, now_s: float) -> None:
        """The same by the name. Its own again is no error. Raises IdempotencyKeyUsed."""
        self._forget_an_idle_tenant(now_s)
        tenant = self._tenants.setdefault(tenant_id, _Tenant())
        self._tenants.move_to_end(tenant_id)
        self._forget(tenant, now_s)
        if tenant.in_use.get(name, request_id) != request_id:
            raise key_used(tenant.in_use[name], is_running=True)
        if name in tenant.used:
            raise key_used(tenant.used[name][0], is_running=False)
        tenant.in_use[name] = request_id

    def settle(self, tenant_id: str, name: bytes, *, made_tokens: bool, now_s: float) -> None:
        """The request that took it has ended."""
        tenant = self._tenants[tenant_id]
        request_id = tenant.in_use.pop(name)
        if made_tokens:
            tenant.used[name] = (request_id, now_s)
        self._forget(tenant, now_s)

    def num_remembered(self) -> int:
        return sum(len(tenant.in_use) + len(tenant.used) for tenant in self._tenants.values())

    def _forget(self, tenant: _Tenant, now_s: float) -> None:
        used = tenant.used
        while used and (len(used) > self._max_per_tenant or next(iter(used.values()))[1] + self._keep_s <= now_s):
            used.popitem(last=False)

    def _forget_an_idle_tenant(self, now_s: float) -> None:
        if not self._tenants:
            return
        tenant_id, tenant = next(iter(self._tenants.items()))
        self._forget(tenant, now_s)
        if not tenant.in_use and not tenant.used:
            del self._tenants[tenant_id]
        elif tenant.in_use:
            self._tenants.move_to_end(tenant_id)  # open for long: look at the others


def key_used(request_id: str, *, is_running: bool) -> IdempotencyKeyUsed:
    message = f"This {HEADER} {'is in use by' if is_running else 'was used for'} the request {request_id}."
    headers = [("x-headway-receipt", request_id), ("x-should-retry", "true" if is_running else "false")]
    error = IdempotencyKeyUsed(message, retry_after_s=1.0 if is_running else None, headers=headers)
    error.holder = request_id
    return error

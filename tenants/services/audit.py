"""Write the audit log: call it inside the transaction of the change it tells of."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from headway.logs import REQUEST_ID
from tenants.models import AuditEntry, Tenant

MAX_NAME_CHARS = 200  # of AuditEntry's columns; an e-mail address may be longer
_ADDRESS: ContextVar[str] = ContextVar("audit_address", default="")


@contextlib.contextmanager
def acting_from(address: str) -> Iterator[None]:
    """What is audited in here was asked for from this address. The site's middleware wraps each request in it."""
    token = _ADDRESS.set(address)
    try:
        yield
    finally:
        _ADDRESS.reset(token)


def record_audit(
    *,
    actor: str,
    action: str,
    target: str,
    tenant: Tenant | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEntry:
    """`actor`: `user:<name>`, `key:<id>`, `admin:<name>`, `command:<name>` or `system`."""
    entry: AuditEntry = AuditEntry.objects.create(
        actor=actor[:MAX_NAME_CHARS],
        action=action,
        target=target[:MAX_NAME_CHARS],
        tenant=tenant,
        before=before,
        after=after,
        address=_ADDRESS.get()[:64],
        request_id=REQUEST_ID.get()[:40],
    )
    return entry

"""Write the audit log: call it inside the transaction of the change it tells of."""

from typing import Any

from tenants.models import AuditEntry, Tenant


def record_audit(
    *,
    actor: str,
    action: str,
    target: str,
    tenant: Tenant | None = None,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEntry:
    return AuditEntry.objects.create(actor=actor, action=action, target=target, tenant=tenant, before=before, after=after)

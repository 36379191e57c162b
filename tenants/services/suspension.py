"""Suspend a tenant and take it back: its keys are refused within a second, its pages closed; nothing is lost."""

from django.db import transaction
from django.utils import timezone

from headway.errors import InvalidInput
from tenants.models import Tenant
from tenants.services.audit import record_audit
from tenants.services.holding import hold_tenant
from tenants.services.tenants import publish_tenant

MAX_REASON_CHARS = 200


def suspend_tenant(*, tenant: Tenant, reason: str, actor: str) -> bool:
    """False: it was suspended already. What runs goes on to its end. Raises InvalidInput without a reason."""
    reason = reason.strip()
    if not 1 <= len(reason) <= MAX_REASON_CHARS:
        raise InvalidInput(f"say why, in 1 to {MAX_REASON_CHARS} characters", param="reason")
    with transaction.atomic():
        hold_tenant(tenant)
        if tenant.suspended_at is not None:
            return False
        tenant.suspended_at = timezone.now()
        tenant.save(update_fields=["suspended_at"])
        publish_tenant(tenant)
        record_audit(actor=actor, action="tenant.suspend", target=tenant.name, tenant=tenant, after={"reason": reason})
    return True


def resume_tenant(*, tenant: Tenant, actor: str) -> bool:
    """False: it was not suspended."""
    with transaction.atomic():
        hold_tenant(tenant)
        if tenant.suspended_at is None:
            return False
        before = {"suspended_at": tenant.suspended_at.isoformat()}
        tenant.suspended_at = None
        tenant.save(update_fields=["suspended_at"])
        publish_tenant(tenant)
        record_audit(actor=actor, action="tenant.resume", target=tenant.name, tenant=tenant, before=before)
    return True

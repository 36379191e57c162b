"""Operators visit a tenant: they see its pages with the eyes of a role, for an hour, and change nothing. Audited."""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from headway.errors import InvalidInput
from tenants.access import Role
from tenants.errors import NotAllowed
from tenants.models import Membership, OperatorVisit, Tenant, User
from tenants.selectors import is_operator
from tenants.services.audit import record_audit

LASTS = timedelta(hours=1)
MAX_REASON_CHARS = 200


def begin_visit(*, operator: User, tenant: Tenant, role: str, reason: str, actor: str) -> OperatorVisit:
    """Ends the one that runs. Raises NotAllowed for who is no operator or a member there, InvalidInput."""
    if not is_operator(operator):
        raise NotAllowed("only operators visit tenants")
    if Membership.objects.for_tenant(tenant).filter(user=operator).exists():
        raise NotAllowed(f"you are a member of {tenant.name}: its pages are yours")
    if role not in set(Role):
        raise InvalidInput(f"a role is one of {', '.join(Role)}", param="role")
    reason = reason.strip()
    if not 1 <= len(reason) <= MAX_REASON_CHARS:
        raise InvalidInput(f"say why, in 1 to {MAX_REASON_CHARS} characters: the tenant can read it", param="reason")
    now = timezone.now()
    with transaction.atomic():
        end_visits(operator=operator, actor=actor, now=now)
        visit = OperatorVisit.objects.create(
            operator=operator, tenant=tenant, role=role, reason=reason, started_at=now, ends_at=now + LASTS
        )
        record_audit(
            actor=actor,
            action="operator.visit",
            target=tenant.name,
            tenant=tenant,
            after={"role": role, "reason": reason, "ends_at": visit.ends_at.isoformat()},
        )
    return visit


def end_visits(*, operator: User, actor: str, now: datetime | None = None) -> int:
    """All that still run. Returns how many there were."""
    now, ended = now or timezone.now(), 0
    with transaction.atomic():
        for visit in OperatorVisit.objects.select_related("tenant").filter(operator=operator, ends_at__gt=now):
            if OperatorVisit.objects.filter(pk=visit.pk, ends_at__gt=now).update(ends_at=now):
                record_audit(actor=actor, action="operator.leave", target=visit.tenant.name, tenant=visit.tenant)
                ended += 1
    return ended

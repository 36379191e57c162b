"""What tenants want of automatic top-ups, and which are due. Nothing charges yet: billing/top_up.py."""

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.db import transaction

from billing.credit_models import Grant, TopUp
from billing.services.balance_reads import balance_of
from billing.services.balances import MAX_GRANT_MICROS
from headway.errors import InvalidInput
from headway.money import PICOS_A_MICRO, micros_to_usd
from headway.months import UTC_NAME, month_of
from tenants.errors import UnknownTenant
from tenants.selectors import prepaid_among, tenant_with_id, time_zones
from tenants.services.audit import record_audit

_PREFIX = "top-up:"


@dataclass(frozen=True)
class DueTopUp:
    tenant_id: UUID
    amount_micros: int
    reference: str
    """The same until credit was granted with it."""


def set_top_up(
    *,
    tenant_id: UUID,
    is_enabled: bool,
    threshold_micros: int,
    amount_micros: int,
    monthly_cap_micros: int,
    actor: str,
) -> TopUp:
    """When less than the threshold is left, fill it by the amount, but by no more than the cap in a month."""
    tenant = tenant_with_id(tenant_id)
    if tenant is None:
        raise UnknownTenant(f"there is no tenant {tenant_id}")
    if not 1 <= amount_micros <= MAX_GRANT_MICROS:
        raise InvalidInput(f"an amount is above 0 and at most {micros_to_usd(MAX_GRANT_MICROS)} US dollars", param="amount")
    if not 0 <= threshold_micros <= MAX_GRANT_MICROS:
        raise InvalidInput("a threshold is not below 0", param="threshold")
    if not amount_micros <= monthly_cap_micros <= MAX_GRANT_MICROS:
        raise InvalidInput("a month's cap is at least the amount", param="monthly_cap")
    values = {
        "is_enabled": is_enabled,
        "threshold_micros": threshold_micros,
        "amount_micros": amount_micros,
        "monthly_cap_micros": monthly_cap_micros,
    }
    with transaction.atomic():
        top_up, _ = TopUp.objects.update_or_create(tenant_id=tenant_id, defaults=values)
        record_audit(actor=actor, action="balance.set_top_up", target=tenant.name, tenant=tenant, after=values)
    return top_up


def top_up_of(tenant_id: UUID) -> TopUp | None:
    """None: it was never set."""
    return TopUp.objects.filter(tenant_id=tenant_id).first()


def due_top_ups(now: datetime | None = None) -> list[DueTopUp]:
    """Of those who pay in advance; a month is that of the tenant's time zone."""
    now, due = now or datetime.now(UTC), []
    rows = list(TopUp.objects.filter(is_enabled=True).order_by("tenant_id"))
    prepaid, zones = prepaid_among([row.tenant_id for row in rows]), time_zones([row.tenant_id for row in rows])
    for row in rows:
        month = month_of(now, zones.get(row.tenant_id, UTC_NAME)).name
        prefix = f"{_PREFIX}{row.tenant_id}:{month}:"
        filled = list(Grant.objects.filter(reference__startswith=prefix).values_list("amount_micros", flat=True))
        is_low = balance_of(row.tenant_id, now=now).left_picos < row.threshold_micros * PICOS_A_MICRO
        if row.tenant_id in prepaid and is_low and sum(filled) + row.amount_micros <= row.monthly_cap_micros:
            due.append(DueTopUp(row.tenant_id, row.amount_micros, f"{prefix}{len(filled) + 1}"))
    return due

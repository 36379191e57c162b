"""The sweep that tells tenants that a balance goes down, and people that one is below nothing."""

from datetime import datetime

import structlog
from django.utils import timezone

from billing.services.balance_reads import balance_of, newest_grants, overdrawn_tenants, unbalanced_grants
from headway.money import PICOS_A_MICRO, picos_to_usd
from tenants.models import EventType, Tenant
from tenants.selectors import prepaid_among
from tenants.services.alert_mails import tell_alert

log = structlog.get_logger(__name__)

BALANCE_PERCENTS = (20, 0)
"""Of the newest grant: with each that comes it is told anew."""


def raise_balance_alerts(now: datetime | None = None) -> int:
    """Of those who pay in advance. Returns how many were told."""
    now, told = now or timezone.now(), 0
    newest = newest_grants()
    for tenant in Tenant.objects.filter(id__in=prepaid_among(newest)):
        grant, left_picos = newest[tenant.id], balance_of(tenant.id, now=now).left_picos
        for percent in BALANCE_PERCENTS:
            if left_picos * 100 > grant.amount_micros * PICOS_A_MICRO * percent:
                break
            data = {"percent": percent, "left_usd": picos_to_usd(left_picos), "of_micros": grant.amount_micros}
            occasion = f"balance.low:{grant.id}:{percent}"
            told += tell_alert(tenant=tenant, type=EventType.BALANCE_LOW, occasion=occasion, data=data)
    return told


def check_balances() -> int:
    """Logs, for a page, what must never be: one below nothing, a grant whose parts do not add up. Returns how many."""
    overdrawn, unbalanced = overdrawn_tenants(), unbalanced_grants()
    for tenant_id, picos in overdrawn.items():
        log.error("balance_overdrawn", tenant=str(tenant_id), usd=picos_to_usd(picos))
    for grant_id, picos in unbalanced:
        log.error("grant_does_not_add_up", grant=str(grant_id), usd=picos_to_usd(picos))
    return len(overdrawn) + len(unbalanced)

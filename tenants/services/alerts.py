"""Sweeps that tell tenants what is about to happen, by webhook and by mail. Each may run as often as it likes: an occasion is
told once.
"""

from datetime import datetime, timedelta

from django.utils import timezone

from billing.selectors import spent_by_scope, tenants_that_used, tenants_with_spend
from headway.errors import InvalidInput
from headway.money import PICOS_A_MICRO, picos_to_usd
from headway.months import month_of
from inference.selectors import has_model
from inference.services.rollouts.retiring import set_retirement, tenants_pinned_to
from tenants.models import ApiKey, EventType, LimitKind, Tenant, WebhookEndpoint
from tenants.selectors import LimitInForce, lineages, terms_in_force
from tenants.services.alert_mails import tell_alert
from tenants.services.audit import record_audit

EXPIRY_NOTICES = (timedelta(days=1), timedelta(days=7))
"""Nearest first."""
BUDGET_PERCENTS = (50, 80, 100)
USED_LATELY = timedelta(days=90)


def raise_expiry_alerts(now: datetime | None = None) -> int:
    """Of keys that expire within 7 days, and again within 1. Returns how many were told."""
    now, told = now or timezone.now(), 0
    rows = ApiKey.unscoped.filter(revoked_at=None, expires_at__gt=now, expires_at__lte=now + EXPIRY_NOTICES[-1])
    for key in rows.select_related("tenant").order_by("id"):
        notice = next(each for each in EXPIRY_NOTICES if key.expires_at - now <= each)
        expires = key.expires_at.isoformat()
        data = {"key": key.id, "name": key.name, "expires_at": expires, "within_days": notice.days}
        occasion = f"key.expiring:{key.id}:{expires}:{notice.days}"
        told += tell_alert(key.tenant, EventType.KEY_EXPIRING, occasion, data)
    return told


def raise_budget_alerts(now: datetime | None = None) -> int:
    """Of budgets (of tenants, keys, models) of which 50, 80, 100 % are spent this month. Returns how many were told."""
    now, told = now or timezone.now(), 0
    recent = {month_of(at, "UTC").name for at in (now - timedelta(days=1), now, now + timedelta(days=1))}
    for tenant in Tenant.objects.filter(id__in=tenants_with_spend(recent)).select_related("plan"):
        budgets = [limit for limit in terms_in_force(tenant).limits if limit.kind == LimitKind.BUDGET]
        if budgets:
            told += sum(_tell_budget(tenant, limit, now) for limit in budgets)
    return told


def announce_retirement(*, model: str, retires_at: datetime, actor: str) -> int:
    """Tell every tenant that has webhooks or has used it lately that a model goes; by mail those that have used it.

    Returns how many were told. Raises InvalidInput for an unknown model.
    """
    if not has_model(model):
        raise InvalidInput(f"there is no model {model!r}", param="model")
    at, told = retires_at.isoformat(), 0
    users = tenants_that_used(model, since=timezone.now() - USED_LATELY)
    listeners = set(WebhookEndpoint.unscoped.values_list("tenant_id", flat=True))
    for tenant in Tenant.objects.filter(id__in=users | listeners):
        occasion = f"model.retiring:{model[:150]}:{at}"
        data = {"model": model, "retires_at": at}
        told += tell_alert(tenant, EventType.MODEL_RETIRING, occasion, data, by_mail=tenant.id in users)
    record_audit(actor=actor, action="model.announce_retirement", target=model[:200], after={"retires_at": at, "told": told})
    return told


def announce_version_retirement(*, model: str, version: str, retires_at: datetime, actor: str) -> int:
    """A version goes on that day; every tenant that stays on it is told. Returns how many.

    Raises UnknownModel, UnknownVersion, InvalidInput (a version that is stable or in a rollout does not retire).
    """
    found = set_retirement(public_id=model, label=version, retires_at=retires_at, actor=actor)
    at, told = retires_at.isoformat(), 0
    for tenant in Tenant.objects.filter(id__in=tenants_pinned_to(found)).order_by("id"):
        occasion = f"version.retiring:{model[:150]}:{version}:{at}"
        told += tell_alert(tenant, EventType.MODEL_RETIRING, occasion, {"model": model, "version": version, "retires_at": at})
    return told


def _tell_budget(tenant: Tenant, limit: LimitInForce, now: datetime) -> int:
    month, told = month_of(now, tenant.time_zone).name, 0
    scope_id = limit.id.partition("/")[2] if limit.scope == "model" else limit.id
    counted = lineages(tenant.id, [scope_id])[scope_id] if limit.scope == "key" else [scope_id]
    spent = spent_by_scope(tenant.id, month, scope=limit.scope, scope_ids=counted)
    for percent in BUDGET_PERCENTS:
        if spent * 100 < limit.value * PICOS_A_MICRO * percent:
            break
        data = {
            "scope": limit.scope,
            "id": scope_id,
            "month": month,
            "time_zone": tenant.time_zone,
            "percent": percent,
            "spent_micros": spent // PICOS_A_MICRO,
            "spent_usd": picos_to_usd(spent),
            "budget_micros": limit.value,
        }
        occasion = f"budget.reached:{limit.scope}:{scope_id[:150]}:{month}:{limit.value}:{percent}"
        told += tell_alert(tenant, EventType.BUDGET_REACHED, occasion, data)
    return told

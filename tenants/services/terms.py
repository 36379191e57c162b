"""Plans and limits: what a tenant may use, and telling the data plane."""

import math
from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from billing.services.credit_use import tell_balance
from billing.services.month_spend import tell_month
from billing.services.usage_days import rebuild_days
from billing.services.usage_rows import wait_for_writers
from headway.errors import InvalidInput
from headway.months import zone_named
from inference.selectors import has_model, pins_in_force
from inference.services import control
from tenants.errors import NotAllowed, UnknownKey, UnknownPlan
from tenants.models import ApiKey, Limit, Plan, Tenant, Tier
from tenants.models import LimitKind as LimitKind  # other apps name kinds of limits too
from tenants.selectors import DEFAULT_PLAN, TermsInForce, plan_of, terms_in_force
from tenants.services.audit import record_audit
from tenants.services.holding import hold_tenant, hold_tenants
from tenants.services.key_bounds import Asker, check_limits_within, check_may_touch

MAX_LIMIT = 10**15
MAX_WEIGHT = 1000.0
MAX_TOKENS_CAP = 10_000_000

_PLAN_FIELDS = {
    LimitKind.REQUESTS: "requests_per_minute",
    LimitKind.INPUT_TOKENS: "input_tokens_per_minute",
    LimitKind.OUTPUT_TOKENS: "output_tokens_per_minute",
    LimitKind.CONCURRENCY: "concurrent_requests",
    LimitKind.BUDGET: "monthly_budget_micros",
}


def set_plan(*, tenant: Tenant, plan: str, actor: str) -> TermsInForce:
    """Limits of the tenant's own stay. Raises UnknownPlan."""
    found = Plan.objects.filter(name=plan).first()
    if found is None:
        names = ", ".join(Plan.objects.order_by("name").values_list("name", flat=True)) or "none yet, see define_plan"
        raise UnknownPlan(f"there is no plan {plan!r}; there are: {names}", param="plan")
    with transaction.atomic():
        hold_tenant(tenant)
        before = terms_in_force(tenant)
        tenant.plan = found
        tenant.save(update_fields=["plan"])
        return _tell(tenant, before, action="tenant.set_plan", actor=actor)


def set_limits(
    *,
    tenant: Tenant,
    limits: Mapping[LimitKind, int | None],
    actor: str,
    key_id: str | None = None,
    model: str | None = None,
    time_zone: str | None = None,
    is_self_service: bool = False,
    by: Asker = None,
) -> TermsInForce:
    """Set or (None) remove limits of the tenant, of one of its keys or of a model as it uses it; others stay.

    `is_self_service`: by the tenant itself, which changes no limit that we set, and of the whole tenant allows itself no
    more than its plan does. `by`: who asks (key_bounds); a key gives others no more than it has, and itself nothing.
    Raises InvalidInput, UnknownKey for a key that is not this tenant's or is revoked, NotAllowed; nothing is changed then.
    """
    _check_limits(limits)
    if key_id is not None and model is not None:
        raise InvalidInput("a limit is of a key or of a model, not of both", param="model")
    if model is not None and not has_model(model):
        raise InvalidInput(f"there is no model {model!r}", param="model")
    if time_zone is not None and zone_named(time_zone) is None:
        raise InvalidInput(f"{time_zone!r} is not a time zone, such as Europe/Berlin", param="time_zone")
    with transaction.atomic():
        if time_zone is not None:
            wait_for_writers([tenant.id])  # before any other lock: they take theirs in this order
        hold_tenant(tenant)
        before = terms_in_force(tenant)
        key = _key_of(tenant, key_id) if key_id is not None else None
        if key is not None:
            check_may_touch(by, key)
            check_limits_within(by, limits)
        for kind, value in limits.items():
            _set_limit(tenant, key, model or "", kind, value, is_self_service=is_self_service)
        if time_zone is not None and time_zone != tenant.time_zone:
            tenant.time_zone = time_zone
            tenant.save(update_fields=["time_zone"])
            rebuild_days(tenant_id=tenant.id, time_zone=time_zone)
        terms = _tell(tenant, before, action="tenant.set_limits", actor=actor)
        if LimitKind.BUDGET in limits or time_zone is not None:
            tell_month(tenant.id, tenant.time_zone)
    return terms


def _set_limit(
    tenant: Tenant, key: ApiKey | None, model: str, kind: LimitKind, value: int | None, *, is_self_service: bool
) -> None:
    """Raises as set_limits does."""
    rows = Limit.objects.for_tenant(tenant).filter(key=key, model=model, kind=kind)
    if is_self_service:
        of_tenant = key is None and not model
        _check_self_service(plan_of(tenant) if of_tenant else None, kind, value, rows)
    if value is None:
        rows.delete()
    elif not rows.update(value=value, is_self_set=is_self_service):
        Limit.unscoped.create(tenant=tenant, key=key, model=model, kind=kind, value=value, is_self_set=is_self_service)


def _check_self_service(plan: Plan | None, kind: LimitKind, value: int | None, rows: Any) -> None:
    """Raises NotAllowed, InvalidInput. `plan`: of a limit of the whole tenant."""
    if rows.filter(is_self_set=False).exists():
        raise NotAllowed(f"{kind.value} is agreed upon with us: ask our support", param=kind.value)
    given = plan.default_limits().get(kind) if plan is not None else None
    if given is not None and value is not None and value > given:
        raise InvalidInput(f"{kind.value} is at most {given}, which your plan allows", param=kind.value)


def define_plan(
    *,
    name: str,
    actor: str,
    limits: Mapping[LimitKind, int | None] | None = None,
    weight: float | None = None,
    tier_ceiling: str | None = None,
    default_max_tokens: int | None = None,
    has_default_max_tokens: bool = True,
    discount_percent: int | None = None,
    salt_per_key: bool | None = None,
    is_self_service: bool | None = None,
    is_prepaid: bool | None = None,
) -> Plan:
    """Make a plan, or change what is given of one; every tenant on it is told. Raises InvalidInput.

    `has_default_max_tokens` False takes the default for max_tokens away.
    """
    _check_limits(limits or {})
    if weight is not None and not (math.isfinite(weight) and 0 < weight <= MAX_WEIGHT):
        raise InvalidInput(f"a plan's weight is above 0 and at most {MAX_WEIGHT:g}", param="weight")
    if tier_ceiling is not None and tier_ceiling not in Tier.values:
        raise InvalidInput(f"a tier is one of {', '.join(Tier.values)}", param="tier_ceiling")
    if default_max_tokens is not None and not 1 <= default_max_tokens <= MAX_TOKENS_CAP:
        raise InvalidInput(f"max_tokens is from 1 to {MAX_TOKENS_CAP}", param="default_max_tokens")
    if discount_percent is not None and not 0 <= discount_percent <= 100:
        raise InvalidInput("a discount is from 0 to 100 per cent", param="discount_percent")
    given: dict[str, Any] = {_PLAN_FIELDS[kind]: value for kind, value in (limits or {}).items()}
    named = {
        "weight": weight,
        "tier_ceiling": tier_ceiling,
        "discount_percent": discount_percent,
        "salt_per_key": salt_per_key,
        "is_self_service": is_self_service,
        "is_prepaid": is_prepaid,
    }
    given |= {field: value for field, value in named.items() if value is not None}
    if default_max_tokens is not None or not has_default_max_tokens:
        given["default_max_tokens"] = default_max_tokens if has_default_max_tokens else None
    with transaction.atomic():
        plan = Plan.objects.filter(name=name).first() or _new_plan(name)
        before = {field: getattr(plan, field) for field in given}
        for field, value in given.items():
            setattr(plan, field, value)
        plan.save()
        record_audit(actor=actor, action="plan.define", target=name, before=before, after=given)
        for tenant in _held_on(plan):
            publish_terms(terms_in_force(tenant), tenant)
    return plan


def publish_terms(terms: TermsInForce, tenant: Tenant) -> None:
    """Call it inside the transaction that changes them."""
    payload = {
        "plan": terms.plan,
        "weight": terms.weight,
        "tier_ceiling": terms.tier_ceiling,
        "time_zone": terms.time_zone,
        "default_max_tokens": terms.default_max_tokens,
        "salt_per_key": terms.salt_per_key,
        "discount_percent": terms.discount_percent,
        "is_prepaid": terms.is_prepaid,
        "is_operator": tenant.is_operator,
        "pins": pins_in_force(tenant.id),
        "no_shadow": tenant.no_shadow,
        "limits": [{"scope": limit.scope, "id": limit.id, "kind": limit.kind, "value": limit.value} for limit in terms.limits],
    }
    control.publish(kind="terms", key=str(tenant.id), payload=payload)
    if terms.is_prepaid:
        tell_balance(tenant.id)


def publish_terms_of(tenant: Tenant) -> None:
    """As they are now. Call it with the tenant held."""
    publish_terms(terms_in_force(tenant), tenant)


def set_shadowing(*, tenant: Tenant, is_allowed: bool, actor: str) -> None:
    """May requests of the tenant be mirrored to a version that is tried out? Their texts are never kept, nor billed twice."""
    with transaction.atomic():
        hold_tenant(tenant)
        if tenant.no_shadow == (not is_allowed):
            return
        tenant.no_shadow = not is_allowed
        tenant.save(update_fields=["no_shadow"])
        publish_terms_of(tenant)
        record_audit(
            actor=actor, action="tenant.set_shadowing", target=tenant.name, tenant=tenant, after={"is_allowed": is_allowed}
        )


def _tell(tenant: Tenant, before: TermsInForce, *, action: str, actor: str) -> TermsInForce:
    after = terms_in_force(tenant)
    if after != before:
        publish_terms(after, tenant)
        record_audit(
            actor=actor, action=action, target=tenant.name, tenant=tenant, before=before.as_dict(), after=after.as_dict()
        )
    return after


def _check_limits(limits: Mapping[LimitKind, int | None]) -> None:
    for kind, value in limits.items():
        if value is not None and not 1 <= value <= MAX_LIMIT:
            raise InvalidInput(f"{kind.value} must be above 0 and at most {MAX_LIMIT}; none removes it", param=kind.value)


def _key_of(tenant: Tenant, key_id: str) -> ApiKey:
    key: ApiKey | None = ApiKey.objects.for_tenant(tenant).filter(id=key_id, revoked_at=None).first()
    if key is None:
        raise UnknownKey(f"{tenant.name} has no key {key_id!r} in use; give the id, the part after hw_live_", param="key")
    return key


def _new_plan(name: str) -> Plan:
    plan = Plan(name=name)
    try:
        plan.clean_fields()
    except ValidationError:
        raise InvalidInput(
            f"{name!r} is not a plan's name: 1 to 63 letters, digits, hyphens or underscores", param="name"
        ) from None
    return plan


def _held_on(plan: Plan) -> list[Tenant]:
    of_default = Q(plan=None) if plan.name == DEFAULT_PLAN else Q(pk=None)
    return hold_tenants(Tenant.objects.filter(Q(plan=plan) | of_default))

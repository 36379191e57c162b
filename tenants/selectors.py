"""Read what holds for a tenant."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from tenants.models import (
    ApiKey,
    AuditEntry,
    Invitation,
    Limit,
    LimitKind,
    Membership,
    OperatorVisit,
    Plan,
    Tenant,
    User,
    WebhookDelivery,
    WebhookEndpoint,
)

DEFAULT_PLAN = "default"


def membership_of(user: User, tenant_name: str) -> Membership | None:
    """None: no such tenant, or not a member of it; nobody is told which. What it allows is for `tenants.access` to say."""
    if not user.is_authenticated or not user.is_active:
        return None
    rows = Membership.unscoped.select_related("tenant", "user", "tenant__plan")
    found: Membership | None = rows.filter(user=user, tenant__name=tenant_name).first()
    return found


def tenants_like(query: str, *, is_suspended: bool | None = None) -> QuerySet[Tenant]:
    """By name; for operators. `query`: a part of the name, or the whole id; blank: all customers.

    `is_suspended` None: either.
    """
    rows = Tenant.objects.select_related("plan").order_by("name")
    if is_suspended is not None:
        rows = rows.filter(suspended_at__isnull=not is_suspended)
    if not query:
        return rows.filter(is_operator=False)
    try:
        return rows.filter(Q(name__icontains=query) | Q(id=UUID(query)))
    except ValueError:
        return rows.filter(name__icontains=query)


def all_plans() -> list[Plan]:
    return list(Plan.objects.order_by("name"))


def is_operator(user: Any) -> bool:
    """May this person, logged in, do what operators' pages and their part of the API do? Staff, and a superuser."""
    return bool(user.is_authenticated and user.is_active and user.is_staff and user.is_superuser)


def operator_by_password(*, username: str, password: str) -> User | None:
    found = User.objects.filter(username=username).first()
    if found is None:
        User().set_password(password)  # as long as for one who exists
        return None
    return found if is_operator(found) and found.check_password(password) else None


def visit_of(user: User, tenant_name: str) -> OperatorVisit | None:
    """The visit an operator is on there now. None for everybody else."""
    if not is_operator(user):
        return None
    rows = OperatorVisit.objects.select_related("tenant", "tenant__plan")
    running = rows.filter(operator=user, tenant__name=tenant_name, ends_at__gt=timezone.now())
    return running.order_by("-id").first()


def visits(*, tenant: Tenant | None = None, operator: str = "") -> QuerySet[OperatorVisit]:
    """Of all operators, or of the one with that user name; those that are over too."""
    rows = OperatorVisit.objects.select_related("tenant", "operator")
    rows = rows.filter(tenant=tenant) if tenant is not None else rows
    return rows.filter(operator__username=operator) if operator else rows


def roles_now(tenant: Tenant) -> dict[int, str]:
    """Of those who may enter at this moment, by user id: members, none where the tenant is suspended; operators on a visit."""
    rows = Membership.objects.for_tenant(tenant).filter(user__is_active=True, tenant__suspended_at=None)
    visits = OperatorVisit.objects.filter(
        tenant=tenant, ends_at__gt=timezone.now(), operator__is_superuser=True, operator__is_staff=True
    )
    return {
        **dict(visits.filter(operator__is_active=True).order_by("id").values_list("operator_id", "role")),
        **dict(rows.values_list("user_id", "role")),
    }


def tenants_of(user: User) -> list[Membership]:
    """The memberships of a person, each with its tenant, by the tenant's name."""
    if not user.is_authenticated or not user.is_active:
        return []
    return list(Membership.unscoped.select_related("tenant", "tenant__plan").filter(user=user).order_by("tenant__name"))


def role_in(tenant: Tenant, user: User) -> str:
    """A blank: no member of the tenant, or switched off, who may nothing."""
    row: Membership | None = Membership.objects.for_tenant(tenant).filter(user=user).first()
    return row.role if row is not None and user.is_active else ""


def role_of_key(key: ApiKey) -> str | None:
    """Of the member it belongs to, as `role_in` says it. None: the key is nobody's."""
    return role_in(key.tenant, key.member) if key.member is not None else None


@dataclass(frozen=True)
class LimitInForce:
    scope: str  # "tenant" | "key" | "model"
    id: str  # the tenant's id; the key's id; "<tenant id>/<public model id>"
    kind: str
    value: int
    is_from_plan: bool = False
    is_self_set: bool = False
    """The tenant may change it."""


@dataclass(frozen=True)
class TermsInForce:
    tenant: str
    plan: str
    weight: float
    tier_ceiling: str
    time_zone: str
    default_max_tokens: int | None
    limits: tuple[LimitInForce, ...]
    salt_per_key: bool = False
    discount_percent: int = 0
    is_prepaid: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_of(tenant: Tenant) -> Plan:
    """The one it was given, else the one named default, else (a database without any) one that limits nothing."""
    return tenant.plan or Plan.objects.filter(name=DEFAULT_PLAN).first() or Plan(name=DEFAULT_PLAN)


def plan_name_of(tenant: Tenant) -> str:
    """The same by name, without looking it up."""
    return tenant.plan.name if tenant.plan is not None else DEFAULT_PLAN


def terms_in_force(tenant: Tenant) -> TermsInForce:
    """The plan with the tenant's own limits in place of the plan's; those of revoked keys are left out."""
    return terms_on(tenant, plan_of(tenant))


def terms_on(tenant: Tenant, plan: Plan) -> TermsInForce:
    """What would hold for the tenant on that plan."""
    return terms_on_each(tenant, [plan])[0]


def terms_on_each(tenant: Tenant, plans: Iterable[Plan]) -> list[TermsInForce]:
    """On each of these plans, in one query."""
    rows = list(Limit.objects.for_tenant(tenant).filter(key__revoked_at=None).order_by("key_id", "model", "id"))
    return [_terms(tenant, plan, rows) for plan in plans]


def _terms(tenant: Tenant, plan: Plan, rows: Iterable[Limit]) -> TermsInForce:
    tenant_id = str(tenant.id)
    of_plan = plan.default_limits()
    own = [_in_force(limit, tenant_id, of_plan) for limit in rows]
    own_kinds = {limit.kind for limit in own if limit.scope == "tenant"}
    from_plan = [
        LimitInForce("tenant", tenant_id, kind.value, value, is_from_plan=True)
        for kind, value in of_plan.items()
        if kind.value not in own_kinds
    ]
    order = {kind.value: place for place, kind in enumerate(LimitKind)}
    limits = sorted([*from_plan, *own], key=lambda limit: (limit.scope != "tenant", limit.scope, limit.id, order[limit.kind]))
    return TermsInForce(
        tenant=tenant.name,
        plan=plan.name,
        weight=plan.weight,
        tier_ceiling=plan.tier_ceiling,
        time_zone=tenant.time_zone,
        default_max_tokens=plan.default_max_tokens,
        limits=tuple(limits),
        salt_per_key=plan.salt_per_key,
        discount_percent=plan.discount_percent,
        is_prepaid=plan.is_prepaid,
    )


def prepaid_among(tenant_ids: Iterable[UUID]) -> set[UUID]:
    """Those that may spend what their balance has, and no more."""
    rows = Tenant.objects.filter(id__in=set(tenant_ids))
    found = set(rows.filter(plan__is_prepaid=True).values_list("id", flat=True))
    if Plan.objects.filter(name=DEFAULT_PLAN, is_prepaid=True).exists():
        found |= set(rows.filter(plan=None).values_list("id", flat=True))
    return found


def budgeted(tenant_id: UUID) -> tuple[dict[str, list[str]], set[str]]:
    """The keys that have a budget of their own, each with those whose spend counts for it; and such models."""
    rows = Limit.unscoped.filter(tenant_id=tenant_id, kind=LimitKind.BUDGET).values_list("key_id", "model")
    keys = {key for key, _ in rows if key}
    return lineages(tenant_id, keys) if keys else {}, {model for _, model in rows if model}


def lineages(tenant_id: UUID, key_ids: Iterable[str]) -> dict[str, list[str]]:
    """Each key with those it took the place of by rotation: a monthly cap is not spent anew by rotating."""
    replaced = dict(ApiKey.unscoped.filter(tenant_id=tenant_id).exclude(replaces=None).values_list("id", "replaces_id"))
    found: dict[str, list[str]] = {}
    for key_id in key_ids:
        line = found[key_id] = [key_id]
        while (before := replaced.get(line[-1])) is not None and before not in line:
            line.append(before)
    return found


def tenant_with_id(tenant_id: UUID) -> Tenant | None:
    found: Tenant | None = Tenant.objects.select_related("plan").filter(id=tenant_id).first()
    return found


def names_of_tenants(tenant_ids: Iterable[UUID]) -> dict[UUID, str]:
    return dict(Tenant.objects.filter(id__in=set(tenant_ids)).values_list("id", "name"))


def time_zones(tenant_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Of the tenants that there are."""
    return dict(Tenant.objects.filter(id__in=set(tenant_ids)).values_list("id", "time_zone"))


def _in_force(limit: Limit, tenant_id: str, of_plan: dict[LimitKind, int]) -> LimitInForce:
    """What a tenant set itself, on a plan it has left perhaps, is at most what its plan gives."""
    if limit.key_id:
        return LimitInForce("key", limit.key_id, limit.kind, limit.value, is_self_set=limit.is_self_set)
    if limit.model:
        return LimitInForce("model", f"{tenant_id}/{limit.model}", limit.kind, limit.value, is_self_set=limit.is_self_set)
    given = of_plan.get(LimitKind(limit.kind))
    value = min(limit.value, given) if limit.is_self_set and given is not None else limit.value
    return LimitInForce("tenant", tenant_id, limit.kind, value, is_self_set=limit.is_self_set)


# For pages and the API, which narrow and cut them.


def keys_of_tenant(tenant: Tenant) -> QuerySet[Any]:
    """Newest first, revoked ones too, each with its member."""
    return ApiKey.objects.for_tenant(tenant).select_related("member", "created_by").order_by("-created_at", "id")


def limits_of_key(tenant: Tenant, key_id: str) -> dict[str, int]:
    return dict(Limit.objects.for_tenant(tenant).filter(key_id=key_id).values_list("kind", "value"))


def own_limits(tenant: Tenant) -> dict[str, int]:
    """Those of the tenant itself that stand in place of its plan's."""
    return dict(Limit.objects.for_tenant(tenant).filter(key=None, model="").values_list("kind", "value"))


def budgets_of_keys(tenant: Tenant, key_ids: Sequence[str]) -> dict[str, int]:
    """Micro-dollars a month, by key."""
    rows = Limit.objects.for_tenant(tenant).filter(key_id__in=key_ids, kind=LimitKind.BUDGET)
    return dict(rows.values_list("key_id", "value"))


def members_of_tenant(tenant: Tenant) -> QuerySet[Any]:
    """By name, each with its person."""
    return Membership.objects.for_tenant(tenant).select_related("user").order_by("user__email", "user__username", "id")


def keys_per_member(tenant: Tenant) -> dict[int, int]:
    """How many keys in use each member has."""
    rows = ApiKey.objects.for_tenant(tenant).filter(revoked_at=None, member__isnull=False)
    return dict(rows.order_by().values_list("member").annotate(number=Count("id")))


def open_invitations(tenant: Tenant) -> QuerySet[Any]:
    """Newest first; those that have expired may be sent again."""
    rows = Invitation.objects.for_tenant(tenant).filter(revoked_at=None, accepted_at=None)
    return rows.order_by("-sent_at", "id")


def audit_of_tenant(tenant: Tenant) -> QuerySet[Any]:
    return AuditEntry.objects.filter(tenant=tenant)


def webhooks_of_tenant(tenant: Tenant) -> QuerySet[Any]:
    return WebhookEndpoint.objects.for_tenant(tenant).order_by("created_at", "id")


def deliveries_of(tenant: Tenant, endpoint_id: Any) -> QuerySet[Any]:
    """Newest first, each with its event."""
    rows = WebhookDelivery.objects.for_tenant(tenant).filter(endpoint_id=endpoint_id)
    return rows.select_related("event").order_by("-created_at", "id")


def every_tenant_id() -> list[UUID]:
    """Of customers, in the order they were made: our own account is sent no invoice."""
    return list(Tenant.objects.filter(is_operator=False).order_by("created_at", "id").values_list("id", flat=True))


def newest_audit(*, prefixes: Sequence[str], limit: int) -> list[Any]:
    """Of actions that begin with one of these, whoever's: the newest first."""
    wanted = reduce(or_, (Q(action__startswith=prefix) for prefix in prefixes))
    return list(AuditEntry.objects.filter(wanted).order_by("-id")[:limit])


def operator_ids() -> list[UUID]:
    """Of our own account; empty while there is none."""
    return list(Tenant.objects.filter(is_operator=True).values_list("id", flat=True))

"""Create tenants and tell the data plane of them."""

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from headway.errors import InvalidInput
from inference.services import control
from tenants.access import Role
from tenants.errors import TenantExists, UnknownTenant
from tenants.models import Membership, Plan, Tenant, User
from tenants.selectors import terms_in_force
from tenants.services.audit import record_audit
from tenants.services.members import add_member
from tenants.services.terms import publish_terms

PLAN_OF_NEWCOMERS = "free"
MAX_OWNED = 10
"""Tenants that one person may found and keep."""


def found_tenant(*, name: str, owner: User) -> Tenant:
    """A tenant of a person who signed up: its owner, on the free plan. Raises what create_tenant does, and InvalidInput for
    one who owns as many as anybody may."""
    plan = Plan.objects.filter(name=PLAN_OF_NEWCOMERS).first()
    with transaction.atomic():
        User.objects.select_for_update(no_key=True).get(pk=owner.pk)
        if Membership.unscoped.filter(user=owner, role=Role.OWNER).count() >= MAX_OWNED:
            raise InvalidInput(f"a person owns at most {MAX_OWNED} organisations", param="name")
        tenant = create_tenant(name=name, actor=f"user:{owner}", plan=plan)
        add_member(tenant=tenant, user=owner, role=Role.OWNER, actor=f"user:{owner}")
    return tenant


def create_tenant(*, name: str, actor: str, plan: Plan | None = None, is_operator: bool = False) -> Tenant:
    """Raises TenantExists, and InvalidInput for a name that is not 1-63 letters, digits, hyphens or underscores."""
    tenant = Tenant(name=name, plan=plan, is_operator=is_operator)
    try:
        tenant.clean_fields()
    except ValidationError:
        raise InvalidInput(
            f"{name!r} is not a tenant's name: 1 to 63 letters, digits, hyphens or underscores", param="name"
        ) from None
    try:
        with transaction.atomic():
            tenant.save(force_insert=True)
            publish_tenant(tenant)
            publish_terms(terms_in_force(tenant), tenant)
            record_audit(actor=actor, action="tenant.create", target=str(tenant.id), tenant=tenant, after={"name": name})
    except IntegrityError:
        raise TenantExists(f"there is a tenant {name!r} already") from None
    return tenant


def tenant_named(name: str) -> Tenant:
    """A tenant by its name or id. Raises UnknownTenant."""
    found = Tenant.objects.filter(name=name).first()
    if found is None:
        try:
            found = Tenant.objects.filter(id=name).first()
        except ValidationError:
            found = None
    if found is None:
        raise UnknownTenant(f"there is no tenant {name!r}")
    return found


def publish_tenant(tenant: Tenant) -> None:
    """Call it inside the transaction that changes it."""
    control.publish(
        kind="tenant",
        key=str(tenant.id),
        payload={"name": tenant.name, "cache_salt": tenant.cache_salt, "is_active": tenant.suspended_at is None},
    )

"""Create tenants and tell the data plane of them."""

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from headway.errors import InvalidInput
from inference.services import control
from tenants.errors import TenantExists, UnknownTenant
from tenants.models import Tenant
from tenants.selectors import terms_in_force
from tenants.services.audit import record_audit
from tenants.services.terms import publish_terms


def create_tenant(*, name: str, actor: str) -> Tenant:
    """Raises TenantExists, and InvalidInput for a name that is not 1-63 letters, digits, hyphens or underscores."""
    tenant = Tenant(name=name)
    try:
        tenant.clean_fields()
    except ValidationError:
        raise InvalidInput(
            f"{name!r} is not a tenant's name: 1 to 63 letters, digits, hyphens or underscores", param="name"
        ) from None
    try:
        with transaction.atomic():
            tenant.save(force_insert=True)
            _publish(tenant)
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


def _publish(tenant: Tenant) -> None:
    control.publish(
        kind="tenant",
        key=str(tenant.id),
        payload={"name": tenant.name, "cache_salt": tenant.cache_salt, "is_active": tenant.suspended_at is None},
    )

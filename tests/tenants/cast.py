"""The cast of tests about tenants: two tenants with a person in every role, and a stranger."""

from tenants.models import Membership, Tenant, User
from tenants.services.members import add_member
from tenants.services.tenants import create_tenant


def person(name: str) -> User:
    return User.objects.create_user(username=name, email=f"{name}@example.com", password="x")


def tenant_with(name: str, **roles: User) -> Tenant:
    """`owner=ann`: each role with a person."""
    tenant = create_tenant(name=name, actor="test")
    for role, user in roles.items():
        add_member(tenant=tenant, user=user, role=role, actor="test")
    return tenant


def full_tenant(name: str) -> tuple[Tenant, dict[str, User]]:
    """A person in every role, called `<tenant>-<role>`."""
    people = {role: person(f"{name}-{role}") for role in Membership.Role.values}
    return tenant_with(name, **people), people


def role_of(tenant: Tenant, user: User) -> str | None:
    found = Membership.objects.for_tenant(tenant).filter(user=user).first()
    return found.role if found else None

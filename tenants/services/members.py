"""People who can log in, and what they are in tenants."""

from django.db import IntegrityError, transaction

from tenants.errors import AlreadyMember
from tenants.models import Membership, Tenant, User
from tenants.services.audit import record_audit


def ensure_operator(*, username: str, password: str) -> User:
    """The operator's account; made with this password if there is none, else left as it is."""
    found = User.objects.filter(username=username).first()
    return found or User.objects.create_superuser(username, password=password)


def add_member(*, tenant: Tenant, user: User, role: Membership.Role, actor: str) -> Membership:
    """Raises AlreadyMember. Others come by an invitation they accept (`invitations`)."""
    try:
        with transaction.atomic():
            member: Membership = Membership.unscoped.create(tenant=tenant, user=user, role=role)
            record_audit(actor=actor, action="member.add", target=str(user), tenant=tenant, after={"role": role.value})
    except IntegrityError:
        raise AlreadyMember(f"{user} is a member of {tenant.name} already") from None
    return member

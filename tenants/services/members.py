"""People who can log in, and what they are in tenants.

`actor_role` is the role of who asks (an operator's command: owner): owners make and unmake owners, admins everyone else.
A tenant always has an owner.
"""

from django.db import IntegrityError, transaction

from inference.services import control
from tenants.access import Action, Role, allows, may_assign
from tenants.errors import AlreadyMember, LastOwner, NotAllowed, UnknownMember
from tenants.models import ApiKey, Membership, Tenant, User
from tenants.services.audit import record_audit
from tenants.services.holding import hold_tenant, hold_tenants
from tenants.services.keys import hand_over_key, revoke_api_key


def ensure_operator(*, username: str, password: str) -> User:
    """The operator's account; made with this password if there is none, else left as it is."""
    found = User.objects.filter(username=username).first()
    return found or User.objects.create_superuser(username, password=password)


def add_member(*, tenant: Tenant, user: User, role: str, actor: str) -> Membership:
    """Raises AlreadyMember. Others come by an invitation they accept (`invitations`)."""
    try:
        with transaction.atomic():
            member: Membership = Membership.unscoped.create(tenant=tenant, user=user, role=Membership.Role(role))
            publish_member(member)
            record_audit(actor=actor, action="member.add", target=str(user), tenant=tenant, after={"role": str(role)})
    except IntegrityError:
        raise AlreadyMember(f"{user} is a member of {tenant.name} already") from None
    return member


def change_role(*, tenant: Tenant, user: User, role: str, actor: str, actor_role: str) -> Membership:
    """Raises UnknownMember, NotAllowed, LastOwner. Their keys are demoted with their member, at gateways within a second."""
    with transaction.atomic():
        member = _locked_member(tenant, user)
        before = member.role
        if before == role:
            return member
        _check_may(actor_role, before, role)
        if before == Role.OWNER:
            _check_other_owner(tenant, user)
        member.role = Membership.Role(role)
        member.save(update_fields=["role"])
        publish_member(member)
        record_audit(
            actor=actor,
            action="member.change_role",
            target=str(user),
            tenant=tenant,
            before={"role": before},
            after={"role": str(role)},
        )
    return member


def remove_member(*, tenant: Tenant, user: User, actor: str, actor_role: str, hand_keys_to: User | None = None) -> list[ApiKey]:
    """Returns the keys this concerned: revoked, or with `hand_keys_to` (a member who manages keys) that person's from now on.

    A key that is handed over loses the scope manage: whoever knows it would have the new member's powers.
    Raises UnknownMember, NotAllowed, LastOwner.
    """
    with transaction.atomic():
        member = _locked_member(tenant, user)
        _check_may(actor_role, member.role)
        keys = _take_out(tenant, member, actor, hand_keys_to)
        record_audit(
            actor=actor,
            action="member.remove",
            target=str(user),
            tenant=tenant,
            before={"role": member.role},
            after={"keys": [key.id for key in keys], "keys_handed_to": str(hand_keys_to) if hand_keys_to else None},
        )
    return keys


def leave(*, tenant: Tenant, user: User, hand_keys_to: User | None = None) -> list[ApiKey]:
    """The same by the member itself. Raises UnknownMember, LastOwner."""
    with transaction.atomic():
        member = _locked_member(tenant, user)
        keys = _take_out(tenant, member, f"user:{user}", hand_keys_to)
        record_audit(
            actor=f"user:{user}",
            action="member.leave",
            target=str(user),
            tenant=tenant,
            before={"role": member.role},
            after={"keys": [key.id for key in keys], "keys_handed_to": str(hand_keys_to) if hand_keys_to else None},
        )
    return keys


def transfer_ownership(*, tenant: Tenant, owner: User, to: User, actor: str) -> Membership:
    """`to`, a member, becomes owner, and the owner an admin. Raises UnknownMember, NotAllowed."""
    with transaction.atomic():
        giver, taker = _locked_member(tenant, owner), _locked_member(tenant, to)
        if giver.role != Role.OWNER:
            raise NotAllowed("only an owner gives the ownership away")
        if giver.pk == taker.pk:
            raise NotAllowed("the ownership is given to another member", param="to")
        before = {str(owner): giver.role, str(to): taker.role}
        giver.role, taker.role = Membership.Role.ADMIN, Membership.Role.OWNER
        giver.save(update_fields=["role"])
        taker.save(update_fields=["role"])
        publish_member(giver)
        publish_member(taker)
        after = {str(owner): "admin", str(to): "owner"}
        record_audit(actor=actor, action="tenant.transfer_ownership", target=str(to), tenant=tenant, before=before, after=after)
    return taker


def publish_member(member: Membership, *, is_gone: bool = False) -> None:
    """Tell gateways what the person may do now; who is switched off may nothing. Call it inside the transaction."""
    is_gone = is_gone or not member.user.is_active
    key = f"{member.tenant_id}/{member.user_id}"
    control.publish(kind="member", key=key, payload=None if is_gone else {"role": str(member.role)})


def publish_memberships(user: User) -> None:
    """The same of everywhere the person belongs to, after being switched off or on. Call it inside the transaction."""
    memberships = Membership.unscoped.filter(user=user)
    hold_tenants(Tenant.objects.filter(pk__in=memberships.values("tenant")))
    for member in memberships.select_related("user"):
        publish_member(member)


def _locked_member(tenant: Tenant, user: User) -> Membership:
    """Raises UnknownMember. Others who change the tenant wait."""
    hold_tenant(tenant)
    member: Membership | None = Membership.objects.for_tenant(tenant).filter(user=user).first()
    if member is None:
        raise UnknownMember(f"{user} is no member of {tenant.name}")
    return member


def _check_may(actor_role: str, *roles: str) -> None:
    if not all(may_assign(actor_role, role) for role in roles):
        raise NotAllowed("only an owner makes, changes or removes an owner", param="role")


def _check_other_owner(tenant: Tenant, user: User) -> None:
    if not Membership.objects.for_tenant(tenant).filter(role=Role.OWNER).exclude(user=user).exists():
        raise LastOwner(f"{user} is the last owner of {tenant.name}: make somebody else an owner first")


def _take_out(tenant: Tenant, member: Membership, actor: str, hand_keys_to: User | None) -> list[ApiKey]:
    if member.role == Role.OWNER:
        _check_other_owner(tenant, member.user)
    if hand_keys_to is not None:
        taker = Membership.objects.for_tenant(tenant).filter(user=hand_keys_to).exclude(pk=member.pk).first()
        if taker is None or not allows(taker.role, Action.MANAGE_KEYS):
            raise NotAllowed("keys are handed to another member, who may manage keys", param="hand_keys_to")
    keys = list(ApiKey.objects.for_tenant(tenant).filter(member=member.user, revoked_at=None).order_by("created_at"))
    for key in keys:
        if hand_keys_to is None:
            revoke_api_key(key_id=key.id, actor=actor, tenant=tenant)
        else:
            hand_over_key(key=key, to=hand_keys_to, actor=actor)
    publish_member(member, is_gone=True)
    member.delete()
    return keys

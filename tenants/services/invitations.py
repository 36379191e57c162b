"""Ask people to join a tenant, by e-mail. A token is known to the mail alone; we keep its hash."""

import hashlib
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.utils import timezone

from headway.errors import Conflict, InvalidInput
from tenants.access import may_assign
from tenants.errors import AlreadyMember, NotAllowed, TooManyInvitations, UnknownInvitation, WrongPerson
from tenants.models import AuditEntry, Invitation, Membership, Tenant, User
from tenants.services.audit import record_audit
from tenants.services.holding import hold_tenant
from tenants.services.members import add_member
from workers.services.mail import queue_mail
from workers.services.site_links import site_url

VALID_FOR = timedelta(days=7)
MAX_OPEN = 50
"""Invitations of one tenant that wait to be accepted, expired ones too."""
MAX_MAILS_AN_HOUR = 60
"""Of one tenant, sent again or not; each goes to somebody who may not want it."""
MAX_MAILS_TO_ONE_AN_HOUR = 5
HOUR = timedelta(hours=1)
SEND, RESEND = "invitation.send", "invitation.resend"
INVITATION_PATH = "/invitations/{token}/"
"""Of the page that accepts it."""


@dataclass(frozen=True)
class Invited:
    """The one time the token is known, but for the mail."""

    invitation: Invitation
    token: str = field(repr=False)


def invite(*, tenant: Tenant, email: str, role: str, actor: str, actor_role: str, by: User | None = None) -> Invited:
    """Mail an invitation; an open one to the same address is replaced, so its old link stops working.

    Raises InvalidInput, NotAllowed (an admin invites no owner), AlreadyMember, Conflict (too many are open),
    TooManyInvitations.
    """
    email = _checked_email(email)
    if role not in Membership.Role.values:
        raise InvalidInput(f"a role is one of {', '.join(Membership.Role.values)}", param="role")
    if not may_assign(actor_role, role):
        raise NotAllowed("only an owner invites an owner", param="role")
    if Membership.objects.for_tenant(tenant).filter(user__email__iexact=email).exists():
        raise AlreadyMember(f"{email} belongs to {tenant.name} already", param="email")
    token, now = secrets.token_urlsafe(32), timezone.now()
    try:
        with transaction.atomic():
            hold_tenant(tenant)
            _open_ones(tenant).filter(email=email).update(revoked_at=now)
            if _open_ones(tenant).count() >= MAX_OPEN:
                raise Conflict(f"{MAX_OPEN} invitations to {tenant.name} are open: revoke some first")
            _check_rate(tenant, email)
            invitation = Invitation.unscoped.create(
                tenant=tenant,
                email=email,
                role=role,
                token_sha256=_hash(token),
                invited_by=by,
                sent_at=now,
                expires_at=now + VALID_FOR,
            )
            record_audit(actor=actor, action=SEND, target=email, tenant=tenant, after={"role": role})
            _mail(invitation, tenant, token)
    except IntegrityError:
        raise AlreadyMember(f"{email} has just been invited by somebody else", param="email") from None
    return Invited(invitation=invitation, token=token)


def resend_invitation(*, tenant: Tenant, invitation_id: str, actor: str, actor_role: str) -> Invited:
    """Again, with a new link and a new week; the old link stops working.

    Raises UnknownInvitation, NotAllowed, TooManyInvitations.
    """
    token, now = secrets.token_urlsafe(32), timezone.now()
    with transaction.atomic():
        hold_tenant(tenant)
        invitation = _open_invitation(tenant, invitation_id)
        if not may_assign(actor_role, invitation.role):
            raise NotAllowed("only an owner invites an owner", param="role")
        _check_rate(tenant, invitation.email)
        invitation.token_sha256, invitation.sent_at, invitation.expires_at = _hash(token), now, now + VALID_FOR
        changed = (
            _open_ones(tenant)
            .filter(pk=invitation.pk)
            .update(token_sha256=invitation.token_sha256, sent_at=now, expires_at=invitation.expires_at)
        )
        if not changed:
            raise UnknownInvitation("this invitation was used or revoked meanwhile")
        record_audit(actor=actor, action=RESEND, target=invitation.email, tenant=tenant)
        _mail(invitation, tenant, token)
    return Invited(invitation=invitation, token=token)


def revoke_invitation(*, tenant: Tenant, invitation_id: str, actor: str) -> None:
    """Raises UnknownInvitation."""
    with transaction.atomic():
        invitation = _open_invitation(tenant, invitation_id)
        if not _open_ones(tenant).filter(pk=invitation.pk).update(revoked_at=timezone.now()):
            raise UnknownInvitation("this invitation was used or revoked meanwhile")
        record_audit(actor=actor, action="invitation.revoke", target=invitation.email, tenant=tenant)


def invitation_of_token(token: str) -> Invitation:
    """The open one that a link carries, with its tenant: what a page shows before it is accepted. Raises UnknownInvitation."""
    rows = Invitation.unscoped.filter(token_sha256=_hash(token), revoked_at=None, accepted_at=None)
    found: Invitation | None = rows.select_related("tenant").first()
    if found is None or found.expires_at <= timezone.now() or found.tenant.suspended_at is not None:
        raise UnknownInvitation("this invitation is unknown, used, revoked or has expired: ask for a new one")
    return found


def accept_invitation(*, token: str, user: User, verified_emails: Collection[str]) -> Membership:
    """`verified_emails`: those the person has shown to be theirs. Raises UnknownInvitation, WrongPerson, AlreadyMember."""
    with transaction.atomic():
        invitation = invitation_of_token(token)
        if invitation.email not in {email.lower() for email in verified_emails}:
            raise WrongPerson(f"this invitation is for {invitation.email}: log in with that address, verified", param="email")
        accepted = {"accepted_at": timezone.now(), "accepted_by": user}
        if not _open_ones(invitation.tenant).filter(pk=invitation.pk).update(**accepted):
            raise UnknownInvitation("this invitation was used or revoked meanwhile")
        return add_member(tenant=invitation.tenant, user=user, role=invitation.role, actor=f"user:{user}")


def _check_rate(tenant: Tenant, email: str) -> None:
    """By the audit log, which has a line for each mail. Raises TooManyInvitations."""
    now = timezone.now()
    sent = AuditEntry.objects.filter(tenant=tenant, action__in=(SEND, RESEND), at__gt=now - HOUR).order_by("-at")
    for rows, allowed in ((sent, MAX_MAILS_AN_HOUR), (sent.filter(target=email), MAX_MAILS_TO_ONE_AN_HOUR)):
        oldest = next(iter(rows.values_list("at", flat=True)[allowed - 1 : allowed]), None)
        if oldest is not None:
            raise TooManyInvitations(
                f"at most {MAX_MAILS_AN_HOUR} invitations an hour are mailed, {MAX_MAILS_TO_ONE_AN_HOUR} to one address",
                param="email",
                retry_after_s=(oldest + HOUR - now).total_seconds(),
            )


def _open_ones(tenant: Tenant):  # type: ignore[no-untyped-def]  # a queryset of our manager
    return Invitation.objects.for_tenant(tenant).filter(revoked_at=None, accepted_at=None)


def _open_invitation(tenant: Tenant, invitation_id: str) -> Invitation:
    try:
        found: Invitation | None = _open_ones(tenant).filter(pk=invitation_id).first()
    except ValidationError:  # no UUID
        found = None
    if found is None:
        raise UnknownInvitation("there is no such open invitation")
    return found


def _checked_email(email: str) -> str:
    email = email.strip().lower()
    try:
        validate_email(email)
    except ValidationError:
        raise InvalidInput("this is no e-mail address", param="email") from None
    if len(email) > 254:
        raise InvalidInput("an e-mail address has at most 254 characters", param="email")
    return email


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _mail(invitation: Invitation, tenant: Tenant, token: str) -> None:
    link = site_url(INVITATION_PATH.format(token=token))
    queue_mail(
        to=invitation.email,
        subject=f"You are invited to {tenant.name} on Headway",
        text=(
            f"You are invited to join {tenant.name} as {invitation.role}.\n\n{link}\n\n"
            f"The link works until {invitation.expires_at:%Y-%m-%d %H:%M} UTC, for {invitation.email} only.\n"
            "If you did not expect this, ignore it.\n"
        ),
    )

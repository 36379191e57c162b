"""HeadwayError
├── NotFound ── UnknownTenant, UnknownKey, UnknownPlan, UnknownMember, UnknownInvitation, UnknownWebhook
├── Conflict ── TenantExists, AlreadyMember, LastOwner, AlreadyRotated
├── NotAllowed ── WrongPerson   who asks may not do that
├── TooManyInvitations   retry later
├── TenantScopeMissing   our mistake: a query over tenants that names none
└── AuditIsAppendOnly    our mistake: code that would change the audit log
"""

from headway.errors import Conflict, HeadwayError, NotFound


class TenantScopeMissing(HeadwayError):
    """Page someone: code asked for tenant-owned rows without saying whose."""


class UnknownTenant(NotFound):
    """Fix the name; there is no such tenant."""

    code = "tenant_not_found"


class UnknownKey(NotFound):
    """Fix the id; there is no such key."""

    code = "key_not_found"


class UnknownPlan(NotFound):
    """Choose a plan that there is, or define it."""

    code = "plan_not_found"


class TenantExists(Conflict):
    """Choose another name; this one is taken."""

    code = "tenant_exists"


class AlreadyMember(Conflict):
    """Change the role instead; this person belongs to the tenant."""

    code = "already_member"


class LastOwner(Conflict):
    """Make somebody else an owner first; a tenant always has one."""

    code = "last_owner"


class AlreadyRotated(Conflict):
    """Use the key that took its place; a key is rotated once."""

    code = "key_already_rotated"


class UnknownMember(NotFound):
    """Fix the member; this person does not belong to the tenant."""

    code = "member_not_found"


class UnknownInvitation(NotFound):
    """Ask for a new invitation; this one is unknown, used, revoked or has expired."""

    code = "invitation_not_found"


class UnknownWebhook(NotFound):
    """Fix the id; there is no such endpoint or delivery."""

    code = "webhook_not_found"


class NotAllowed(HeadwayError):
    """Ask an owner; your role, or this key's scopes, do not allow that."""

    code = "not_allowed"
    http_status = 403
    error_type = "invalid_request_error"


class WrongPerson(NotAllowed):
    """Log in with the address that was invited, and verified; the invitation is another person's."""

    code = "wrong_person"


class TooManyInvitations(HeadwayError):
    """Retry later; too many invitations were mailed within an hour."""

    code = "too_many_invitations"
    http_status = 429
    error_type = "rate_limit_error"


class AuditIsAppendOnly(HeadwayError):
    """Page someone: code tried to change or delete what the audit log says."""

    code = "audit_is_append_only"

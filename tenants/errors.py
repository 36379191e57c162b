"""HeadwayError
├── NotFound ── UnknownTenant, UnknownKey, UnknownPlan
├── Conflict ── TenantExists, AlreadyMember
└── TenantScopeMissing   our mistake: a query over tenants that names none
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

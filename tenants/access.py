"""Who may do what: the one table that pages, the REST API and sockets ask. Pure.

A member's role allows actions. A key's scopes allow actions too, and never more than the role of the member it belongs to
has at that moment: who is demoted has keys that are demoted with them. A key of nobody's (made by an operator) has what its
scopes say. What a key may do at the gateway (run models, look up receipts) is `RUN_INFERENCE` and `VIEW_REQUESTS`.
"""

from collections.abc import Iterable
from enum import StrEnum


class Action(StrEnum):
    VIEW_TENANT = "view_tenant"
    VIEW_MEMBERS = "view_members"
    MANAGE_MEMBERS = "manage_members"
    TRANSFER_OWNERSHIP = "transfer_ownership"
    VIEW_KEYS = "view_keys"
    MANAGE_KEYS = "manage_keys"
    VIEW_USAGE = "view_usage"
    VIEW_REQUESTS = "view_requests"
    VIEW_LIMITS = "view_limits"
    MANAGE_LIMITS = "manage_limits"
    VIEW_BILLING = "view_billing"
    MANAGE_BILLING = "manage_billing"
    """The plan is chosen with it."""
    MANAGE_SETTINGS = "manage_settings"
    VIEW_WEBHOOKS = "view_webhooks"
    MANAGE_WEBHOOKS = "manage_webhooks"
    VIEW_AUDIT = "view_audit"
    USE_PLAYGROUND = "use_playground"
    RUN_INFERENCE = "run_inference"


class Role(StrEnum):
    """The words of Membership.Role."""

    OWNER = "owner"
    ADMIN = "admin"
    DEVELOPER = "developer"
    BILLING = "billing"
    VIEWER = "viewer"


class Scope(StrEnum):
    """Of an API key."""

    INFERENCE = "inference"
    READ_USAGE = "read_usage"
    MANAGE = "manage"


NOBODY: frozenset[Action] = frozenset()
_EVERYTHING = frozenset(Action)
_READING = frozenset({Action.VIEW_TENANT, Action.VIEW_USAGE, Action.VIEW_REQUESTS, Action.VIEW_LIMITS})
_RUNNING = frozenset({Action.USE_PLAYGROUND, Action.RUN_INFERENCE})

OF_ROLE: dict[Role, frozenset[Action]] = {
    Role.OWNER: _EVERYTHING,
    Role.ADMIN: _EVERYTHING - {Action.TRANSFER_OWNERSHIP, Action.MANAGE_BILLING},
    Role.DEVELOPER: _READING
    | _RUNNING
    | {Action.VIEW_MEMBERS, Action.VIEW_KEYS, Action.MANAGE_KEYS, Action.VIEW_WEBHOOKS, Action.MANAGE_WEBHOOKS},
    Role.BILLING: _READING - {Action.VIEW_REQUESTS} | {Action.VIEW_MEMBERS, Action.VIEW_BILLING, Action.MANAGE_BILLING},
    Role.VIEWER: _READING | {Action.VIEW_MEMBERS, Action.VIEW_KEYS},
}

OF_SCOPE: dict[Scope, frozenset[Action]] = {
    Scope.INFERENCE: frozenset({Action.RUN_INFERENCE, Action.VIEW_REQUESTS}),
    Scope.READ_USAGE: _READING,
    Scope.MANAGE: _EVERYTHING
    - _RUNNING
    - {Action.TRANSFER_OWNERSHIP, Action.MANAGE_BILLING},  # a key that leaks takes neither the tenant nor its money
}


LOOKING = frozenset(action for action in Action if action.value.startswith("view_"))
"""What changes nothing: all that an operator who visits a tenant may do there."""


def allows(role: str, action: Action) -> bool:
    """Does a member of this role do that? A role this release does not know does nothing."""
    return action in actions_of_role(role)


def actions_of_role(role: str) -> frozenset[Action]:
    return OF_ROLE[Role(role)] if role in set(Role) else NOBODY


def actions_of_key(scopes: Iterable[str], *, member_role: str | None) -> frozenset[Action]:
    """`member_role`: of the member the key belongs to now; None: a key of nobody's."""
    of_scopes = NOBODY.union(*(OF_SCOPE[Scope(scope)] for scope in scopes if scope in set(Scope)))
    return of_scopes if member_role is None else of_scopes & actions_of_role(member_role)


def may_assign(actor_role: str, role: str) -> bool:
    """May who has the one role give (or take) the other? Owners make owners; admins everyone else."""
    return allows(actor_role, Action.MANAGE_MEMBERS) and (role != Role.OWNER or allows(actor_role, Action.TRANSFER_OWNERSHIP))

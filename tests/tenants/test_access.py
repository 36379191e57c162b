import pytest

from tenants.access import OF_ROLE, OF_SCOPE, Action, Role, Scope, actions_of_key, actions_of_role, allows
from tenants.models import Membership, User
from tenants.selectors import membership_of, tenants_of
from tenants.services.members import add_member
from tenants.services.tenants import create_tenant


def test_the_roles_are_those_of_memberships_and_each_has_its_row() -> None:
    assert set(Role) == set(Membership.Role.values) == set(OF_ROLE)
    assert set(OF_SCOPE) == set(Scope)


def test_the_owner_may_everything_and_alone_gives_ownership_away() -> None:
    assert OF_ROLE[Role.OWNER] == set(Action)
    assert [role for role in Role if allows(role, Action.TRANSFER_OWNERSHIP)] == [Role.OWNER]


@pytest.mark.parametrize(
    ("action", "roles"),
    [
        (Action.VIEW_TENANT, "owner admin developer billing viewer"),
        (Action.VIEW_USAGE, "owner admin developer billing viewer"),
        (Action.VIEW_REQUESTS, "owner admin developer viewer"),
        (Action.MANAGE_KEYS, "owner admin developer"),
        (Action.VIEW_KEYS, "owner admin developer viewer"),
        (Action.MANAGE_MEMBERS, "owner admin"),
        (Action.MANAGE_LIMITS, "owner admin"),
        (Action.MANAGE_BILLING, "owner billing"),
        (Action.VIEW_BILLING, "owner admin billing"),
        (Action.VIEW_AUDIT, "owner admin"),
        (Action.USE_PLAYGROUND, "owner admin developer"),
    ],
)
def test_who_may(action: Action, roles: str) -> None:
    assert [role.value for role in Role if allows(role, action)] == roles.split()


def test_an_unknown_role_or_scope_may_nothing() -> None:
    assert actions_of_role("emperor") == actions_of_role("") == frozenset()
    assert actions_of_key(["everything"], member_role="owner") == frozenset()
    assert actions_of_key([], member_role=None) == frozenset()


def test_a_key_has_its_scopes_and_never_more_than_its_member() -> None:
    every_scope = list(Scope)
    for role in Role:
        assert actions_of_key(every_scope, member_role=role) <= actions_of_role(role)
    assert Action.MANAGE_MEMBERS in actions_of_key(["manage"], member_role="admin")
    assert Action.MANAGE_MEMBERS not in actions_of_key(["manage"], member_role="developer")
    assert Action.MANAGE_KEYS not in actions_of_key(["inference", "read_usage"], member_role="owner")
    assert Action.RUN_INFERENCE not in actions_of_key(["read_usage", "manage"], member_role="owner")


def test_no_key_takes_the_tenant_or_its_money() -> None:
    for role in (None, *Role):
        assert not actions_of_key(list(Scope), member_role=role) & {Action.TRANSFER_OWNERSHIP, Action.MANAGE_BILLING}


@pytest.mark.django_db
def test_a_membership_is_found_by_the_tenants_name_and_by_nobody_else() -> None:
    acme, globex = (create_tenant(name=name, actor="test") for name in ("acme", "globex"))
    ann, stranger = (User.objects.create_user(username=name) for name in ("ann", "stranger"))
    for tenant in (globex, acme):
        add_member(tenant=tenant, user=ann, role=Membership.Role.VIEWER, actor="test")
    found = membership_of(ann, "acme")
    assert found is not None and (found.tenant, found.role) == (acme, "viewer")
    assert membership_of(stranger, "acme") is None
    assert membership_of(ann, "nothing") is None
    assert [membership.tenant.name for membership in tenants_of(ann)] == ["acme", "globex"]
    assert tenants_of(stranger) == []


@pytest.mark.django_db
def test_who_is_switched_off_is_a_member_of_nothing() -> None:
    acme, ann = create_tenant(name="acme", actor="test"), User.objects.create_user(username="ann")
    add_member(tenant=acme, user=ann, role=Membership.Role.OWNER, actor="test")
    ann.is_active = False
    ann.save()
    assert membership_of(ann, "acme") is None
    assert tenants_of(ann) == []

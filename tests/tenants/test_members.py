import importlib
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.db import connection
from django.test import Client

from headway.errors import InvalidInput
from inference.models import ControlChange
from tenants.errors import AlreadyMember, LastOwner, NotAllowed, TenantExists, UnknownMember
from tenants.models import ApiKey, AuditEntry, Membership, Tenant, User
from tenants.services.key_format import parse_key
from tenants.services.keys import issue_api_key
from tenants.services.members import add_member, change_role, leave, remove_member, transfer_ownership
from tenants.services.tenants import MAX_OWNED, found_tenant
from tests.tenants.cast import full_tenant, person, role_of, tenant_with

pytestmark = pytest.mark.django_db


@pytest.fixture
def ann() -> User:
    return person("ann")


@pytest.fixture
def acme(ann: User) -> Tenant:
    return tenant_with("acme", owner=ann)


def newest(key: ApiKey) -> ControlChange:
    return ControlChange.objects.filter(kind="key", key=key.id).latest("id")


def test_who_founds_a_tenant_owns_it_on_the_free_plan(ann: User) -> None:
    tenant = found_tenant(name="initech", owner=ann)
    assert (role_of(tenant, ann), tenant.plan and tenant.plan.name) == ("owner", "free")
    assert [entry.actor for entry in AuditEntry.objects.filter(tenant=tenant)] == ["user:ann@example.com"] * 2
    with pytest.raises(TenantExists):
        found_tenant(name="initech", owner=ann)


def test_nobody_founds_tenants_without_end(ann: User) -> None:
    for number in range(MAX_OWNED):
        found_tenant(name=f"t{number}", owner=ann)
    with pytest.raises(InvalidInput):
        found_tenant(name="one-more", owner=ann)
    assert not Tenant.objects.filter(name="one-more").exists()


def test_a_person_is_a_member_once(acme: Tenant, ann: User) -> None:
    with pytest.raises(AlreadyMember):
        add_member(tenant=acme, user=ann, role="viewer", actor="test")
    assert role_of(acme, ann) == "owner"


def test_a_role_changes_and_is_audited_with_before_and_after(acme: Tenant) -> None:
    bob = person("bob")
    add_member(tenant=acme, user=bob, role="viewer", actor="test")
    change_role(tenant=acme, user=bob, role="developer", actor="user:ann", actor_role="owner")
    entry = AuditEntry.objects.get(action="member.change_role")
    assert (role_of(acme, bob), entry.before, entry.after) == ("developer", {"role": "viewer"}, {"role": "developer"})


def test_the_last_owner_is_neither_demoted_nor_removed_nor_leaves(acme: Tenant, ann: User) -> None:
    with pytest.raises(LastOwner):
        change_role(tenant=acme, user=ann, role="admin", actor="test", actor_role="owner")
    with pytest.raises(LastOwner):
        remove_member(tenant=acme, user=ann, actor="test", actor_role="owner")
    with pytest.raises(LastOwner):
        leave(tenant=acme, user=ann)
    assert role_of(acme, ann) == "owner"


def test_with_another_owner_an_owner_may_go(acme: Tenant, ann: User) -> None:
    bob = person("bob")
    add_member(tenant=acme, user=bob, role="owner", actor="test")
    leave(tenant=acme, user=ann)
    assert (role_of(acme, ann), role_of(acme, bob)) == (None, "owner")


@pytest.mark.parametrize("actor_role", ["admin", "developer", "billing", "viewer", ""])
def test_owners_alone_make_and_unmake_owners(actor_role: str) -> None:
    tenant, people = full_tenant("acme")
    add_member(tenant=tenant, user=person("second"), role="owner", actor="test")
    for user, role in ((people["viewer"], "owner"), (people["owner"], "viewer")):
        with pytest.raises(NotAllowed):
            change_role(tenant=tenant, user=user, role=role, actor="test", actor_role=actor_role)
    with pytest.raises(NotAllowed):
        remove_member(tenant=tenant, user=people["owner"], actor="test", actor_role=actor_role)
    assert (role_of(tenant, people["viewer"]), role_of(tenant, people["owner"])) == ("viewer", "owner")


def test_a_stranger_is_no_member_to_change_or_remove(acme: Tenant) -> None:
    stranger = person("stranger")
    with pytest.raises(UnknownMember):
        change_role(tenant=acme, user=stranger, role="viewer", actor="test", actor_role="owner")
    with pytest.raises(UnknownMember):
        remove_member(tenant=acme, user=stranger, actor="test", actor_role="owner")


def test_the_keys_of_who_is_removed_are_revoked(acme: Tenant) -> None:
    bob = person("bob")
    add_member(tenant=acme, user=bob, role="developer", actor="test")
    key = issue_api_key(tenant=acme, name="ci", actor="test", member=bob).key
    others = issue_api_key(tenant=acme, name="other", actor="test").key
    assert [each.id for each in remove_member(tenant=acme, user=bob, actor="test", actor_role="owner")] == [key.id]
    assert newest(key).payload is None
    assert newest(others).payload is not None
    assert ApiKey.objects.for_tenant(acme).get(id=key.id).revoked_at is not None


def test_or_they_are_handed_over_without_what_only_their_member_might_do(acme: Tenant, ann: User) -> None:
    bob = person("bob")
    add_member(tenant=acme, user=bob, role="developer", actor="test")
    issued = issue_api_key(tenant=acme, name="ci", actor="test", member=bob, scopes=["inference", "manage"])
    remove_member(tenant=acme, user=bob, actor="test", actor_role="owner", hand_keys_to=ann)
    key = ApiKey.objects.for_tenant(acme).get()
    assert (key.member, key.scopes, key.revoked_at) == (ann, ["inference"], None)
    payload = newest(key).payload
    assert payload is not None and (payload["member_id"], payload["scopes"]) == (ann.pk, ["inference"])
    assert parse_key(issued.text) is not None


def test_keys_are_handed_only_to_who_may_manage_them(acme: Tenant) -> None:
    bob, viewer, stranger = person("bob"), person("viewer"), person("stranger")
    add_member(tenant=acme, user=bob, role="developer", actor="test")
    add_member(tenant=acme, user=viewer, role="viewer", actor="test")
    for to in (viewer, stranger, bob):
        with pytest.raises(NotAllowed):
            remove_member(tenant=acme, user=bob, actor="test", actor_role="owner", hand_keys_to=to)
    assert role_of(acme, bob) == "developer"


def test_ownership_is_given_to_a_member_by_an_owner(acme: Tenant, ann: User) -> None:
    bob, stranger = person("bob"), person("stranger")
    add_member(tenant=acme, user=bob, role="viewer", actor="test")
    with pytest.raises(UnknownMember):
        transfer_ownership(tenant=acme, owner=ann, to=stranger, actor="test")
    with pytest.raises(NotAllowed):
        transfer_ownership(tenant=acme, owner=bob, to=ann, actor="test")
    with pytest.raises(NotAllowed):
        transfer_ownership(tenant=acme, owner=ann, to=ann, actor="test")
    assert (role_of(acme, ann), role_of(acme, bob)) == ("owner", "viewer")
    transfer_ownership(tenant=acme, owner=ann, to=bob, actor="test")
    assert (role_of(acme, ann), role_of(acme, bob)) == ("admin", "owner")
    assert Membership.objects.for_tenant(acme).filter(role="owner").count() == 1


def told(tenant: Tenant, user: User) -> object:
    return ControlChange.objects.filter(kind="member", key=f"{tenant.id}/{user.pk}").latest("id").payload


def test_n1_gateways_are_told_of_every_change_of_a_member(acme: Tenant, ann: User) -> None:
    bob = person("bob")
    add_member(tenant=acme, user=bob, role="developer", actor="test")
    assert told(acme, bob) == {"role": "developer"}
    change_role(tenant=acme, user=bob, role="viewer", actor="test", actor_role="owner")
    assert told(acme, bob) == {"role": "viewer"}
    transfer_ownership(tenant=acme, owner=ann, to=bob, actor="test")
    assert (told(acme, ann), told(acme, bob)) == ({"role": "admin"}, {"role": "owner"})
    leave(tenant=acme, user=ann)
    assert told(acme, ann) is None
    cy = person("cy")
    add_member(tenant=acme, user=cy, role="developer", actor="test")
    remove_member(tenant=acme, user=cy, actor="test", actor_role="owner")
    assert told(acme, cy) is None


def test_n1_gateways_are_told_of_who_is_switched_off_and_on_again(acme: Tenant, ann: User, admin_client: Client) -> None:
    fields = {"username": "ann", "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    admin_client.post(f"/admin/tenants/user/{ann.pk}/change/", fields)
    assert told(acme, ann) is None
    admin_client.post(f"/admin/tenants/user/{ann.pk}/change/", fields | {"is_active": "on"})
    assert told(acme, ann) == {"role": "owner"}


def test_the_admin_neither_deletes_people_nor_changes_members(acme: Tenant, ann: User, admin_client: Client) -> None:
    member = Membership.objects.for_tenant(acme).get(user=ann)
    assert admin_client.post(f"/admin/tenants/user/{ann.pk}/delete/", {"post": "yes"}).status_code == 403
    assert admin_client.post(f"/admin/tenants/membership/{member.pk}/change/", {"role": "viewer"}).status_code == 403
    assert role_of(acme, ann) == "owner"


def test_a_database_from_before_tells_gateways_who_its_members_are(acme: Tenant, ann: User) -> None:
    off = person("off")
    add_member(tenant=acme, user=off, role="admin", actor="test")
    User.objects.filter(pk=off.pk).update(is_active=False)
    ControlChange.objects.all().delete()
    migration = importlib.import_module("tenants.migrations.0006_publish_members")
    migration.publish_members(apps, SimpleNamespace(connection=connection, execute=connection.cursor().execute))
    assert list(ControlChange.objects.values_list("kind", "key", "payload")) == [
        ("member", f"{acme.id}/{ann.pk}", {"role": "owner"})
    ]

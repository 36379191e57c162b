"""What can be set of keys, rotating, switching off, and that the data plane is told each time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from billing.services.ledger import record_usage
from headway.errors import Conflict, InvalidInput
from inference.models import ControlChange, Model
from tenants.errors import AlreadyRotated, NotAllowed, UnknownKey
from tenants.models import ApiKey, AuditEntry, Limit, LimitKind, Tenant
from tenants.services import keys
from tenants.services.key_settings import allows_address, settings_of
from tenants.services.key_use import note_key_use
from tenants.services.keys import (
    change_api_key,
    disable_api_key,
    enable_api_key,
    issue_api_key,
    revoke_api_key,
    rotate_api_key,
)
from tenants.services.members import add_member
from tests.inference.gateway.usage_drafts import draft
from tests.tenants.cast import person, tenant_with

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    Model.objects.create(public_id="tiny")
    return tenant_with("acme", owner=person("ann"))


def told(key: ApiKey) -> dict[str, Any] | None:
    return ControlChange.objects.filter(kind="key", key=key.id).latest("id").payload


def test_all_settings_reach_the_data_plane_in_one_form(acme: Tenant) -> None:
    key = issue_api_key(
        tenant=acme,
        name="ci",
        actor="test",
        scopes=["read_usage", "inference", "inference"],
        allowed_models=["tiny"],
        allowed_addresses=["203.0.113.7", "2001:DB8::1/32"],
        tier_ceiling="batch",
        limits={LimitKind.BUDGET: 5_000_000},
    ).key
    payload = told(key)
    assert payload is not None
    assert payload["scopes"] == ["inference", "read_usage"]
    assert payload["models"] == ["tiny"]
    assert payload["addresses"] == ["2001:db8::/32", "203.0.113.7/32"]
    assert (payload["tier_ceiling"], payload["is_disabled"]) == ("batch", False)
    assert Limit.objects.for_tenant(acme).get().key_id == key.id
    terms = ControlChange.objects.filter(kind="terms", key=str(acme.id)).latest("id").payload
    assert terms is not None and terms["limits"] == [
        {"scope": "key", "id": key.id, "kind": "monthly_budget", "value": 5_000_000}
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"scopes": []},
        {"scopes": ["everything"]},
        {"allowed_models": ["gpt-9"]},
        {"allowed_addresses": ["10.0.0.0/99"]},
        {"allowed_addresses": ["example.com"]},
        {"allowed_addresses": [f"10.0.{number}.1" for number in range(101)]},
        {"tier_ceiling": "urgent"},
        {"name": "a\0b"},
        {"limits": {LimitKind.BUDGET: 0}},
    ],
)
def test_nonsense_makes_no_key(acme: Tenant, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        issue_api_key(**{"tenant": acme, "name": "ci", "actor": "test", **wrong})
    assert not ApiKey.unscoped.exists()


def test_a_change_is_told_and_audited(acme: Tenant) -> None:
    key = issue_api_key(tenant=acme, name="ci", actor="test").key
    settings = replace(settings_of(key), name="deploy", allowed_models=("tiny",), scopes=("read_usage",))
    change_api_key(tenant=acme, key_id=key.id, settings=settings, actor="user:ann")
    payload, entry = told(key), AuditEntry.objects.get(action="key.change")
    assert payload is not None and (payload["models"], payload["scopes"]) == (["tiny"], ["read_usage"])
    assert entry.before is not None and entry.after is not None
    assert (entry.before["name"], entry.after["name"]) == ("ci", "deploy")


def test_an_existing_key_never_becomes_a_managing_one(acme: Tenant) -> None:
    key = issue_api_key(tenant=acme, name="ci", actor="test").key
    with pytest.raises(NotAllowed):
        change_api_key(
            tenant=acme, key_id=key.id, settings=replace(settings_of(key), scopes=("inference", "manage")), actor="user:dev"
        )
    assert ApiKey.objects.for_tenant(acme).get().scopes == ["inference"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("::ffff:203.0.113.7", "203.0.113.7/32"),
        ("::ffff:203.0.113.7/120", "203.0.113.0/24"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::/0", "::/0"),
        ("::fffe:0:0/95", "::fffe:0:0/95"),
        ("2001:db8::/32", "2001:db8::/32"),
    ],
)
def test_n16_ipv4_mapped_into_ipv6_is_kept_as_ipv4(acme: Tenant, given: str, kept: str) -> None:
    key = issue_api_key(tenant=acme, name="ci", actor="test", allowed_addresses=[given]).key
    assert key.allowed_addresses == [kept]
    if "203.0.113" in kept:
        assert allows_address(key, "203.0.113.7") and allows_address(key, "::ffff:203.0.113.7")


@pytest.mark.parametrize("overlap_h", [1, 24])
def test_rotating_with_overlap_lets_the_old_key_end_by_itself(acme: Tenant, overlap_h: int) -> None:
    old = issue_api_key(tenant=acme, name="ci", actor="test", allowed_models=["tiny"], limits={LimitKind.REQUESTS: 7}).key
    before = timezone.now()
    issued = rotate_api_key(tenant=acme, key_id=old.id, overlap_h=overlap_h, actor="user:ann")
    payload = told(old)
    assert payload is not None
    assert timedelta(0) <= datetime.fromtimestamp(payload["expires_at"], UTC) - before - timedelta(hours=overlap_h)
    assert datetime.fromtimestamp(payload["expires_at"], UTC) <= timezone.now() + timedelta(hours=overlap_h)
    new = ApiKey.objects.for_tenant(acme).get(id=issued.key.id)
    assert (new.replaces, new.allowed_models, new.expires_at) == (old, ["tiny"], None)
    assert Limit.objects.for_tenant(acme).get(key=new).value == 7


def test_rotating_without_overlap_revokes_at_once(acme: Tenant) -> None:
    old = issue_api_key(tenant=acme, name="ci", actor="test").key
    issued = rotate_api_key(tenant=acme, key_id=old.id, overlap_h=0, actor="user:ann")
    assert told(old) is None
    assert told(issued.key) is not None
    with pytest.raises(AlreadyRotated):
        rotate_api_key(tenant=acme, key_id=old.id, overlap_h=0, actor="user:ann")


def test_an_overlap_never_prolongs_a_key(acme: Tenant) -> None:
    soon = timezone.now() + timedelta(minutes=5)
    old = issue_api_key(tenant=acme, name="ci", actor="test", expires_at=soon).key
    rotate_api_key(tenant=acme, key_id=old.id, overlap_h=24, actor="user:ann")
    assert ApiKey.objects.for_tenant(acme).get(id=old.id).expires_at == soon
    with pytest.raises(InvalidInput):
        rotate_api_key(tenant=acme, key_id=old.id, overlap_h=48, actor="user:ann")


def test_b32_rotating_does_not_fill_a_monthly_cap_again(acme: Tenant) -> None:
    def spend(request_id: str, key: ApiKey) -> dict[str, int]:
        record_usage(drafts=[draft(request_id, "done", tenant_id=str(acme.id), key_id=key.id, amount_picos=40)])
        payload = ControlChange.objects.filter(kind="month", key=str(acme.id)).latest("id").payload
        assert payload is not None
        return {name: int(picos) for name, picos in payload["keys"].items()}

    old = issue_api_key(tenant=acme, name="ci", actor="test", limits={LimitKind.BUDGET: 100}).key
    assert spend("r1", old) == {old.id: 40}
    new = rotate_api_key(tenant=acme, key_id=old.id, overlap_h=24, actor="user:ann").key
    told_month = ControlChange.objects.filter(kind="month", key=str(acme.id)).latest("id").payload
    assert told_month is not None and told_month["keys"] == {old.id: "40", new.id: "40"}
    assert spend("r2", old) == {old.id: 80, new.id: 80}
    assert spend("r3", new) == {old.id: 80, new.id: 120}
    newest = rotate_api_key(tenant=acme, key_id=new.id, overlap_h=0, actor="user:ann").key
    assert spend("r4", newest)[newest.id] == 160


def test_who_rotates_a_key_gets_no_more_than_their_own_role(acme: Tenant) -> None:
    admin, dev = person("admin"), person("dev")
    add_member(tenant=acme, user=admin, role="admin", actor="test")
    add_member(tenant=acme, user=dev, role="developer", actor="test")
    old = issue_api_key(tenant=acme, name="boss", actor="test", member=acme_owner(acme), scopes=["manage"]).key
    with pytest.raises(NotAllowed):
        rotate_api_key(tenant=acme, key_id=old.id, overlap_h=0, actor="user:dev", member=dev)
    issued = rotate_api_key(tenant=acme, key_id=old.id, overlap_h=0, actor="user:admin", member=admin)
    assert issued.key.member == admin


def acme_owner(tenant: Tenant) -> Any:
    from tenants.models import Membership

    return Membership.objects.for_tenant(tenant).get(role="owner").user


def test_a_disabled_key_is_told_as_such_and_enabled_again(acme: Tenant) -> None:
    key = issue_api_key(tenant=acme, name="ci", actor="test").key
    states = []
    for switch in (disable_api_key, disable_api_key, enable_api_key):
        switch(tenant=acme, key_id=key.id, actor="user:ann")
        payload = told(key)
        states.append(payload and payload["is_disabled"])
    assert states == [True, True, False]
    assert list(AuditEntry.objects.filter(action__in=["key.disable", "key.enable"]).values_list("action", flat=True)) == [
        "key.disable",
        "key.enable",
    ]


def test_keys_of_another_tenant_are_out_of_reach(acme: Tenant) -> None:
    globex = tenant_with("globex", owner=person("gus"))
    key = issue_api_key(tenant=acme, name="ci", actor="test").key
    attempts = (
        lambda: revoke_api_key(key_id=key.id, actor="user:gus", tenant=globex),
        lambda: disable_api_key(tenant=globex, key_id=key.id, actor="user:gus"),
        lambda: rotate_api_key(tenant=globex, key_id=key.id, overlap_h=0, actor="user:gus"),
        lambda: change_api_key(tenant=globex, key_id=key.id, settings=settings_of(key), actor="user:gus"),
    )
    before = ControlChange.objects.count()
    for attempt in attempts:
        with pytest.raises(UnknownKey):
            attempt()
    assert ControlChange.objects.count() == before
    assert ApiKey.objects.for_tenant(acme).get().revoked_at is None


def test_a_tenant_has_so_many_keys_and_no_more(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_KEYS", 2)
    for _ in range(2):
        issue_api_key(tenant=acme, name="ci", actor="test")
    with pytest.raises(Conflict):
        issue_api_key(tenant=acme, name="ci", actor="test")


def test_the_last_use_comes_from_usage_and_never_goes_back(acme: Tenant) -> None:
    key = issue_api_key(tenant=acme, name="ci", actor="test").key
    assert note_key_use() == 0
    record_usage(drafts=[draft("r1", "done", tenant_id=str(acme.id), key_id=key.id, ended_at_s=1_800_000_900.0)])
    record_usage(drafts=[draft("r0", "done", tenant_id=str(acme.id), key_id=key.id, ended_at_s=1_800_000_000.0)])
    assert (note_key_use(), note_key_use()) == (1, 0)
    assert ApiKey.objects.for_tenant(acme).get().last_used_at == datetime.fromtimestamp(1_800_000_900, UTC)

import pytest
from django.db import IntegrityError, transaction

from headway.errors import InvalidInput
from inference.models import ControlChange, Model
from inference.policy import decisions
from tenants.errors import UnknownKey, UnknownPlan
from tenants.models import AuditEntry, Limit, LimitKind, Plan, Tenant, Tier
from tenants.selectors import terms_in_force, time_zones
from tenants.services.keys import issue_api_key, revoke_api_key
from tenants.services.tenants import create_tenant
from tenants.services.terms import define_plan, set_limits, set_plan

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


@pytest.fixture
def globex() -> Tenant:
    return create_tenant(name="globex", actor="test")


def published(tenant: Tenant) -> dict[str, object]:
    payload: dict[str, object] | None = ControlChange.objects.filter(kind="terms", key=str(tenant.id)).latest("id").payload
    assert payload is not None
    return payload


def in_force(tenant: Tenant) -> dict[tuple[str, str], int]:
    return {(limit.scope, limit.kind): limit.value for limit in terms_in_force(tenant).limits}


def test_the_words_are_those_of_the_policies() -> None:
    policys = {kind.value for kind in decisions.LimitKind} - {decisions.LimitKind.BALANCE.value}
    assert set(LimitKind.values) == policys
    assert Tier.values == [tier.name.lower() for tier in decisions.Tier]


def test_a_new_tenant_has_no_limits_and_the_data_plane_is_told(acme: Tenant) -> None:
    assert published(acme) == {
        "plan": "default",
        "weight": 1.0,
        "tier_ceiling": "interactive",
        "time_zone": "UTC",
        "default_max_tokens": None,
        "salt_per_key": False,
        "discount_percent": 0,
        "is_prepaid": False,
        "is_operator": False,
        "pins": {},
        "no_shadow": False,
        "limits": [],
    }


def test_a_plan_gives_weight_ceiling_and_limits(acme: Tenant) -> None:
    define_plan(
        name="gold",
        weight=3.0,
        tier_ceiling="standard",
        limits={LimitKind.REQUESTS: 60, LimitKind.BUDGET: 5_000_000},
        default_max_tokens=1000,
        actor="test",
    )
    terms = set_plan(tenant=acme, plan="gold", actor="test")
    assert (terms.plan, terms.weight, terms.tier_ceiling, terms.default_max_tokens) == ("gold", 3.0, "standard", 1000)
    assert in_force(acme) == {("tenant", "requests_per_minute"): 60, ("tenant", "monthly_budget"): 5_000_000}
    assert published(acme)["limits"] == [
        {"scope": "tenant", "id": str(acme.id), "kind": "requests_per_minute", "value": 60},
        {"scope": "tenant", "id": str(acme.id), "kind": "monthly_budget", "value": 5_000_000},
    ]


def test_a_limit_of_its_own_takes_the_place_of_the_plans_until_it_is_removed(acme: Tenant) -> None:
    define_plan(name="gold", limits={LimitKind.REQUESTS: 60}, actor="test")
    set_plan(tenant=acme, plan="gold", actor="test")
    set_limits(tenant=acme, limits={LimitKind.REQUESTS: 600, LimitKind.CONCURRENCY: 4}, actor="test")
    assert in_force(acme) == {("tenant", "requests_per_minute"): 600, ("tenant", "concurrent_requests"): 4}
    set_limits(tenant=acme, limits={LimitKind.REQUESTS: None, LimitKind.CONCURRENCY: None}, actor="test")
    assert in_force(acme) == {("tenant", "requests_per_minute"): 60}


def test_limits_of_a_key_and_of_a_model_are_told_by_their_scope(acme: Tenant) -> None:
    Model.objects.create(public_id="org/tiny")
    key = issue_api_key(tenant=acme, name="ci", actor="test").key
    set_limits(tenant=acme, limits={LimitKind.REQUESTS: 5}, key_id=key.id, actor="test")
    set_limits(tenant=acme, limits={LimitKind.REQUESTS: 7}, model="org/tiny", actor="test")
    assert published(acme)["limits"] == [
        {"scope": "key", "id": key.id, "kind": "requests_per_minute", "value": 5},
        {"scope": "model", "id": f"{acme.id}/org/tiny", "kind": "requests_per_minute", "value": 7},
    ]
    revoke_api_key(key_id=key.id, actor="test")
    assert [limit.scope for limit in terms_in_force(acme).limits] == ["model"]


def test_a_plan_that_changes_reaches_every_tenant_on_it_and_no_other(acme: Tenant, globex: Tenant) -> None:
    define_plan(name="gold", actor="test")
    set_plan(tenant=acme, plan="gold", actor="test")
    before = published(globex)
    define_plan(name="gold", weight=2.5, actor="test")
    assert published(acme)["weight"] == 2.5
    assert published(globex) == before
    define_plan(name="default", limits={LimitKind.REQUESTS: 9}, actor="test")
    assert in_force(globex) == {("tenant", "requests_per_minute"): 9}
    assert published(globex)["limits"]


def test_what_is_not_given_of_a_plan_stays() -> None:
    define_plan(name="gold", weight=2.0, default_max_tokens=100, limits={LimitKind.REQUESTS: 60}, actor="test")
    plan = define_plan(name="gold", limits={LimitKind.CONCURRENCY: 3}, actor="test")
    assert (plan.weight, plan.default_max_tokens, plan.requests_per_minute, plan.concurrent_requests) == (2.0, 100, 60, 3)
    assert define_plan(name="gold", has_default_max_tokens=False, actor="test").default_max_tokens is None


def test_changes_are_audited_with_what_held_before_and_what_holds(acme: Tenant) -> None:
    set_limits(tenant=acme, limits={LimitKind.REQUESTS: 5}, actor="ann")
    set_limits(tenant=acme, limits={LimitKind.REQUESTS: 5}, actor="ann")
    entry = AuditEntry.objects.get(action="tenant.set_limits")
    assert (entry.actor, entry.tenant) == ("ann", acme)
    assert entry.before is not None and entry.after is not None
    assert entry.before["limits"] == []
    assert entry.after["limits"][0]["value"] == 5


@pytest.mark.parametrize("value", [0, -1, 10**16])
def test_b132_a_limit_that_makes_no_sense_is_refused_and_nothing_changes(acme: Tenant, value: int) -> None:
    with pytest.raises(InvalidInput):
        set_limits(tenant=acme, limits={LimitKind.CONCURRENCY: 3, LimitKind.REQUESTS: value}, actor="test")
    with pytest.raises(InvalidInput):
        define_plan(name="gold", limits={LimitKind.REQUESTS: value}, actor="test")
    assert in_force(acme) == {}
    assert not Plan.objects.filter(name="gold").exists()


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_b132_a_weight_that_makes_no_sense_is_refused(weight: float) -> None:
    with pytest.raises(InvalidInput):
        define_plan(name="gold", weight=weight, actor="test")


def test_a_stranger_s_key_an_unknown_model_and_an_unknown_zone_are_refused(acme: Tenant, globex: Tenant) -> None:
    theirs = issue_api_key(tenant=globex, name="ci", actor="test").key
    one = {LimitKind.REQUESTS: 1}
    with pytest.raises(UnknownKey):
        set_limits(tenant=acme, limits=one, key_id=theirs.id, actor="test")
    with pytest.raises(InvalidInput):
        set_limits(tenant=acme, limits=one, model="nobody", actor="test")
    with pytest.raises(InvalidInput):
        set_limits(tenant=acme, limits={}, time_zone="Mars/Olympus", actor="test")
    with pytest.raises(InvalidInput):
        set_limits(tenant=acme, limits=one, key_id=theirs.id, model="nobody", actor="test")
    with pytest.raises(UnknownPlan):
        set_plan(tenant=acme, plan="nobody", actor="test")
    assert not Limit.unscoped.exists()
    assert time_zones([acme.id]) == {acme.id: "UTC"}


def test_the_tables_hold_one_limit_of_a_kind_and_scope(acme: Tenant) -> None:
    key = issue_api_key(tenant=acme, name="ci", actor="test").key
    Limit.unscoped.create(tenant=acme, kind="requests_per_minute", value=1)
    Limit.unscoped.create(tenant=acme, key=key, kind="requests_per_minute", value=1)
    for others in ({}, {"key": key}, {"model": "m", "key": key}, {"model": "x", "value": 0}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Limit.unscoped.create(**({"tenant": acme, "kind": "requests_per_minute", "value": 1} | others))


def test_a_time_zone_is_kept_and_told(acme: Tenant) -> None:
    set_limits(tenant=acme, limits={}, time_zone="Asia/Tokyo", actor="test")
    assert published(acme)["time_zone"] == "Asia/Tokyo"
    assert time_zones([acme.id]) == {acme.id: "Asia/Tokyo"}

"""N6: a key never changes itself, and nobody makes or changes a key into one that may more than they may."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from inference.models import Model
from tenants.models import ApiKey, Limit, LimitKind, Tenant, User
from tenants.services.keys import disable_api_key, issue_api_key
from tests.tenants.api.cast import Api, code_of, with_key
from tests.tenants.cast import full_tenant

pytestmark = pytest.mark.django_db
SOON = timezone.now() + timedelta(days=2)
SOONER = SOON - timedelta(days=1)
LATE = SOON + timedelta(days=1)
WITHIN: dict[str, Any] = {
    "name": "child",
    "scopes": ["inference"],
    "allowed_models": ["tiny"],
    "allowed_addresses": ["127.0.0.7", "127.0.1.0/24"],
    "tier_ceiling": "batch",
    "expires_at": SOON.isoformat(),
    "limits": {"monthly_budget": 100},
}
WIDER: list[tuple[str, Any]] = [
    ("allowed_models", []),
    ("allowed_models", ["tiny", "large"]),
    ("allowed_addresses", []),
    ("allowed_addresses", ["0.0.0.0/0"]),
    ("allowed_addresses", ["127.0.0.1", "::/0"]),
    ("tier_ceiling", ""),
    ("tier_ceiling", "interactive"),
    ("expires_at", None),
    ("expires_at", LATE.isoformat()),
]
WIDER_LIMITS: list[dict[str, Any]] = [{}, {"monthly_budget": 101}, {"monthly_budget": None}, {"requests_per_minute": 1}]


@pytest.fixture
def people() -> dict[str, User]:
    for name in ("tiny", "large"):
        Model.objects.create(public_id=name)
    return full_tenant("acme")[1]


@pytest.fixture
def acme(people: dict[str, User]) -> Tenant:
    return Tenant.objects.get(name="acme")


@pytest.fixture
def boss(acme: Tenant, people: dict[str, User]) -> tuple[str, Api]:
    """A managing key with bounds of its own: its id, and who calls with it."""
    issued = issue_api_key(
        tenant=acme,
        name="boss",
        actor="test",
        member=people["owner"],
        scopes=["inference", "manage"],
        allowed_models=["tiny"],
        allowed_addresses=["127.0.0.0/16"],
        tier_ceiling="standard",
        expires_at=SOON,
        limits={LimitKind.BUDGET: 100},
    )
    return issued.key.id, Api(key=issued.text)


def everything() -> list[Any]:
    return [list(ApiKey.unscoped.order_by("id").values()), list(Limit.unscoped.order_by("id").values())]


@pytest.mark.parametrize(
    "change",
    [
        lambda api, path: api.call("PATCH", path, {"name": "x"}),
        lambda api, path: api.call("PATCH", path, {"expires_at": None, "allowed_addresses": [], "tier_ceiling": ""}),
        lambda api, path: api.post(f"{path}rotate/", {"overlap_h": 24}),
        lambda api, path: api.post(f"{path}enable/"),
        lambda api, path: api.call(
            "PUT", "tenants/acme/limits/", {"key": path.split("/")[-2], "limits": {"monthly_budget": 1}}
        ),
    ],
)
def test_n6_a_key_never_changes_itself(boss: tuple[str, Api], change: Callable[[Api, str], Any]) -> None:
    before = everything()
    assert code_of(change(boss[1], f"tenants/acme/keys/{boss[0]}/")) == "not_allowed"
    assert everything() == before


def test_n6_a_key_makes_and_changes_keys_within_itself(boss: tuple[str, Api]) -> None:
    made = boss[1].post("tenants/acme/keys/", WITHIN)
    assert made.status_code == 201, made.content
    path = f"tenants/acme/keys/{made.json()['id']}/"
    assert boss[1].call("PATCH", path, {"name": "x", "expires_at": SOONER.isoformat()}).json()["name"] == "x"
    assert (
        boss[1].call("PUT", "tenants/acme/limits/", {"key": made.json()["id"], "limits": {"monthly_budget": 9}}).status_code
        == 200
    )
    assert boss[1].post(f"{path}rotate/", {"overlap_h": 0}).status_code == 201
    assert boss[1].call("DELETE", f"tenants/acme/keys/{boss[0]}/").status_code == 204, "it may end itself"


@pytest.mark.parametrize(("param", "value"), WIDER)
def test_n6_a_key_makes_no_wider_key_nor_widens_one(boss: tuple[str, Api], param: str, value: Any) -> None:
    child = boss[1].post("tenants/acme/keys/", WITHIN).json()["id"]
    before = everything()
    for method, path in (("POST", "tenants/acme/keys/"), ("PATCH", f"tenants/acme/keys/{child}/")):
        body = {name: field for name, field in WITHIN.items() if name != "limits" or method == "POST"}
        answer = boss[1].call(method, path, body | {param: value})
        assert (code_of(answer), answer.json()["error"]["param"]) == ("not_allowed", param)
    assert everything() == before


def test_n6_a_key_that_runs_no_models_makes_none_that_does(acme: Tenant, people: dict[str, User]) -> None:
    for member in (people["owner"], people["developer"], None):
        caller, before = with_key(acme, "manage", member=member), ApiKey.unscoped.count()
        assert code_of(caller.post("tenants/acme/keys/", {"name": "x", "scopes": ["inference"]})) == "not_allowed"
        assert ApiKey.unscoped.count() == before
        assert caller.post("tenants/acme/keys/", {"name": "x", "scopes": ["read_usage"]}).status_code == 201


@pytest.mark.parametrize("limits", WIDER_LIMITS)
def test_n6_a_key_gives_no_higher_limit_than_its_own(boss: tuple[str, Api], limits: dict[str, Any]) -> None:
    child = boss[1].post("tenants/acme/keys/", WITHIN).json()["id"]
    before = everything()
    assert code_of(boss[1].post("tenants/acme/keys/", WITHIN | {"limits": limits})) == "not_allowed"
    if "monthly_budget" in limits:
        answer = boss[1].call("PUT", "tenants/acme/limits/", {"key": child, "limits": limits})
        assert code_of(answer) == "not_allowed"
    assert everything() == before


def test_n6_a_key_rotates_no_key_that_is_wider(boss: tuple[str, Api], acme: Tenant, people: dict[str, User]) -> None:
    wide = issue_api_key(tenant=acme, name="wide", actor="test", member=people["developer"]).key
    before = everything()
    assert code_of(boss[1].post(f"tenants/acme/keys/{wide.id}/rotate/", {"overlap_h": 24})) == "not_allowed"
    assert code_of(boss[1].call("PATCH", f"tenants/acme/keys/{wide.id}/", {"name": "x"})) == "not_allowed"
    assert everything() == before


@pytest.mark.parametrize("whose", ["owner", None])
def test_n6_a_developer_neither_edits_nor_rotates_nor_enables_a_managing_key_of_the_owners(
    acme: Tenant, people: dict[str, User], whose: str | None
) -> None:
    member = people[whose] if whose else None
    boss = issue_api_key(tenant=acme, name="boss", actor="test", member=member, scopes=["manage"]).key
    disable_api_key(tenant=acme, key_id=boss.id, actor="test")
    path, before = f"tenants/acme/keys/{boss.id}/", everything()
    developer, admin = Api(user=people["developer"]), Api(user=people["admin"])
    assert code_of(developer.call("PATCH", path, {"name": "x"})) == "not_allowed"
    assert code_of(developer.post(f"{path}rotate/", {"overlap_h": 0})) == "not_allowed"
    assert code_of(developer.post(f"{path}enable/")) == "not_allowed"
    assert everything() == before
    assert admin.call("PATCH", path, {"name": "x"}).status_code == 200
    assert admin.post(f"{path}enable/").status_code == 200
    assert developer.post(f"{path}disable/").status_code == 200, "anybody who manages keys may stop one"


def test_n6_a_developer_manages_keys_that_may_no_more_than_developers(acme: Tenant, people: dict[str, User]) -> None:
    developer = Api(user=people["developer"])
    ci = issue_api_key(tenant=acme, name="ci", actor="test", member=people["owner"], scopes=["inference", "read_usage"]).key
    own = developer.post("tenants/acme/keys/", {"name": "mine", "scopes": ["manage"]})
    assert own.status_code == 201, "it is bounded by the role"
    for key_id in (ci.id, own.json()["id"]):
        assert developer.call("PATCH", f"tenants/acme/keys/{key_id}/", {"name": "x"}).status_code == 200
        assert developer.post(f"tenants/acme/keys/{key_id}/rotate/", {"overlap_h": 24}).status_code == 201

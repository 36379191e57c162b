"""What the API does: each thing once from the outside, in one shape of errors and pages."""

import contextlib
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from billing.services.ledger import record_usage
from inference.models import ControlChange, Model
from tenants.models import AuditEntry, Tenant, User
from tenants.services.key_format import parse_key
from tenants.services.keys import issue_api_key
from tenants.services.terms import set_limits, set_plan
from tests.inference.gateway.usage_drafts import draft
from tests.tenants.api.cast import Api, code_of, with_key
from tests.tenants.cast import full_tenant, person, role_of, tenant_with
from tests.workers.broker import Broker
from workers.models import Mail

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


@pytest.fixture
def people() -> dict[str, User]:
    tenant, people = full_tenant("acme")
    Model.objects.create(public_id="tiny")
    set_plan(tenant=tenant, plan="free", actor="test")
    return people


@pytest.fixture
def acme(people: dict[str, User]) -> Tenant:
    return Tenant.objects.get(name="acme")


@pytest.fixture
def owner(people: dict[str, User]) -> Api:
    return Api(user=people["owner"])


# -- tenants and members


def test_a_person_founds_a_tenant_and_sees_their_own() -> None:
    ann = Api(user=person("ann"))
    assert ann.get("tenants/").json()["results"] == []
    answer = ann.post("tenants/", {"name": "initech"})
    assert (answer.status_code, answer.json()["plan"], answer.json()["role"]) == (201, "free", "owner")
    assert code_of(ann.post("tenants/", {"name": "initech"})) == "tenant_exists"
    wrong = ann.post("tenants/", {"name": "a b"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "name")
    assert [tenant["name"] for tenant in ann.get("tenants/").json()["results"]] == ["initech"]


def test_a_key_founds_nothing_and_sees_its_own_tenant(acme: Tenant) -> None:
    caller = with_key(acme, "manage")
    assert [tenant["name"] for tenant in caller.get("tenants/").json()["results"]] == ["acme"]
    assert code_of(caller.post("tenants/", {"name": "x"})) == "session_needed"
    assert code_of(caller.post("tenants/acme/leave/")) == "session_needed"


def test_a_role_is_changed_and_the_last_owner_stays(owner: Api, people: dict[str, User], acme: Tenant) -> None:
    viewer, boss = people["viewer"].pk, people["owner"].pk
    assert owner.call("PATCH", f"tenants/acme/members/{viewer}/", {"role": "developer"}).json()["role"] == "developer"
    assert code_of(owner.call("PATCH", f"tenants/acme/members/{boss}/", {"role": "viewer"})) == "last_owner"
    assert code_of(owner.call("DELETE", f"tenants/acme/members/{boss}/")) == "last_owner"
    assert code_of(owner.post("tenants/acme/leave/")) == "last_owner"
    assert (role_of(acme, people["viewer"]), role_of(acme, people["owner"])) == ("developer", "owner")


def test_an_admin_makes_no_owner_and_a_key_of_an_owner_neither(people: dict[str, User], acme: Tenant) -> None:
    viewer = people["viewer"].pk
    for caller in (Api(user=people["admin"]), with_key(acme, "manage", member=people["owner"]), with_key(acme, "manage")):
        assert code_of(caller.call("PATCH", f"tenants/acme/members/{viewer}/", {"role": "owner"})) == "not_allowed"
        answer = caller.post("tenants/acme/invitations/", {"email": "x@example.com", "role": "owner"})
        assert code_of(answer) == "not_allowed"
        assert code_of(caller.call("DELETE", f"tenants/acme/members/{people['owner'].pk}/")) == "not_allowed"


def test_who_is_removed_has_their_keys_handed_over(owner: Api, people: dict[str, User], acme: Tenant) -> None:
    key = issue_api_key(tenant=acme, name="ci", actor="test", member=people["developer"]).key
    path = f"tenants/acme/members/{people['developer'].pk}/?hand_keys_to={people['admin'].pk}"
    assert owner.call("DELETE", path).status_code == 204
    shown = owner.get(f"tenants/acme/keys/{key.id}/").json()
    assert (shown["member"]["name"], shown["state"]) == ("acme-admin@example.com", "active")


def test_ownership_is_given_away(owner: Api, people: dict[str, User], acme: Tenant) -> None:
    assert owner.post("tenants/acme/transfer/", {"to": people["viewer"].pk}).status_code == 204
    assert (role_of(acme, people["viewer"]), role_of(acme, people["owner"])) == ("owner", "admin")
    assert owner.post("tenants/acme/transfer/", {"to": people["owner"].pk}).status_code == 403


def test_invitations_are_sent_listed_resent_and_revoked(owner: Api) -> None:
    made = owner.post("tenants/acme/invitations/", {"email": "Bob@Example.com", "role": "viewer"})
    assert (made.status_code, made.json()["state"], made.json()["email"]) == (201, "pending", "bob@example.com")
    path = f"tenants/acme/invitations/{made.json()['id']}/"
    assert owner.post(f"{path}resend/").status_code == 200
    assert Mail.objects.count() == 2
    assert owner.call("DELETE", path).status_code == 204
    assert code_of(owner.call("DELETE", path)) == "invitation_not_found"
    assert [each["state"] for each in owner.get("tenants/acme/invitations/").json()["results"]] == ["revoked"]


# -- keys


def test_a_keys_life(owner: Api) -> None:
    asked = {
        "name": "ci",
        "scopes": ["inference", "read_usage"],
        "allowed_models": ["tiny"],
        "allowed_addresses": ["203.0.113.7"],
        "tier_ceiling": "batch",
        "limits": {"monthly_budget": 5_000_000, "requests_per_minute": 10},
    }
    made = owner.post("tenants/acme/keys/", asked)
    assert (made.status_code, made["cache-control"]) == (201, "no-store")
    parsed = parse_key(made.json()["key"])
    assert parsed is not None and parsed.id == made.json()["id"]
    path = f"tenants/acme/keys/{parsed.id}/"
    shown = owner.get(path).json()
    assert "key" not in shown and parsed.secret not in owner.get("tenants/acme/keys/").content.decode()
    assert (shown["allowed_addresses"], shown["limits"]) == (["203.0.113.7/32"], asked["limits"])
    changed = owner.call("PATCH", path, {"name": "deploy", "allowed_models": []}).json()
    assert (changed["name"], changed["allowed_models"], changed["tier_ceiling"]) == ("deploy", [], "batch")
    assert owner.post(f"{path}disable/").json()["state"] == "disabled"
    assert owner.post(f"{path}enable/").json()["state"] == "active"
    rotated = owner.post(f"{path}rotate/", {"overlap_h": 24})
    assert (rotated.status_code, rotated.json()["replaces"], rotated.json()["limits"]) == (201, parsed.id, asked["limits"])
    assert owner.get(path).json()["expires_at"] is not None
    assert owner.call("DELETE", path).status_code == 204
    assert owner.get(path).json()["state"] == "revoked"
    assert code_of(owner.post(f"{path}enable/")) == "key_not_found"
    assert owner.call("DELETE", path).status_code == 204, "twice is no error"


def test_a_key_makes_keys_only_when_scoped_to_and_of_its_own_member(acme: Tenant, people: dict[str, User]) -> None:
    for scopes in (("inference",), ("read_usage",), ("inference", "read_usage")):
        answer = with_key(acme, *scopes, member=people["owner"]).post("tenants/acme/keys/", {"name": "x"})
        assert (answer.status_code, code_of(answer)) == (403, "not_allowed")
    made = with_key(acme, "manage", "inference", member=people["developer"]).post("tenants/acme/keys/", {"name": "x"})
    assert (made.status_code, made.json()["member"]["name"]) == (201, "acme-developer@example.com")
    assert AuditEntry.objects.filter(action="key.issue").latest("id").actor.startswith("key:")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["all"]}, "scopes[0]"),
        ({"name": "x", "allowed_models": ["gpt-9"]}, "allowed_models"),
        ({"name": "x", "allowed_addresses": ["nowhere"]}, "allowed_addresses"),
        ({"name": "x", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "x", "limits": {"wishes": 3}}, "limits"),
        ({"name": "x", "limits": {"monthly_budget": 0}}, "limits.monthly_budget"),
    ],
)
def test_what_is_wrong_with_a_key_is_named(owner: Api, body: dict[str, Any], param: str) -> None:
    answer = owner.post("tenants/acme/keys/", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


# -- plans and limits


def test_a_plan_is_previewed_and_chosen_by_who_may(owner: Api, people: dict[str, User]) -> None:
    billing = Api(user=people["billing"])
    preview = billing.get("tenants/acme/plans/pay-as-you-go/preview/").json()
    assert {"field": "requests_per_minute", "before": 20, "after": 600} in preview["changes"]
    offered = {plan["name"]: plan["is_current"] for plan in owner.get("tenants/acme/plans/").json()["results"]}
    assert offered == {"free": True, "pay-as-you-go": False, "prepaid": False}
    assert billing.call("PUT", "tenants/acme/plan/", {"plan": "pay-as-you-go"}).json()["plan"] == "pay-as-you-go"
    assert code_of(billing.call("PUT", "tenants/acme/plan/", {"plan": "enterprise"})) == "not_allowed"
    assert code_of(billing.call("PUT", "tenants/acme/plan/", {"plan": "platinum"})) == "plan_not_found"
    assert Api(user=people["admin"]).call("PUT", "tenants/acme/plan/", {"plan": "free"}).status_code == 403


def limit(api: Api, kind: str) -> int | None:
    limits = api.get("tenants/acme/limits/").json()["limits"]
    return next((each["value"] for each in limits if each["kind"] == kind and each["scope"] == "tenant"), None)


def test_a_tenant_allows_itself_no_more_than_its_plan(owner: Api, acme: Tenant) -> None:
    def put(value: int | None) -> Any:
        return owner.call("PUT", "tenants/acme/limits/", {"limits": {"requests_per_minute": value}})

    assert put(10).status_code == 200
    assert limit(owner, "requests_per_minute") == 10
    refused = put(21)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "requests_per_minute")
    assert limit(owner, "requests_per_minute") == 10
    assert put(None).status_code == 200
    assert limit(owner, "requests_per_minute") == 20
    set_plan(tenant=acme, plan="pay-as-you-go", actor="test")
    assert put(500).status_code == 200
    set_plan(tenant=acme, plan="free", actor="test")
    assert limit(owner, "requests_per_minute") == 20, "what it set on a larger plan does not stay above the smaller"


def test_what_we_set_a_tenant_does_not_change(owner: Api, acme: Tenant) -> None:
    from tenants.models import LimitKind

    set_limits(tenant=acme, limits={LimitKind.REQUESTS: 5}, actor="command:root")
    for value in (3, 19, None):
        answer = owner.call("PUT", "tenants/acme/limits/", {"limits": {"requests_per_minute": value}})
        assert code_of(answer) == "not_allowed"
    assert limit(owner, "requests_per_minute") == 5


def test_limits_of_a_key_and_of_a_model(owner: Api, acme: Tenant) -> None:
    key = issue_api_key(tenant=acme, name="ci", actor="test").key
    for named in ({"key": key.id}, {"model": "tiny"}):
        answer = owner.call("PUT", "tenants/acme/limits/", {"limits": {"concurrent_requests": 1}, **named})
        assert answer.status_code == 200, answer.content
    scopes = {each["scope"]: each["id"] for each in answer.json()["limits"] if each["kind"] == "concurrent_requests"}
    assert (scopes["key"], scopes["model"]) == (key.id, "tiny")
    both = owner.call("PUT", "tenants/acme/limits/", {"limits": {}, "key": key.id, "model": "tiny"})
    assert both.status_code == 400


def test_the_time_zone_is_the_tenants_setting(owner: Api) -> None:
    assert owner.call("PATCH", "tenants/acme/", {"time_zone": "Asia/Tokyo"}).json()["time_zone"] == "Asia/Tokyo"
    assert owner.call("PATCH", "tenants/acme/", {"time_zone": "Mars"}).status_code == 400
    assert owner.get("tenants/acme/").json()["time_zone"] == "Asia/Tokyo"


def test_a_tenant_leaves_its_requests_out_of_trials_and_takes_part_again(
    owner: Api, acme: Tenant, people: dict[str, User]
) -> None:
    assert owner.get("tenants/acme/").json()["is_mirroring_allowed"] is True
    for caller in (Api(user=people["viewer"]), Api(user=people["developer"]), with_key(acme, "read_usage")):
        assert caller.call("PATCH", "tenants/acme/", {"is_mirroring_allowed": False}).status_code == 403
    for wrong in ({}, {"is_mirroring_allowed": "perhaps"}, {"is_mirroring_allowed": None}):
        assert owner.call("PATCH", "tenants/acme/", wrong).status_code == 400, wrong
    assert not Tenant.objects.get(pk=acme.pk).no_shadow
    left_out = owner.call("PATCH", "tenants/acme/", {"is_mirroring_allowed": False}).json()
    assert (left_out["is_mirroring_allowed"], left_out["time_zone"]) == (False, acme.time_zone)
    told: Any = ControlChange.objects.filter(kind="terms").latest("id").payload
    assert told["no_shadow"] is True
    both = owner.call("PATCH", "tenants/acme/", {"is_mirroring_allowed": True, "time_zone": "Asia/Tokyo"}).json()
    assert (both["is_mirroring_allowed"], both["time_zone"]) == (True, "Asia/Tokyo")


def test_who_is_told_by_mail_is_set_by_kind(owner: Api, people: dict[str, User]) -> None:
    path = "tenants/acme/alert-mails/"
    before = owner.get(path).json()["roles"]
    assert before["budget.reached"] == ["owner", "billing"]
    wrongs: tuple[Any, ...] = (
        {},
        {"roles": {}},
        {"roles": {"budget.reached": ["king"]}},
        {"roles": {"none.such": []}},
        {"roles": []},
    )
    for wrong in wrongs:
        assert owner.call("PUT", path, wrong).status_code == 400, wrong
    assert Api(user=people["viewer"]).call("PUT", path, {"roles": {"budget.reached": []}}).status_code == 403
    after = owner.call("PUT", path, {"roles": {"budget.reached": ["viewer"], "balance.low": []}}).json()["roles"]
    assert after == before | {"budget.reached": ["viewer"], "balance.low": []} == owner.get(path).json()["roles"]


# -- usage, requests, audit


def used(tenant: Tenant, request_id: str, when: datetime, **values: Any) -> None:
    record_usage(drafts=[draft(request_id, "done", tenant_id=str(tenant.id), ended_at_s=when.timestamp(), **values)])


def test_usage_is_asked_for_by_range_zone_and_group(owner: Api, acme: Tenant, people: dict[str, User]) -> None:
    key = issue_api_key(tenant=acme, name="deploy", actor="test").key
    used(acme, "r1", datetime(2026, 11, 1, 15, tzinfo=UTC), key_id=key.id, member_id=people["owner"].pk, prompt_tokens=5)
    used(acme, "r2", datetime(2026, 10, 31, 14, 59, tzinfo=UTC), key_id=key.id)
    path = "tenants/acme/usage/?from=2026-11-01&to=2026-11-03&granularity=day&time_zone=Asia/Tokyo"
    found = owner.get(path).json()
    assert (found["from"], found["to"]) == ("2026-10-31T15:00:00Z", "2026-11-02T15:00:00Z")
    assert [(bucket["starts_at"], bucket["requests"]) for bucket in found["buckets"]] == [("2026-11-01T15:00:00Z", 1)]
    assert (found["totals"]["requests"], found["totals"]["prompt_tokens"]) == (1, 5)
    for group, label in (("key", "deploy"), ("member", "acme-owner@example.com"), ("model", "m"), ("tier", "standard")):
        assert [bucket["label"] for bucket in owner.get(f"{path}&group_by={group}").json()["buckets"]] == [label]
    assert owner.get(f"{path}&key=nothing").json()["buckets"] == []


@pytest.mark.parametrize(
    "query",
    [
        *("from=tomorrow", "granularity=week", "time_zone=Mars", "from=2026-11-03&to=2026-11-01", "group_by=colour"),
        *("from=0001-01-01&to=0001-01-02", "member=x", "from=2020-01-01", "to=0001-01-01"),
        "from=2026-11-01T00:00:00%2B99:00",
    ],
)
def test_a_wrong_range_is_a_clear_error(owner: Api, query: str) -> None:
    answer = owner.get(f"tenants/acme/usage/?{query}")
    if query.startswith(("to=0001", "from=0001")) and answer.status_code == 200:
        assert answer.json()["buckets"] == []
    else:
        assert (answer.status_code, code_of(answer)) == (400, "invalid_value")


def test_requests_are_paged_without_gaps_and_have_receipts(owner: Api, acme: Tenant) -> None:
    for number in range(7):
        used(acme, f"req_{number:024d}", datetime(2026, 11, 1, 10, number // 3, tzinfo=UTC), ttft_ms=90)
    used(full_tenant("globex")[0], "req_foreign", datetime(2026, 11, 1, tzinfo=UTC))
    seen, path = [], "tenants/acme/requests/?page_size=2"
    while path:
        page = owner.get(path).json()
        seen += [request["id"] for request in page["results"]]
        path = (page["next"] or "").partition("/api/v1/")[2]
    assert sorted(seen) == [f"req_{number:024d}" for number in range(7)]
    found = owner.get(f"tenants/acme/requests/{seen[0]}/").json()
    assert (found["id"], found["ttft_ms"], found["end_state"]) == (seen[0], 90, "done")
    assert owner.get("tenants/acme/requests/req_foreign/").status_code == 404
    later = owner.get("tenants/acme/requests/?from=2026-11-01T10:01:00Z&to=2026-11-01T10:02:00Z").json()["results"]
    assert len(later) == 3
    assert owner.get("tenants/acme/requests/?end_state=refused").json()["results"] == []


@pytest.mark.parametrize("cursor", ["x", "cD1ub3RoaW5n", "bz0tMQ==", "cD0lMDA=", "%00", "bz05OTk5OTk5OTk5OTk5OTk5OTk5OQ=="])
@pytest.mark.parametrize("path", ["requests", "audit", "keys", "members", "webhooks"])
def test_a_cursor_of_nobodys_is_no_fault_of_ours(owner: Api, path: str, cursor: str) -> None:
    assert owner.get(f"tenants/acme/{path}/?cursor={cursor}").status_code in (200, 404)


def test_the_audit_log_says_who_and_from_where(owner: Api, people: dict[str, User]) -> None:
    owner.call("PATCH", f"tenants/acme/members/{people['viewer'].pk}/", {"role": "billing"})
    newest = owner.get("tenants/acme/audit/").json()["results"][0]
    assert (newest["actor"], newest["action"], newest["target"]) == (
        "user:acme-owner@example.com",
        "member.change_role",
        "acme-viewer@example.com",
    )
    assert (newest["before"], newest["after"]) == ({"role": "viewer"}, {"role": "billing"})
    assert (newest["address"], newest["request_id"][:4]) == ("127.0.0.1", "req_")


# -- webhooks


def test_webhooks_from_making_to_resending(owner: Api) -> None:
    made = owner.post("tenants/acme/webhooks/", {"url": "https://hooks.example/in", "events": ["key.expiring"]})
    assert (made.status_code, made.json()["secret"][:6]) == (201, "whsec_")
    path = f"tenants/acme/webhooks/{made.json()['id']}/"
    assert "secret" not in owner.get(path).json()
    assert owner.call("PATCH", path, {"is_enabled": False}).json()["is_enabled"] is False
    assert owner.post(f"{path}secret/").json()["secret"] != made.json()["secret"]
    sent = owner.post(f"{path}test/")
    assert (sent.status_code, sent.json()["type"], sent.json()["state"]) == (202, "test", "pending")
    listed = owner.get("tenants/acme/deliveries/").json()["results"]
    assert [each["id"] for each in listed] == [sent.json()["id"]]
    assert code_of(owner.post(f"tenants/acme/deliveries/{sent.json()['id']}/resend/")) == "conflict"
    inside = owner.post("tenants/acme/webhooks/", {"url": "http://169.254.169.254/", "events": ["key.expiring"]})
    assert (inside.status_code, code_of(inside)) == (400, "address_not_public")
    assert owner.call("DELETE", path).status_code == 204
    assert owner.get("tenants/acme/deliveries/").json()["results"] == []


# -- the document


def test_the_document_and_its_page_need_nobody_elses_server() -> None:
    client = Client()
    document = client.get("/api/v1/openapi.json")
    assert document.status_code == 200
    assert len(document.json()["paths"]) >= 25
    page = client.get("/api/v1/docs/").content.decode()
    files = set(re.findall(r'"(/static/[^"]+)"', page))
    assert len(files) >= 3
    for file in files:
        with contextlib.closing(client.get(file)) as answer:
            assert answer.status_code == 200, file
    assert "/static/drf_spectacular_sidecar/" in page
    assert "https://" not in page and "<script>" not in page


def test_every_list_has_a_cursor() -> None:
    document = Client().get("/api/v1/openapi.json").json()
    lists = [path["get"] for path in document["paths"].values() if path.get("get", {}).get("operationId", "").endswith("_list")]
    without = {each["operationId"] for each in lists if "cursor" not in {p["name"] for p in each.get("parameters", [])}}
    assert without == {"plans_list", "prices_list"}, "a handful, all on one page"
    assert len(lists) > 7


def test_no_view_asks_the_database_for_each_row(
    owner: Api, acme: Tenant, people: dict[str, User], django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        issue_api_key(tenant=acme, name=f"k{number}", actor="test", member=people["owner"])
    for path in ("keys", "members", "audit", "requests", "webhooks", "deliveries", "invitations", "limits", "usage"):
        with django_assert_max_num_queries(12):
            assert owner.get(f"tenants/acme/{path}/").status_code == 200
    for number in range(20):
        tenant_with(f"other-{number}", owner=people["owner"])
    with django_assert_max_num_queries(8):
        assert len(owner.get("tenants/").json()["results"]) == 21


@pytest.mark.parametrize("path", ["usage/?form=2026-11-01", "usage/?page_size=2", "requests/?modell=tiny"])
def test_a_parameter_that_there_is_not_is_told_and_not_passed_over(owner: Api, path: str) -> None:
    answer = owner.get(f"tenants/acme/{path}")
    assert (answer.status_code, code_of(answer)) == (400, "invalid_value")
    assert answer.json()["error"]["param"] == path.partition("?")[2].partition("=")[0]
    assert owner.get("tenants/acme/requests/?page_size=2&model=tiny").status_code == 200


def test_a_removal_with_a_parameter_misspelled_removes_nobody(owner: Api, acme: Tenant, people: dict[str, User]) -> None:
    path = f"tenants/acme/members/{people['developer'].pk}/?hand_key_to={people['admin'].pk}"
    assert owner.call("DELETE", path).status_code == 400
    assert role_of(acme, people["developer"]) == "developer"

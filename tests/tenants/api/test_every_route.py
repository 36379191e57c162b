"""Tenancy fails closed: every route, as nobody, as a stranger, as another tenant's key, and as each role and scope."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.test import Client
from django.utils import timezone

from billing.account_models import BillingAccount
from billing.services.credit_notes import issue_credit_note
from billing.services.exports import KIND as EXPORT
from billing.services.exports import export_requests
from headway.urls_api import OF_OPERATORS, OF_TENANT, urlpatterns
from inference.models import ControlChange
from tenants.access import OF_ROLE, OF_SCOPE, Action, Role, Scope, actions_of_key, allows
from tenants.api.base import TenantView
from tenants.models import ApiKey, AuditEntry, Membership, Tenant, User
from tenants.services.invitations import invite
from tenants.services.keys import issue_api_key
from tenants.services.webhooks import add_endpoint, send_test
from tests.billing.issued import issued
from tests.tenants.api.cast import Api, code_of, with_key
from tests.tenants.cast import full_tenant, person
from tests.workers.broker import Broker
from tests.workers.outbox_work import work

pytestmark = pytest.mark.django_db
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@dataclass
class Cast:
    tenant: Tenant
    people: dict[str, User]
    paths: dict[str, str]
    """Of every route of a tenant, with ids of things that are there."""


@pytest.fixture
def cast(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Cast:
    Broker(monkeypatch)
    tenant, people = full_tenant("acme")
    key = issue_api_key(tenant=tenant, name="ci", actor="test").key
    invited = invite(tenant=tenant, email="x@example.com", role="viewer", actor="test", actor_role="owner").invitation
    endpoint = add_endpoint(tenant=tenant, url="https://h.example/", events=["key.expiring"], actor="test").endpoint
    delivery = send_test(tenant=tenant, endpoint_id=str(endpoint.id), actor="test")
    settings.COMPANY_NAME = "Example Inference GmbH"
    invoice = issued(tenant)
    note = issue_credit_note(number=str(invoice.number), reason="late", actor="test", amounts={1: 1})
    day = date(2026, 11, 15)
    export = export_requests(tenant=tenant, first=day, last=day, actor="test", email="")
    work(EXPORT)
    ids = {
        "<id:user_id>": people["viewer"].pk,
        "<uuid:invitation_id>": invited.id,
        "<slug:key_id>": key.id,
        "<slug:plan>": "prepaid",
        "<slug:request_id>": "req_000000000000000000000000",
        "<uuid:endpoint_id>": endpoint.id,
        "<uuid:delivery_id>": delivery.id,
        "<slug:number>": invoice.number,
        "<slug:note>": note.number,
        "<id:position>": 1,
        "<uuid:export_id>": export.id,
    }
    paths = {}
    for route in OF_TENANT:
        path = route
        for name, value in ids.items():
            path = path.replace(name, str(value))
        assert "<" not in path
        paths[route] = f"tenants/acme/{path}"
    return Cast(tenant, people, paths)


def everything() -> tuple[Any, ...]:
    """What a refused call must not change."""
    return (
        ControlChange.objects.count(),
        AuditEntry.objects.count(),
        sorted(Membership.unscoped.values_list("user_id", "role")),
        list(BillingAccount.objects.values()),
        list(ApiKey.unscoped.values_list("id", "revoked_at", "disabled_at", "scopes")),
    )


def calls(cast: Cast) -> Iterator[tuple[str, str, type[TenantView]]]:
    for route, view in OF_TENANT.items():
        for method in METHODS:
            yield method, cast.paths[route], view


def action_of(view: type[TenantView], method: str) -> Action | None:
    return view.actions.get("GET" if method == "HEAD" else method)


def test_every_route_is_a_tenants_view_or_known_to_be_none() -> None:
    open_to_nobody_in_particular = {"openapi.json", "docs/", "tenants/", "invitations/accept/", "^.*$"}
    known = {f"tenants/<slug:tenant>/{rest}" for rest in OF_TENANT} | open_to_nobody_in_particular
    known |= {
        f"operator/{rest}" for rest in OF_OPERATORS
    }  # test_operator_routes.py of billing (all but inference's), test_rollout_api.py of inference
    assert {str(pattern.pattern) for pattern in urlpatterns} == known
    for view in OF_TENANT.values():
        assert issubclass(view, TenantView)
        assert view.actions, view
        for method in view.actions:
            assert hasattr(view, method.lower()), (view, method)
        handlers = {name.upper() for name in view.http_method_names if hasattr(view, name)} - {"HEAD", "OPTIONS"}
        assert handlers == view.actions.keys(), view


def test_an_invitation_is_accepted_by_the_person_it_was_sent_to_alone_and_never_by_a_key(cast: Cast) -> None:
    """The one route of no tenant that changes one."""
    invited, other = person("invited"), person("other")
    for user in (invited, other):
        EmailAddress.objects.create(user=user, email=user.email, verified=True, primary=True)
    unverified = User.objects.create_user("unverified", "y@example.com")
    EmailAddress.objects.create(user=unverified, email=invited.email, verified=False, primary=False)
    token = invite(tenant=cast.tenant, email=invited.email, role="developer", actor="test", actor_role="owner").token
    path = "invitations/accept/"
    callers = {
        Api(): (401, "not_authenticated"),
        with_key(cast.tenant, *Scope, member=cast.people["owner"]): (403, "session_needed"),
        Api(user=other): (403, "wrong_person"),
        Api(user=unverified): (403, "wrong_person"),
    }
    before = everything()
    for caller, (status, code) in callers.items():
        answer = caller.post(path, {"token": token})
        assert (answer.status_code, code_of(answer)) == (status, code)
    for body, status in (({"token": "no such token"}, 404), ({}, 400), ({"token": 7, "role": "owner"}, 404)):
        assert Api(user=invited).post(path, body).status_code == status
    assert Api(user=invited).get(path).status_code == 405
    client = Client(enforce_csrf_checks=True)
    client.force_login(invited)
    assert client.post(f"/api/v1/{path}", {"token": token}, "application/json").status_code == 403
    assert everything() == before
    joined = Api(user=invited).post(path, {"token": token})
    assert (joined.status_code, joined.json()) == (201, {"tenant": "acme", "role": "developer"})
    assert Membership.objects.for_tenant(cast.tenant).get(user=invited).role == "developer"
    assert Api(user=invited).post(path, {"token": token}).status_code == 404


@pytest.mark.any_database
def test_nobody_is_told_to_authenticate(cast: Cast) -> None:
    before, nobody = everything(), Api()
    for method, path, _ in calls(cast):
        assert nobody.call(method, path).status_code == 401, (method, path)
    assert nobody.get("tenants/").status_code == 401
    assert everything() == before


@pytest.mark.any_database
def test_a_stranger_and_another_tenants_key_find_nothing(cast: Cast) -> None:
    globex, people = full_tenant("globex")
    callers = [Api(user=person("stranger")), Api(user=people["owner"]), with_key(globex, *Scope)]
    before = everything()
    for caller in callers:
        for method, path, _ in calls(cast):
            answer = caller.call(method, path, {} if method in ("POST", "PUT", "PATCH") else None)
            assert answer.status_code == 404, (method, path, answer.status_code)
            assert method == "HEAD" or code_of(answer) == "tenant_not_found"
    assert everything() == before


@pytest.mark.any_database
@pytest.mark.parametrize("role", list(Role))
def test_a_role_is_refused_what_it_may_not_and_nothing_else(cast: Cast, role: Role) -> None:
    caller = Api(user=cast.people[role])
    for method, path, view in calls(cast):
        action = action_of(view, method)
        if action is not None and allows(role, action):
            continue
        before = everything()
        answer = caller.call(method, path, {} if method in ("POST", "PUT", "PATCH") else None)
        assert answer.status_code == (405 if action is None else 403), (method, path, answer.status_code)
        assert method in ("HEAD", "OPTIONS", "TRACE") or code_of(answer) in ("not_allowed", "method_not_allowed")
        assert everything() == before


@pytest.mark.parametrize("role", list(Role))
def test_a_role_reads_all_that_it_may(cast: Cast, role: Role) -> None:
    caller = Api(user=cast.people[role])
    for route, view in OF_TENANT.items():
        action = view.actions.get("GET")
        if action in OF_ROLE[role] and "request_id" not in route:
            assert caller.get(cast.paths[route]).status_code == 200, route


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize("role", [None, *Role])
def test_b73_a_key_may_what_its_scope_and_its_members_role_both_allow(cast: Cast, scope: Scope, role: Role | None) -> None:
    caller = with_key(cast.tenant, scope, member=cast.people[role] if role else None)
    allowed = actions_of_key([scope], member_role=role)
    assert allowed <= OF_SCOPE[scope]
    for route, view in OF_TENANT.items():
        action = view.actions.get("GET")
        if action is not None and "request_id" not in route:
            assert caller.get(cast.paths[route]).status_code == (200 if action in allowed else 403), route
    before = everything()
    for method, path, view in calls(cast):
        action = action_of(view, method)
        if method in ("POST", "PUT", "PATCH", "DELETE") and action is not None and action not in allowed:
            assert caller.call(method, path, {}).status_code == 403, (method, path)
    assert everything() == before


def test_b73_a_demoted_and_a_removed_members_key_is_demoted_with_them(cast: Cast) -> None:
    admin = cast.people["admin"]
    caller = with_key(cast.tenant, "manage", "read_usage", member=admin)
    assert caller.get("tenants/acme/audit/").status_code == 200
    Membership.objects.for_tenant(cast.tenant).filter(user=admin).update(role="viewer")
    assert caller.get("tenants/acme/audit/").status_code == 403
    assert caller.get("tenants/acme/usage/").status_code == 200
    Membership.objects.for_tenant(cast.tenant).filter(user=admin).delete()
    assert caller.get("tenants/acme/usage/").status_code == 403


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({"revoked_at": timezone.now()}, 401, "revoked"),
        ({"disabled_at": timezone.now()}, 401, "disabled"),
        ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, 401, "expired"),
        ({"allowed_addresses": ["203.0.113.0/24"]}, 403, "address"),
    ],
)
def test_b73_a_key_is_checked_on_each_request(cast: Cast, change: dict[str, Any], status: int, word: str) -> None:
    issued = issue_api_key(tenant=cast.tenant, name="k", actor="test", scopes=["manage"])
    caller = Api(key=issued.text)
    assert caller.get("tenants/acme/").status_code == 200
    ApiKey.unscoped.filter(pk=issued.key.pk).update(**change)
    answer = caller.get("tenants/acme/")
    assert (answer.status_code, word in answer.json()["error"]["message"]) == (status, True)


def test_a_suspended_tenants_keys_are_refused_and_its_people_may_only_look(cast: Cast) -> None:
    caller = with_key(cast.tenant, "manage")
    Tenant.objects.filter(pk=cast.tenant.pk).update(suspended_at=timezone.now())
    assert caller.get("tenants/acme/").status_code == 401
    owner = Api(user=cast.people["owner"])
    assert owner.get("tenants/acme/").json()["is_suspended"]
    assert owner.post("tenants/acme/keys/", {"name": "x"}).status_code == 403


def test_who_is_switched_off_is_nobody(cast: Cast) -> None:
    caller, owner = with_key(cast.tenant, "manage", member=cast.people["owner"]), Api(user=cast.people["owner"])
    User.objects.filter(pk=cast.people["owner"].pk).update(is_active=False)
    assert owner.get("tenants/acme/").status_code in (401, 403)
    assert caller.get("tenants/acme/").status_code == 403


@pytest.mark.parametrize("key", ["nonsense", "hw_live_a_b_c", "hw_live_" + "0" * 12 + "_" + "0" * 43 + "_000000"])
def test_a_bad_key_is_refused_and_a_session_beside_it_does_not_help(cast: Cast, key: str) -> None:
    caller = Api(user=cast.people["owner"], key=key)
    answer = caller.get("tenants/acme/")
    assert (answer.status_code, code_of(answer), answer["www-authenticate"]) == (401, "invalid_api_key", "Bearer")


def test_b48_guessing_keys_is_slow_whatever_address_is_claimed(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.core.cache import cache

    cache.clear()
    caller = Api(key="hw_live_nonsense")
    statuses = [
        caller.call("GET", "tenants/acme/", **{"x-forwarded-for": f"10.0.0.{number}"}).status_code for number in range(100)
    ]
    assert (statuses[0], statuses[59], statuses[60], statuses[99]) == (401, 401, 429, 429)
    assert with_key(cast.tenant, "manage").get("tenants/acme/").status_code == 200, "a good key is never held up"
    cache.clear()


def test_a_session_needs_a_csrf_token_to_change_anything(cast: Cast) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(cast.people["owner"])
    answer = client.post("/api/v1/tenants/acme/keys/", '{"name": "x"}', "application/json")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")
    assert not ApiKey.unscoped.filter(name="x").exists()


def test_ids_that_are_nobodys_are_not_found(cast: Cast) -> None:
    owner = Api(user=cast.people["owner"])
    for path in ("keys/nothing/", f"webhooks/{uuid.uuid4()}/", "requests/req_x/", "plans/platinum/preview/"):
        assert owner.get(f"tenants/acme/{path}").status_code == 404, path
    for path in ("members/999999999999999999/", f"invitations/{uuid.uuid4()}/", "keys/nothing/"):
        assert owner.call("DELETE", f"tenants/acme/{path}").status_code == 404, path
    assert owner.get("tenants/acme/nothing/at/all").status_code == 404
    assert code_of(owner.get("nothing/")) == "unknown_url"

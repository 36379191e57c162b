"""The operators' pages: tenants, suspension, plans, visits."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.seats import seat_of
from inference.models import ControlChange
from tenants.access import LOOKING, Action
from tenants.models import AuditEntry, OperatorVisit, Plan, User
from tenants.selectors import roles_now
from tests.dashboard.furnished import Furnished, furnish
from tests.dashboard.operators import client, operator
from tests.tenants.cast import full_tenant, person, tenant_with

__all__ = ["client", "operator"]  # fixtures
pytestmark = pytest.mark.django_db

MAX_QUERIES = 20
VISIT = {"role": "owner", "reason": "ticket 4711"}


@pytest.fixture
def acme() -> Furnished:
    return furnish()


def test_pages_open_with_few_queries_and_nothing_inline(acme: Furnished, client: Client) -> None:
    full_tenant("other")
    for address in ("/operator/", "/operator/?q=acm&state=active", "/operator/?q=nothing", "/operator/tenants/acme/"):
        with CaptureQueriesContext(connection) as queries:
            response = client.get(address)
        assert response.status_code == 200, address
        assert len(queries) <= MAX_QUERIES, (address, len(queries))
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", response.content.decode()), address
    assert client.get("/operator/tenants/nobody/").status_code == 404


def test_the_list_takes_no_more_queries_for_more_tenants(acme: Furnished, client: Client) -> None:
    def number() -> int:
        with CaptureQueriesContext(connection) as queries:
            client.get("/operator/")
        return len(queries)

    before = number()
    for count in range(5):
        tenant_with(f"more-{count}")
    assert number() == before


def test_nobody_but_an_operator_finds_them(acme: Furnished) -> None:
    assert Client().get("/operator/").status_code == 302
    for user in (acme.people["owner"], person("stranger")):
        client = Client()
        client.force_login(user)
        for address in ("/operator/", "/operator/tenants/acme/"):
            assert client.get(address).status_code == 404
        for action in ("suspend", "resume", "plan", "visit"):
            posted = {"confirm": "acme", "reason": "x", "role": "owner"}
            assert client.post(f"/operator/tenants/acme/{action}/", posted).status_code == 404
    acme.tenant.refresh_from_db()
    assert acme.tenant.suspended_at is None
    assert not OperatorVisit.objects.exists()


def test_a_suspended_tenant_is_refused_everywhere_and_comes_back(acme: Furnished, client: Client) -> None:
    def is_active() -> bool:
        told = ControlChange.objects.filter(kind="tenant", key=str(acme.tenant.id)).latest("id").payload
        return bool(told and told["is_active"])

    owner = Client()
    owner.force_login(acme.people["owner"])
    client.post("/operator/tenants/acme/suspend/", {"confirm": "wrong", "reason": "unpaid"})
    client.post("/operator/tenants/acme/suspend/", {"confirm": "acme", "reason": " "})
    assert is_active()
    client.post("/operator/tenants/acme/suspend/", {"confirm": "acme", "reason": "unpaid"})
    assert not is_active()
    assert owner.get("/t/acme/").status_code == 404
    assert "suspended" in client.get("/operator/tenants/acme/").content.decode()
    client.post("/operator/tenants/acme/resume/")
    assert is_active()
    assert owner.get("/t/acme/").status_code == 200
    actions = list(AuditEntry.objects.filter(tenant=acme.tenant).order_by("-id").values_list("action", "actor")[:2])
    assert actions == [("tenant.resume", "operator:operator"), ("tenant.suspend", "operator:operator")]


def test_the_plan_is_changed_when_its_name_is_typed(acme: Furnished, client: Client) -> None:
    Plan.objects.create(name="partners")
    client.post("/operator/tenants/acme/plan/", {"plan": "partners", "confirm": "nothing"})
    acme.tenant.refresh_from_db()
    assert acme.tenant.plan is None
    client.post("/operator/tenants/acme/plan/", {"plan": "partners", "confirm": "partners"})
    acme.tenant.refresh_from_db()
    assert acme.tenant.plan is not None and acme.tenant.plan.name == "partners"


def test_a_visitor_sees_every_page_under_a_banner_and_changes_nothing(acme: Furnished, client: Client, operator: User) -> None:
    assert client.get("/t/acme/").status_code == 404
    client.post("/operator/tenants/acme/visit/", VISIT)
    before = AuditEntry.objects.count()
    for address in acme.addresses():
        page = client.get(address)
        assert page.status_code in {200, 403}, address
        is_page = page.status_code == 200 and page["content-type"].startswith("text/html")
        assert not is_page or "as an operator" in page.content.decode(), address
    for address, posted in (
        ("/t/acme/keys/new/", {"name": "mine", "scopes": "manage"}),
        ("/t/acme/settings/", {"time_zone": "Asia/Tokyo"}),
        ("/t/acme/settings/plan/", {"plan": "free", "confirm": "free"}),
        ("/t/acme/limits/", {"requests_per_minute": "1"}),
        ("/t/acme/members/invite/", {"email": "me@example.com", "role": "owner"}),
        ("/t/acme/playground/ticket/", {"nonce": "x" * 32}),
        (f"/t/acme/keys/{acme.key.id}/revoke/", {"confirm": acme.key.name}),
    ):
        assert client.post(address, posted).status_code == 403, address
    assert AuditEntry.objects.count() == before
    seat = seat_of(operator, "acme")
    assert seat is not None
    assert {action for action in Action if seat.may(action)} == LOOKING


def test_a_visit_ends_by_itself_or_by_hand_and_both_are_on_record(acme: Furnished, client: Client, operator: User) -> None:
    client.post("/operator/tenants/acme/visit/", VISIT)
    client.post("/operator/leave/")
    assert seat_of(operator, "acme") is None
    client.post("/operator/tenants/acme/visit/", VISIT)
    OperatorVisit.objects.filter(ends_at__gt=timezone.now()).update(ends_at=timezone.now() - timedelta(seconds=1))
    assert seat_of(operator, "acme") is None
    audit = AuditEntry.objects.filter(tenant=acme.tenant, action__startswith="operator.").order_by("id")
    assert list(audit.values_list("action", flat=True)) == ["operator.visit", "operator.leave", "operator.visit"]
    assert audit[0].after is not None and audit[0].after["reason"] == "ticket 4711"


def test_one_visit_at_a_time_with_a_reason_and_a_role_there_is(acme: Furnished, client: Client, operator: User) -> None:
    full_tenant("other")
    for wrong in ({"role": "owner", "reason": " "}, {"role": "king", "reason": "x"}):
        client.post("/operator/tenants/acme/visit/", wrong)
    assert not OperatorVisit.objects.exists()
    client.post("/operator/tenants/acme/visit/", VISIT)
    client.post("/operator/tenants/other/visit/", VISIT)
    assert seat_of(operator, "acme") is None
    assert seat_of(operator, "other") is not None


def test_an_operator_who_is_one_no_more_has_no_visit_either(acme: Furnished, client: Client, operator: User) -> None:
    client.post("/operator/tenants/acme/visit/", VISIT)
    operator.is_superuser = False
    operator.save(update_fields=["is_superuser"])
    assert seat_of(operator, "acme") is None


def test_a_live_page_stays_open_for_a_visitor_until_the_visit_is_over(acme: Furnished, client: Client, operator: User) -> None:
    client.post("/operator/tenants/acme/visit/", VISIT | {"role": "viewer"})
    assert roles_now(acme.tenant)[operator.id] == "viewer"
    client.post("/operator/leave/")
    assert operator.id not in roles_now(acme.tenant)

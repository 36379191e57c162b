"""The operators' part of the API fails closed: every route, as nobody, as members, with keys, and without a CSRF token."""

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from billing.account_models import ExchangeRate, TaxRate
from billing.api import routes as billing
from billing.closing_models import ClosingRun
from billing.gpu_cost_models import GpuCost
from billing.models import Adjustment, Grant, Price, Reconciliation
from billing.re_rating_models import ReRating
from dashboard.api import routes as dashboard
from inference.models import WeightCopy
from tenants.access import Scope
from tenants.api import urls as tenants
from tenants.api.base import OperatorView
from tenants.models import AuditEntry, OperatorVisit, User
from tenants.services.members import ensure_operator
from tests.dashboard.furnished import Furnished, furnish
from tests.tenants.api.cast import Api, code_of, with_key
from tests.tenants.cast import person
from tests.workers.broker import Broker
from workers.models import OutboxEntry

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]
OF_OPERATORS = billing.OF_OPERATORS | tenants.OF_OPERATORS | dashboard.OF_OPERATORS
TAKE_NO_BODY = ("reconciliations/", "tenants/<slug:tenant>/resume/", "visits/end/", "exports/<uuid:export_id>/cancel/")
ASK_FOR_PARAMETERS = ("versions/", "capacity/")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Furnished:
    Broker(monkeypatch)
    return furnish(num_requests=5)


def path_of(route: str, acme: Furnished) -> str:
    ids = {
        "<slug:tenant>": acme.tenant.name,
        "<slug:number>": acme.invoice.number,
        "<slug:note>": "CN-000001",
        "<slug:month>": "2026-11",
        "<uuid:export_id>": uuid.uuid4(),
    }
    for name, value in ids.items():
        route = route.replace(name, str(value))
    route = re.sub(r"<id:\w+>", "9999999", route)  # of what is not there
    assert "<" not in route
    return f"operator/{route}"


def calls(acme: Furnished) -> Iterator[tuple[str, str]]:
    for route in OF_OPERATORS:
        for method in METHODS:
            yield method, path_of(route, acme)


def everything() -> tuple[Any, ...]:
    tables = (AuditEntry, Grant, Price, Adjustment, ClosingRun, Reconciliation, OutboxEntry, WeightCopy)
    rates = (TaxRate, ExchangeRate, GpuCost, ReRating, OperatorVisit)
    return tuple(table._default_manager.count() for table in (*tables, *rates))


def test_every_route_is_an_operators_view_that_asks_before_it_does_anything() -> None:
    for route, view in OF_OPERATORS.items():
        assert issubclass(view, OperatorView), route
        assert view.initial is OperatorView.initial, route


@pytest.mark.any_database
def test_nobody_members_keys_and_half_operators_are_refused_by_every_route(acme: Furnished) -> None:
    staff, superuser, switched_off = person("staff"), person("superuser"), person("off")
    User.objects.filter(pk=staff.pk).update(is_staff=True)
    User.objects.filter(pk=superuser.pk).update(is_superuser=True)
    User.objects.filter(pk=switched_off.pk).update(is_staff=True, is_superuser=True, is_active=False)
    operator = ensure_operator(username="operator", password="x")
    callers = [
        (Api(), 401, "not_authenticated"),
        (Api(user=switched_off), 401, "not_authenticated"),
        (Api(user=acme.people["owner"]), 403, "not_allowed"),
        (Api(user=person("stranger")), 403, "not_allowed"),
        (Api(user=staff), 403, "not_allowed"),
        (Api(user=superuser), 403, "not_allowed"),
        (with_key(acme.tenant, *Scope, member=operator), 403, "session_needed"),
        (with_key(acme.tenant, *Scope), 403, "session_needed"),
        (Api(user=operator, key="hw_live_nonsense"), 401, "invalid_api_key"),
    ]
    for caller, status, code in callers:
        before = everything()
        for method, path in calls(acme):
            answer = caller.call(method, path, {} if method in ("POST", "PUT", "PATCH") else None)
            if code == "invalid_api_key" and answer.status_code == 429:
                continue  # so many bad keys
            assert answer.status_code == status, (method, path, answer.status_code)
            assert method == "HEAD" or code_of(answer) == code, (method, path)
        assert everything() == before


@pytest.mark.any_database
def test_an_operators_session_needs_a_csrf_token_to_change_anything(acme: Furnished) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(ensure_operator(username="operator", password="x"))
    before = everything()
    for route in OF_OPERATORS:
        for method in ("post", "put"):
            answer = getattr(client, method)(f"/api/v1/{path_of(route, acme)}", "{}", "application/json")
            assert answer.status_code == 403, (method, route)
    assert everything() == before


def test_an_operator_reads_every_route_and_unknown_ones_and_empty_bodies_are_errors(acme: Furnished) -> None:
    caller = Api(user=ensure_operator(username="operator", password="x"))
    for route, view in OF_OPERATORS.items():
        path = path_of(route, acme)
        if hasattr(view, "get"):
            wanted = 404 if "<id:" in route or "export_id" in route else 400 if route in ASK_FOR_PARAMETERS else 200
            for method in ("GET", "HEAD"):
                assert caller.call(method, path).status_code == wanted, path
        for method in ("POST", "PUT"):
            if not hasattr(view, method.lower()):
                assert code_of(caller.call(method, path, {})) == "method_not_allowed", path
            elif route not in TAKE_NO_BODY:
                before, refused = everything(), {400, 404} if "<id:" in route else {400}
                assert caller.call(method, path, {}).status_code in refused, path
                assert caller.call(method, path, ["x"]).status_code in refused, path
                assert everything() == before
    for missing in ("tenants/nobody/", "invoices/INV-9/", "months/soon/", "nothing/", "closings/999999999999999999/"):
        assert caller.get(f"operator/{missing}").status_code in (400, 404), missing

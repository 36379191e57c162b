"""Releases, versions and pins over REST; every route of operators fails closed."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from inference.api.routes import OF_OPERATORS
from inference.models import ModelVersion
from inference.rollout_models import Rollout, RolloutState, VersionPin
from tenants.access import Scope
from tenants.api.base import OperatorView
from tenants.models import AuditEntry
from tenants.services.members import ensure_operator
from tests.inference.services.rollout_cast import SCHEDULE, Cast
from tests.tenants.api.cast import Api, code_of, with_key
from tests.tenants.cast import full_tenant, person

pytestmark = pytest.mark.django_db
OURS = {route: view for route, view in OF_OPERATORS.items() if route.startswith(("versions/", "rollouts/", "tenants/"))}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


@pytest.fixture
def cast() -> Cast:
    return Cast()


@pytest.fixture
def api() -> Api:
    return Api(user=ensure_operator(username="operator", password="x"))


def path_of(route: str) -> str:
    return "operator/" + route.replace("<id:rollout_id>", "1").replace("<slug:tenant>", "acme")


def act(api: Api, number: int, verb: str, **body: str) -> Any:
    return api.post(f"operator/rollouts/{number}/{verb}/", body)


@pytest.mark.any_database
def test_nobody_members_and_keys_are_refused_by_every_route_of_operators(cast: Cast) -> None:
    tenant, people = full_tenant("acme")
    cast.draft()
    before = (AuditEntry.objects.count(), Rollout.objects.get().state, VersionPin.objects.count())
    callers = [
        (Api(), 401),
        (Api(user=people["owner"]), 403),
        (Api(user=person("stranger")), 403),
        (with_key(tenant, *Scope), 403),
    ]
    asked = AuditEntry.objects.count() - before[0]  # to make a key is audited
    for route, view in OURS.items():
        assert issubclass(view, OperatorView), route
        assert view.initial is OperatorView.initial, route
        for caller, status in callers:
            for method in METHODS:
                body: dict[str, str] | None = {} if method in ("POST", "PUT", "PATCH") else None
                assert caller.call(method, path_of(route), body).status_code == status, (method, route)
    assert (AuditEntry.objects.count() - asked, Rollout.objects.get().state, VersionPin.objects.count()) == before


def test_an_operator_reads_every_route_and_empty_bodies_are_errors(cast: Cast, api: Api) -> None:
    full_tenant("acme")
    rollout = cast.started()
    assert rollout.pk == Rollout.objects.get().pk
    for route, view in OURS.items():
        path = path_of(route).replace("/1/", f"/{rollout.pk}/")
        if hasattr(view, "get"):
            assert api.get(path + ("?model=m" if route == "versions/" else "")).status_code == 200, path
        for method in ("POST", "PUT"):
            if hasattr(view, method.lower()) and not route.endswith(("start/", "pause/", "resume/")):
                assert api.call(method, path, {}).status_code == 400, path
                assert api.call(method, path, ["x"]).status_code == 400, path
    for missing in ("rollouts/999/", "rollouts/999999999999999999/", "versions/?model=nothing", "tenants/nobody/pins/"):
        assert api.get(f"operator/{missing}").status_code == 404, missing


def test_a_rollout_is_run_over_rest(cast: Cast, api: Api) -> None:
    made = api.post("operator/rollouts/", {"model": "m", "to": "v2", "schedule": SCHEDULE, "gates": {"ttft_p95_ratio": None}})
    assert made.status_code == 201
    number = made.json()["id"]
    assert (made.json()["from"], made.json()["to"], made.json()["state"]) == ("v1", "v2", "draft")
    assert made.json()["gates"]["ttft_p95_ratio"] is None
    assert act(api, number, "start").json()["state"] == "staging"
    assert act(api, number, "pause", reason="lunch").json()["state"] == "paused"
    assert act(api, number, "resume").json()["state"] == "staging"
    assert (act(api, number, "resume").status_code, code_of(act(api, number, "resume"))) == (409, "rollout_moved")
    rollout = cast.until(Rollout.objects.get(), RolloutState.CANARY, share_ppm=50_000)
    assert code_of(act(api, number, "promote", version="v1")) == "invalid_value"
    assert act(api, number, "promote", version="v2").status_code == 200
    cast.until(rollout, RolloutState.PROMOTED)
    assert act(api, number, "roll-back", version="v1", reason="no good").json()["state"] == "rolling_back"
    cast.until(rollout, RolloutState.ROLLED_BACK)
    assert [each["id"] for each in api.get("operator/rollouts/?state=ended&model=m").json()["results"]] == [number]
    events = api.get(f"operator/rollouts/{number}/events/").json()["results"]
    assert (events[0]["to"], events[-1]["to"]) == ("rolled_back", "draft")
    assert {event["actor"] for event in events} == {"operator:operator", "system"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"to": "v1"},
        {"gates": {"nothing": 1}},
        {"schedule": {"steps": [{"share_ppm": 1_000_000, "min_duration_s": 1, "min_samples": 1}]}},
        {"schedule": {"steps": []}},
        {"window_s": -1},
        {"scheduled_for": "soon"},
    ],
)
def test_a_rollout_that_cannot_be_run_is_refused(cast: Cast, api: Api, wrong: dict[str, Any]) -> None:
    assert api.post("operator/rollouts/", {"model": "m", "to": "v2", **wrong}).status_code == 400
    assert not Rollout.objects.exists()


def test_versions_are_listed_and_retire(cast: Cast, api: Api) -> None:
    at = (timezone.now() + timedelta(days=30)).isoformat()
    asked = {"model": "m", "version": "v2", "retires_at": at}
    (newest, stable) = api.call("PUT", "operator/versions/retirements/", asked).json()["results"]
    assert (newest["version"], newest["stage"], stable["stage"]) == ("v2", "registered", "stable")
    assert newest["retires_at"] is not None
    api.call("PUT", "operator/versions/retirements/", {**asked, "retires_at": None})
    assert ModelVersion.objects.get(number=2).retires_at is None


def test_a_tenant_stays_on_a_version_by_its_own_wish(cast: Cast, api: Api) -> None:
    tenant, people = full_tenant("acme")
    owner = Api(user=people["owner"])
    (shown,) = owner.get("tenants/acme/pins/").json()["results"]
    assert (shown["stable"], shown["pinned"], shown["choices"]) == ("v1", "", ["v1"])
    (pinned,) = owner.call("PUT", "tenants/acme/pins/", {"model": "m", "version": "v1"}).json()["results"]
    assert (pinned["pinned"], pinned["is_in_force"]) == ("v1", True)
    assert owner.call("PUT", "tenants/acme/pins/", {"model": "m", "version": "v2"}).status_code == 400
    (by_operator,) = api.call("PUT", "operator/tenants/acme/pins/", {"model": "m", "version": "v2"}).json()["results"]
    assert (by_operator["pinned"], by_operator["is_in_force"]) == ("v2", False)
    assert with_key(tenant, "manage").call("PUT", "tenants/acme/pins/", {"model": "m", "version": None}).status_code == 200
    assert not VersionPin.objects.exists()

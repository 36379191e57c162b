"""Evals over REST, by the same services as pages and commands (who may: tests/billing/api/test_operator_routes.py)."""

from typing import Any

import pytest

from inference.eval_models import EvalGate, EvalRun, EvalSet
from tenants.services.members import ensure_operator
from tests.inference.evals.conftest import case_lines, gateway, pool, work
from tests.inference.evals.fake_gateway import Asked, FakeGateway, Reply, answer
from tests.tenants.api.cast import Api, code_of
from tests.workers.broker import Broker

__all__ = ["gateway", "pool"]  # fixtures
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pool")]


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


@pytest.fixture
def api() -> Api:
    return Api(user=ensure_operator(username="operator", password="x"))


def says(asked: Asked) -> Reply:
    version = asked.headers["x-headway-version"]
    return answer("no" if version == "v2" and asked.prompt != "say 1" else "ok", version=version)


def imported(api: Api, number: int = 20) -> Any:
    content = b"\n".join(case_lines(number)).decode()
    return api.post("operator/eval-sets/", {"name": "small", "content": content})


def ran(api: Api, **more: Any) -> dict[str, Any]:
    answer = api.post("operator/eval-runs/", {"eval_set": "small", "model": "m", **more})
    assert answer.status_code == 202, answer.content
    found: dict[str, Any] = answer.json()
    return found


def test_a_set_is_imported_read_and_given_back_when_it_is_there(api: Api) -> None:
    made = imported(api)
    assert made.status_code == 201
    assert made.json()["eval_set"] == "small@1"
    assert imported(api).json()["id"] == made.json()["id"]
    cases = api.get(f"operator/eval-sets/{made.json()['id']}/cases/?page_size=2").json()
    assert [case["case"] for case in cases["results"]] == ["c1", "c2"]
    assert api.get("operator/eval-sets/").json()["results"][0]["cases"] == 20
    bad = api.post("operator/eval-sets/", {"name": "small", "content": '{"prompt": "x"}'})
    assert (bad.status_code, code_of(bad)) == (400, "bad_eval_set")
    assert "line 1" in bad.json()["error"]["message"]
    assert EvalSet.objects.count() == 1


def test_two_versions_are_run_and_compared(api: Api, gateway: FakeGateway) -> None:
    gateway.script = says
    imported(api)
    first, second = ran(api), ran(api, version="v2")
    assert (first["state"], first["version"]) == ("running", "v1")
    work()
    found = api.get(f"operator/eval-runs/{second['id']}/").json()
    assert (found["state"], found["passed"], found["cases"], found["cost_usd"]) == ("done", 1, 20, "0")
    compared = api.get(f"operator/eval-runs/{second['id']}/against/{first['id']}/").json()
    assert (compared["difference"], compared["is_regression"], compared["only_against_passed"]) == (-0.95, True, 19)
    failed = api.get(f"operator/eval-runs/{second['id']}/samples/?outcome=failed&page_size=2").json()["results"]
    assert [(sample["case"], sample["text"]) for sample in failed] == [("c2", "no"), ("c3", "no")]
    assert api.post(f"operator/eval-runs/{first['id']}/baseline/").json()["is_baseline"] is True
    assert [run["id"] for run in api.get("operator/eval-runs/?eval_set=small&model=m").json()["results"]] == [
        second["id"],
        first["id"],
    ]


def test_a_run_is_cancelled_once(api: Api) -> None:
    imported(api)
    run = ran(api)
    assert api.post(f"operator/eval-runs/{run['id']}/cancel/").json()["state"] == "cancelled"
    assert code_of(api.post(f"operator/eval-runs/{run['id']}/cancel/")) == "conflict"
    assert code_of(api.post(f"operator/eval-runs/{run['id']}/baseline/")) == "conflict"


def test_a_gate_is_set_changed_and_removed(api: Api) -> None:
    imported(api)
    asked = {"model": "m", "eval_set": "small@1", "min_score": 0.5}
    made = api.post("operator/eval-gates/", asked).json()
    assert (made["min_score"], made["max_drop"], made["confidence"]) == (0.5, None, 0.95)
    changed = api.post("operator/eval-gates/", {**asked, "max_drop": 0.02}).json()
    assert (changed["id"], changed["max_drop"]) == (made["id"], 0.02)
    assert api.post("operator/eval-gates/", {"model": "m", "eval_set": "small@1"}).status_code == 400
    assert api.call("DELETE", f"operator/eval-gates/{made['id']}/").status_code == 204
    assert api.get(f"operator/eval-gates/{made['id']}/").status_code == 404
    assert not EvalGate.objects.exists()


@pytest.mark.parametrize(
    ("more", "status"),
    [({"model": "x"}, 404), ({"version": "v9"}, 404), ({"eval_set": "none"}, 404), ({"concurrency": 0}, 400)],
)
def test_what_does_not_exist_is_not_run(api: Api, more: dict[str, Any], status: int) -> None:
    imported(api)
    assert api.post("operator/eval-runs/", {"eval_set": "small", "model": "m", **more}).status_code == status
    assert not EvalRun.objects.exists()

"""What operators do with pools over REST: the same services as their pages."""

from typing import Any

import pytest
from django.utils import timezone

from inference.models import Pool
from inference.services.scale_decisions import record_decision
from tenants.models import AuditEntry
from tenants.services.members import ensure_operator
from tests.inference.services.scaled_pool import all_ready, have, pool, scaled_pool
from tests.tenants.api.cast import Api, code_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def api() -> Api:
    scaled_pool()
    return Api(user=ensure_operator(username="operator", password="x"))


def one() -> str:
    return f"operator/pools/{pool().id}/"


def test_pools_are_listed_with_what_is_wanted_and_what_is_there(api: Api) -> None:
    have(1)
    all_ready()
    (shown,) = api.get("operator/pools/").json()["results"]
    assert (shown["model"], shown["stable"], shown["wanted"], shown["ready"]) == ("m", "v1", 1, 1)
    assert (shown["is_autoscaled"], shown["max_replicas"], shown["woken_at"]) == (True, 5, None)
    assert api.get(one()).json() == shown


def test_what_is_named_is_changed_and_the_rest_stays(api: Api) -> None:
    answer = api.call("PATCH", one(), {"min_replicas": 2, "hold_limit_s": 5})
    assert (answer.status_code, answer.json()["min_replicas"], answer.json()["max_replicas"]) == (200, 2, 5)
    assert (Pool.objects.get().min_replicas, Pool.objects.get().hold_limit_s) == (2, 5)
    assert AuditEntry.objects.filter(action="pool.set", actor="operator:operator").exists()


@pytest.mark.parametrize(
    "wrong",
    [{"min_replicas": 9}, {"max_replicas": "many"}, {"warm_replicas": -1}, {"is_autoscaled": None}, {"max_replicas": 0}],
)
def test_what_may_not_be_is_refused_and_changes_nothing(api: Api, wrong: dict[str, Any]) -> None:
    before = Pool.objects.values().get()
    answer = api.call("PATCH", one(), wrong)
    assert answer.status_code == 400 and answer.json()["error"]["param"]
    assert Pool.objects.values().get() == before


def test_decisions_are_read_newest_first_and_by_pool(api: Api) -> None:
    for desired in (1, 2):
        record_decision(pool=pool(), before=0, desired=desired, reason="load", at=timezone.now(), evidence={"waiting": desired})
    rows = api.get(f"operator/scaling/?pool={pool().id}").json()["results"]
    assert [(row["desired"], row["evidence"], row["model"]) for row in rows] == [
        (2, {"waiting": 2}, "m"),
        (1, {"waiting": 1}, "m"),
    ]
    assert api.get("operator/scaling/?pool=999999").json()["results"] == []
    assert code_of(api.get("operator/scaling/?pool=x")) and code_of(api.get("operator/pools/999999/")) == "not_found"

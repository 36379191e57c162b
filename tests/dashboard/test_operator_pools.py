"""Operators: pools and the autoscaler's decisions."""

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.views import operator_pools
from inference.fleet_models import RollingRestart
from inference.models import Pool
from inference.services.scale_decisions import record_decision
from inference.services.wake_ups import ask_for_wake_up
from tenants.models import AuditEntry
from tests.dashboard.operators import client, operator
from tests.inference.services.scaled_pool import all_ready, have, pool, scaled_pool, shown_busy
from tests.tenants.cast import person

__all__ = ["client", "operator"]  # fixtures
pytestmark = pytest.mark.django_db

MAX_QUERIES = 20
ASKED = {"min_replicas": 1, "max_replicas": 4, "warm_replicas": 0, "idle_before_zero_s": 300, "hold_limit_s": 20}


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_pools, "brain_seen_now", lambda: None)


def text_of(response: Any) -> str:
    assert response.status_code == 200
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def test_pages_open_with_few_queries_and_nothing_inline(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled_pool()
    have(1)
    all_ready()
    monkeypatch.setattr(operator_pools, "brain_seen_now", shown_busy)
    for address in ("/operator/pools/", "/operator/scaling/", "/operator/scaling/?pool=abc&page=before-zz"):
        with CaptureQueriesContext(connection) as queries:
            response = client.get(address)
        assert response.status_code == 200, address
        assert len(queries) <= MAX_QUERIES, (address, len(queries))
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", response.content.decode()), address


def test_it_shows_what_is_there_against_what_is_wanted_and_what_is_late(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled_pool()
    have(1)
    all_ready()
    monkeypatch.setattr(operator_pools, "brain_seen_now", shown_busy)
    text = text_of(client.get("/operator/pools/"))
    assert "m v1 1 1 0 0 0 0 serving" in text
    assert re.search(r"interactive 2 750 ms late 500 ms 50 ms", text)
    assert "0.987" in text and "10.0 %" in text


def test_without_a_dispatcher_it_says_so_and_shows_the_rest(client: Client) -> None:
    scaled_pool()
    text = text_of(client.get("/operator/pools/"))
    assert "No dispatcher answers" in text and "at zero a request wakes it" in text
    ask_for_wake_up(model="m", asked_by="d")
    assert "waking asked for just now" in text_of(client.get("/operator/pools/"))


def test_a_pool_is_changed_and_written_down(client: Client) -> None:
    scaled_pool()
    assert client.post(f"/operator/pools/{pool().id}/", {"is_autoscaled": "on", **ASKED}).status_code == 302
    changed = Pool.objects.get()
    assert changed.is_autoscaled and {name: getattr(changed, name) for name in ASKED} == ASKED
    assert AuditEntry.objects.filter(action="pool.set", actor="operator:operator").exists()
    assert client.post(f"/operator/pools/{pool().id}/", ASKED).status_code == 302
    assert not Pool.objects.get().is_autoscaled, "an empty box is off"


@pytest.mark.parametrize("wrong", [{"min_replicas": 5}, {"max_replicas": -1}, {"hold_limit_s": "x"}, {"idle_before_zero_s": 1}])
def test_what_may_not_be_is_said_beside_its_field_and_changes_nothing(client: Client, wrong: dict[str, Any]) -> None:
    scaled_pool()
    before = Pool.objects.values().get()
    response = client.post(f"/operator/pools/{pool().id}/", {"is_autoscaled": "on", **ASKED, **wrong})
    assert response.status_code == 400 and b"field-error" in response.content
    assert Pool.objects.values().get() == before
    assert client.post("/operator/pools/99999/", ASKED).status_code == 404


def test_all_replicas_are_restarted_once_its_name_is_typed_and_it_can_be_stopped(client: Client) -> None:
    scaled_pool()
    have(2)
    all_ready()
    address = f"/operator/pools/{pool().id}/restart/"
    client.post(address, {"confirm": "another"})
    assert not RollingRestart.objects.exists()
    client.post(address, {"confirm": "m"})
    client.post(address, {"confirm": "m"})
    assert RollingRestart.objects.get().by == "operator:operator"
    text = text_of(client.get("/operator/pools/"))
    assert "restarting 0 done, 2 to come" in text and "Stop restarting" in text
    client.post(f"{address}cancel/")
    assert re.search("restart cancelled just now ?: by operator:operator", text_of(client.get("/operator/pools/")))
    assert client.post("/operator/pools/99999/restart/", {"confirm": "m"}).status_code == 404


def test_decisions_are_listed_with_reason_and_evidence_and_by_pool(client: Client) -> None:
    scaled_pool()
    record_decision(
        pool=pool(), before=1, desired=3, reason="so it is", at=timezone.now(), evidence={"prompts_load": 2.5}, problem="full"
    )
    for address in ("/operator/scaling/", f"/operator/scaling/?pool={pool().id}"):
        text = text_of(client.get(address))
        assert "m 1 3 so it is" in text and "2.5" in text and "full" in text
    assert "No decision" in text_of(client.get("/operator/scaling/?pool=99999"))


def test_nobody_but_an_operator_finds_them() -> None:
    scaled_pool()
    stranger = Client()
    stranger.force_login(person("stranger"))
    before = Pool.objects.values().get()
    for address in ("/operator/pools/", "/operator/scaling/"):
        assert Client().get(address).status_code == 302
        assert stranger.get(address).status_code == 404
    assert stranger.post(f"/operator/pools/{pool().id}/", ASKED).status_code == 404
    assert Pool.objects.values().get() == before

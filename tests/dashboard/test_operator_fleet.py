"""The operators' pages of the fleet, and of jobs and incidents."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.views import operator_fleet
from inference.fleet_models import LogTail, ReplicaLoad, ZoneDrain
from inference.models import NodeHeartbeat, Replica, ReplicaState
from inference.scaling_models import ReplicaStart
from inference.services.lost_nodes import look_for_lost_nodes
from tenants.models import AuditEntry
from tests.dashboard.operators import client, operator
from tests.dashboard.test_operator_money import text_of
from tests.inference.services.fleet import falls_silent, node, pool_of, serving, watched_for
from tests.tenants.cast import person
from workers.models import OutboxEntry

__all__ = ["client", "operator"]  # fixtures
pytestmark = pytest.mark.django_db
MAX_QUERIES = 20


@pytest.fixture
def replicas() -> list[Replica]:
    """One in each zone, of which the first is busy."""
    node("n1", zone="north")
    node("s1", zone="south", max_replicas=4)
    made = serving(pool_of(), 2)
    values = {"running": 3, "waiting": 1, "kv_used_ratio": 0.25, "tokens_per_s": 120.0, "prefix_hit_ratio": 0.5}
    ReplicaLoad.objects.create(replica=made[0].id, epoch=0, at=timezone.now(), **values)
    return made


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_fleet, "brain_seen_now", lambda: None)


def addresses(replica: str) -> tuple[str, ...]:
    return ("fleet/", "fleet/zones/north/", f"fleet/replicas/{replica}/", "jobs/")


def post(client: Client, address: str, **posted: str) -> Any:
    return client.post(f"/operator/{address}", posted, follow=True)


def test_pages_open_with_few_queries_and_nothing_inline(replicas: list[Replica], client: Client) -> None:
    for address in addresses(replicas[0].id):
        with CaptureQueriesContext(connection) as queries:
            response = client.get(f"/operator/{address}")
        assert response.status_code == 200, address
        assert len(queries) <= MAX_QUERIES, (address, len(queries))
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", response.content.decode()), address
    for address in ("fleet/zones/nowhere/", "fleet/replicas/rep-none/"):
        assert client.get(f"/operator/{address}").status_code == 404


def test_more_replicas_take_no_more_queries(replicas: list[Replica], client: Client) -> None:
    def number() -> int:
        with CaptureQueriesContext(connection) as queries:
            client.get("/operator/fleet/")
        return len(queries)

    before = number()
    node("n2", zone="north")
    serving(pool_of("other"), 3)
    assert number() == before


def test_nobody_but_an_operator_reads_or_changes_anything(replicas: list[Replica]) -> None:
    stranger = Client()
    stranger.force_login(person("stranger"))
    target = replicas[0].id
    for address in addresses(target):
        assert stranger.get(f"/operator/{address}").status_code == 404
    for address, word in (
        ("fleet/zones/north/drain/", "north"),
        ("fleet/nodes/n1/cordon/", "n1"),
        (f"fleet/replicas/{target}/drain/", target),
        (f"fleet/replicas/{target}/restart/", target),
        (f"fleet/replicas/{target}/log/", target),
    ):
        assert stranger.post(f"/operator/{address}", {"confirm": word, "cordon": "yes"}).status_code == 404
    assert not ZoneDrain.objects.exists()
    assert not NodeHeartbeat.objects.filter(is_cordoned=True).exists()
    assert Replica.objects.filter(is_wanted=True, replaced_by="").count() == 2


def test_each_replica_is_shown_where_it_is_with_what_it_does(replicas: list[Replica], client: Client) -> None:
    shown = text_of(client.get("/operator/fleet/"))
    for part in ("Zone north", "Zone south", "n1 alive", "s1 alive", "1 of 4 replica", "25.0 %", "120", "50.0 %"):
        assert part in shown, part
    assert all(replica.id in shown for replica in replicas)
    assert "3 (9.4 %)" in shown  # of two times sixteen slots


def test_what_waits_at_the_dispatcher_is_shown_beside_capacity(
    replicas: list[Replica], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "3 (9.4 %) – 1" in text_of(client.get("/operator/fleet/")), "not known, and not none"
    queue = {"in_flight": 8, "parked": 0, "jain_index": 1.0, "queued_by_tier": {"interactive": 5, "batch": 2}, "caps": {}}
    monkeypatch.setattr(operator_fleet, "brain_seen_now", lambda: {"pools": {"m": queue}, "scaling": {}})
    assert "8 (25.0 %) 7 1" in text_of(client.get("/operator/fleet/"))


def test_a_replicas_page_breaks_its_last_start_down(replicas: list[Replica], client: Client) -> None:
    address, asked_at = f"/operator/fleet/replicas/{replicas[0].id}/", timezone.now() - timedelta(minutes=1)
    assert "Its last start" not in text_of(client.get(address))
    after_s = {"requested_at": 0.0, "staging_at": 0.5, "starting_at": 1.5, "certifying_at": 4.0, "up_at": 4.25}
    moments = {name: asked_at + timedelta(seconds=each) for name, each in after_s.items()}
    ReplicaStart.objects.create(replica=replicas[0].id, pool=replicas[0].pool, version="v1", node="n1", **moments)
    shown = text_of(client.get(address))
    for part in (
        "Place: until its agent had it 0.50 s",
        "Stage: until its weights were there 1.00 s",
        "2.50 s",
        "0.25 s",
        "4.25 s",
    ):
        assert part in shown, part


def test_a_load_of_an_earlier_start_or_of_long_ago_is_not_shown(replicas: list[Replica], client: Client) -> None:
    ReplicaLoad.objects.update(epoch=7)
    assert "25.0 %" not in text_of(client.get("/operator/fleet/"))
    ReplicaLoad.objects.update(epoch=0, at=timezone.now() - timedelta(minutes=5))
    assert "25.0 %" not in text_of(client.get("/operator/fleet/"))


def test_a_node_is_cordoned_and_uncordoned(replicas: list[Replica], client: Client) -> None:
    assert "n1 gets no new replica" in text_of(post(client, "fleet/nodes/n1/cordon/", cordon="yes"))
    assert "n1 cordoned" in text_of(client.get("/operator/fleet/"))
    assert "n1 takes replicas again" in text_of(post(client, "fleet/nodes/n1/cordon/", cordon="no"))
    assert list(AuditEntry.objects.filter(action__startswith="node.").values_list("action", "actor").order_by("id")) == [
        ("node.cordon", "operator:operator"),
        ("node.uncordon", "operator:operator"),
    ]


def test_a_zone_is_drained_when_its_name_is_typed_and_taken_back(replicas: list[Replica], client: Client) -> None:
    assert "type north to confirm" in text_of(post(client, "fleet/zones/north/drain/", confirm="nort"))
    assert not ZoneDrain.objects.exists()
    shown = text_of(post(client, "fleet/zones/north/drain/", confirm="north"))
    assert "is being emptied" in shown
    assert "Being drained by operator:operator" in shown
    assert "takes replicas again" in text_of(post(client, "fleet/zones/north/undrain/"))
    assert "cancelled" in text_of(client.get("/operator/fleet/zones/north/"))


def test_a_zone_that_the_others_cannot_carry_is_refused_with_the_numbers(replicas: list[Replica], client: Client) -> None:
    NodeHeartbeat.objects.filter(name="s1").update(max_replicas=1)
    problem = "1 replicas need a place elsewhere, and live nodes there have room for 0"
    assert problem in text_of(client.get("/operator/fleet/zones/north/"))
    assert problem in text_of(post(client, "fleet/zones/north/drain/", confirm="north"))
    assert not ZoneDrain.objects.exists()
    post(client, "fleet/zones/north/drain/", confirm="north", force="yes")
    assert ZoneDrain.objects.get().is_forced


def test_a_replica_is_drained_and_restarted_when_its_id_is_typed(replicas: list[Replica], client: Client) -> None:
    first, second = (replica.id for replica in replicas)
    assert "to confirm" in text_of(post(client, f"fleet/replicas/{first}/drain/", confirm="x"))
    assert "Another one is started elsewhere" in text_of(post(client, f"fleet/replicas/{first}/drain/", confirm=first))
    assert "A new engine is started" in text_of(post(client, f"fleet/replicas/{second}/restart/", confirm=second))
    assert Replica.objects.exclude(replaced_by="").count() == 2
    assert "on its way out already" in text_of(post(client, f"fleet/replicas/{first}/restart/", confirm=first))
    assert Replica.objects.count() == 4


def test_a_log_is_asked_for_and_shown_as_text(replicas: list[Replica], client: Client) -> None:
    address = f"fleet/replicas/{replicas[0].id}/"
    assert "tells it within a second" in text_of(post(client, address + "log/"))
    LogTail.objects.update(text="<b>RuntimeError</b>: out of memory", asked_at=None, told_at=timezone.now())
    page = client.get(f"/operator/{address}").content.decode()
    assert "&lt;b&gt;RuntimeError&lt;/b&gt;: out of memory" in page


def test_what_is_lost_failed_or_late_is_on_the_page_of_incidents(replicas: list[Replica], client: Client) -> None:
    assert "quiet" in text_of(client.get("/operator/jobs/"))
    falls_silent("n1")
    watched_for()
    look_for_lost_nodes()
    Replica.objects.filter(node="s1", state=ReplicaState.READY).update(state=ReplicaState.FAILED, reason="out of memory")
    now = timezone.now()
    OutboxEntry.objects.create(kind="webhook", ids={}, due_at=now - timedelta(minutes=5))
    entry = OutboxEntry.objects.create(
        kind="mail", ids={}, due_at=now, attempts=14, given_up_at=now, last_error="the server is away"
    )
    shown = text_of(client.get("/operator/jobs/"))
    for part in ("late", "Node n1 in north", "out of memory", "the server is away", "given up", "node.lost"):
        assert part in shown, part
    assert f"Job {entry.id} is tried again" in text_of(post(client, f"jobs/{entry.id}/again/"))
    entry.refresh_from_db()
    assert (entry.given_up_at, entry.attempts) == (None, 0)
    assert "was not given up" in text_of(post(client, f"jobs/{entry.id}/again/"))


def test_a_silent_node_is_forgotten_when_its_name_is_typed(replicas: list[Replica], client: Client) -> None:
    falls_silent("n1")
    watched_for()
    look_for_lost_nodes()
    assert "n1 lost" in text_of(client.get("/operator/fleet/"))
    post(client, "fleet/nodes/n1/forget/", confirm="n1")
    assert list(NodeHeartbeat.objects.values_list("name", flat=True)) == ["s1"]

"""Commands about nodes, zones and single replicas: what they print, and what they refuse."""

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from inference.fleet_models import ZoneDrain
from inference.models import NodeHeartbeat, Replica
from tests.inference.services.fleet import falls_silent, node, pool_of, serving, watched_for

pytestmark = pytest.mark.django_db


def said(*arguments: str) -> Any:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


@pytest.fixture
def replicas() -> list[Replica]:
    node("n1", zone="north")
    node("s1", zone="south", max_replicas=3)
    return serving(pool_of(), 2)


def test_a_node_is_cordoned_and_uncordoned_and_status_says_so(replicas: list[Replica]) -> None:
    assert said("cordon", "n1") == {"node": "n1", "is_cordoned": True}
    shown = {entry["name"]: entry for entry in said("status")["nodes"]}
    assert (shown["n1"]["zone"], shown["n1"]["is_cordoned"], shown["s1"]["max_replicas"]) == ("north", True, 3)
    out = io.StringIO()
    call_command("status", stdout=out)
    assert "cordoned" in out.getvalue()
    said("uncordon", "n1")
    assert not NodeHeartbeat.objects.filter(is_cordoned=True).exists()
    with pytest.raises(CommandError, match="no node 'nowhere'"):
        said("cordon", "nowhere")


def test_a_replica_is_moved_and_restarted(replicas: list[Replica]) -> None:
    first, second = replicas
    moved = said("drain_replica", first.id)
    assert Replica.objects.get(pk=moved["replaced_by"]).node != first.node
    assert said("restart_replica", second.id)["is_gapless"]
    with pytest.raises(CommandError, match="on its way out"):
        said("drain_replica", first.id)


def test_a_zone_is_drained_and_taken_back(replicas: list[Replica]) -> None:
    report = said("drain_zone", "north", "--no-wait")
    assert (report["verdict"], report["before"]["needed"]) == ("running", 1)
    assert said("undrain_zone", "north") == {"zone": "north", "staying": 1}
    assert said_with_code_1("drain_zone", "north", "--report")["verdict"] == "cancelled"
    with pytest.raises(CommandError, match="never drained"):
        said("drain_zone", "south", "--report")


def test_a_zone_that_the_others_cannot_carry_is_refused(replicas: list[Replica]) -> None:
    NodeHeartbeat.objects.filter(name="s1").update(max_replicas=1)
    with pytest.raises(CommandError, match="1 replicas need a place elsewhere, and live nodes there have room for 0"):
        said("drain_zone", "north")
    assert not ZoneDrain.objects.exists()
    assert said("drain_zone", "north", "--force", "--no-wait")["is_forced"]


def test_a_silent_node_is_forgotten(replicas: list[Replica]) -> None:
    with pytest.raises(CommandError, match="drained, not forgotten"):
        said("forget_node", "n1")
    falls_silent("n1")
    watched_for()
    assert said("forget_node", "n1") == {"node": "n1", "replicas": 1}


def said_with_code_1(*arguments: str) -> Any:
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command(*arguments, "--json", stdout=out)
    assert ended.value.code == 1
    return json.loads(out.getvalue())


BIG, NO_TEXT = "9" * 25, "\udcff"
ABSURD = (
    ("drain_zone", "north", "--no-wait", "--within", BIG),
    ("drain_zone", "north", "--no-wait", "--within", "-5"),
    ("scale", "m", "--replicas", BIG),
    ("set_pool", "m", "--max-in-flight", BIG),
    ("rollout", "create", "m", "--to", "v1", "--steps", "1e999999"),
    ("rollout", "create", "m", "--to", "v1", "--steps", "nan"),
    ("rollout", "create", "m", "--to", "v1", "--shadow-usd", "1e999999"),
    ("rollout", "show", BIG),
    ("cordon", NO_TEXT),
    ("restart_replica", NO_TEXT),
    ("capacity", "--params-b", "1", "--layers", "2", "--kv-heads", "2", "--head-dim", "64", "--gpu", "h100-80",
     "--overhead-gib", "nan"),
)  # fmt: skip


@pytest.mark.parametrize(
    "arguments", ABSURD, ids=lambda words: " ".join(words[:1] + words[-2:])[:40].encode("ascii", "replace")
)
def test_what_means_nothing_is_one_line_and_changes_nothing(replicas: list[Replica], arguments: tuple[str, ...]) -> None:
    with pytest.raises((CommandError, SystemExit)) as refusal:
        call_command(*arguments)
    assert isinstance(refusal.value, SystemExit) or len(str(refusal.value).splitlines()) == 1
    assert not ZoneDrain.objects.exists()
    assert Replica.objects.count() == len(replicas)


def test_more_rows_than_anybody_reads_are_as_many_as_there_are(replicas: list[Replica]) -> None:
    assert said("scaling", "m", "--limit", BIG)["decisions"] == []


def test_who_scales_a_pool_by_hand_that_is_autoscaled_is_told_what_becomes_of_it(replicas: list[Replica]) -> None:
    said("set_pool", "m", "--autoscale", "on", "--max", "3")
    told = io.StringIO()
    call_command("scale", "m", "--replicas", "1", stdout=io.StringIO(), stderr=told)
    assert "until the autoscaler looks again" in told.getvalue()

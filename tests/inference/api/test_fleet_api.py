"""The operators' part of the API about zones, nodes and replicas."""

import pytest

from inference.fleet_models import ZoneDrain
from inference.models import NodeHeartbeat, Replica
from tenants.services.members import ensure_operator
from tests.inference.services.fleet import node, pool_of, serving
from tests.tenants.api.cast import Api, code_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def caller() -> Api:
    return Api(user=ensure_operator(username="operator", password="x"))


@pytest.fixture
def replicas() -> list[Replica]:
    node("n1", zone="north")
    node("s1", zone="south", max_replicas=4)
    return serving(pool_of(), 2)


def test_the_fleet_is_told_by_zone_node_and_replica(caller: Api, replicas: list[Replica]) -> None:
    told = caller.get("operator/fleet/").json()["results"]
    assert [(zone["name"], [each["name"] for each in zone["nodes"]]) for zone in told] == [("north", ["n1"]), ("south", ["s1"])]
    shown = {replica["id"] for zone in told for each in zone["nodes"] for replica in each["replicas"]}
    assert shown == {replica.id for replica in replicas}


def test_a_node_is_cordoned(caller: Api, replicas: list[Replica]) -> None:
    body = {"node": "n1", "is_cordoned": True}
    assert caller.call("PUT", "operator/fleet/cordons/", body).json() == body
    assert NodeHeartbeat.objects.get(name="n1").is_cordoned
    assert code_of(caller.call("PUT", "operator/fleet/cordons/", {**body, "node": "nowhere"})) == "node_not_found"


def test_a_replica_is_moved_once(caller: Api, replicas: list[Replica]) -> None:
    body = {"replica": replicas[0].id, "kind": "drain"}
    made = caller.call("POST", "operator/fleet/moves/", body)
    assert (made.status_code, made.json()["is_gapless"]) == (201, True)
    assert caller.call("POST", "operator/fleet/moves/", body).status_code == 409
    assert Replica.objects.count() == 3


def test_a_zone_is_drained_or_refused_with_the_numbers(caller: Api, replicas: list[Replica]) -> None:
    NodeHeartbeat.objects.filter(name="s1").update(max_replicas=1)
    refused = caller.call("POST", "operator/drains/", {"zone": "north"})
    assert (refused.status_code, code_of(refused)) == (409, "zone_cannot_go")
    assert not ZoneDrain.objects.exists()
    NodeHeartbeat.objects.filter(name="s1").update(max_replicas=4)
    begun = caller.call("POST", "operator/drains/", {"zone": "north"})
    assert (begun.status_code, begun.json()["verdict"], begun.json()["by"]) == (202, "running", "operator:operator")
    assert caller.call("POST", "operator/drains/undo/", {"zone": "north"}).status_code == 200
    (told,) = caller.get("operator/drains/").json()["results"]
    assert told["verdict"] == "cancelled"

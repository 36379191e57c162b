"""A node that falls silent: what it had is placed elsewhere, and never serves again."""

from datetime import timedelta

import pytest

from headway.errors import Conflict
from inference.errors import IllegalTransition, UnknownNode
from inference.models import ControlChange, ModelVersion, NodeHeartbeat, Replica, ReplicaState
from inference.services import lost_nodes
from inference.services.lost_nodes import forget_node, look_for_lost_nodes
from inference.services.moving import replace
from inference.services.node import replicas_of
from inference.services.replicas import advance
from inference.services.wanted import want, wanted_counts
from inference.services.weight_copies import record_use
from inference.weight_models import WeightCopy
from tenants.models import AuditEntry
from tests.inference.services.fleet import (
    beats,
    falls_silent,
    node,
    pool_of,
    serving,
    stable,
    watched_for,
)

pytestmark = pytest.mark.django_db
S = ReplicaState


def on(name: str) -> list[Replica]:
    return list(Replica.objects.filter(node=name).order_by("created_at"))


def test_what_it_had_is_failed_and_placed_on_a_live_node() -> None:
    node("a")
    node("b")
    pool = pool_of()
    serving(pool, 2)
    falls_silent("a")
    watched_for()
    assert look_for_lost_nodes() == ["a"]
    (old,) = on("a")
    assert (old.state, old.is_wanted, old.reason) == (S.FAILED, False, "its node is lost: no heartbeat for 10 s")
    kept, new = on("b")
    assert (kept.state, new.state, new.is_wanted, old.replaced_by) == (S.READY, S.REQUESTED, True, new.id)
    assert wanted_counts(pool, stable(pool)) == (2, 0)
    assert AuditEntry.objects.filter(action="node.lost", target="a").count() == 1


def test_gateways_are_told_at_once() -> None:
    node("a")
    (old,) = serving(pool_of(), 1)
    node("b")
    falls_silent("a")
    watched_for()
    look_for_lost_nodes()
    told = ControlChange.objects.filter(kind="replica", key=old.id).latest("id")
    assert told.payload is not None and told.payload["state"] == S.FAILED


def test_looked_for_again_it_is_lost_once() -> None:
    node("a")
    node("b")
    serving(pool_of(), 2)
    falls_silent("a")
    watched_for()
    assert [look_for_lost_nodes() for _ in range(3)] == [["a"], [], []]
    assert len(on("b")) == 2
    assert AuditEntry.objects.filter(action="node.lost").count() == 1


def test_where_there_is_no_room_it_waits_for_it() -> None:
    node("a")
    node("b", max_replicas=1)
    pool = pool_of()
    serving(pool, 2)
    falls_silent("a")
    watched_for()
    look_for_lost_nodes()
    (old,) = on("a")
    assert (old.state, old.is_wanted, len(on("b"))) == (S.FAILED, True, 1)
    look_for_lost_nodes()
    assert Replica.objects.get(pk=old.id).reason.startswith(
        "its node is lost: no heartbeat for 10 s; not placed again: no node"
    )
    assert Replica.objects.get(pk=old.id).reason.endswith("b: full")
    assert want(pool=pool, version=stable(pool), serving=2).is_empty
    node("c")
    look_for_lost_nodes()
    assert [replica.state for replica in on("c")] == [S.REQUESTED]
    assert not on("a")[0].is_wanted


def test_one_that_fits_nowhere_keeps_no_other_from_its_place() -> None:
    node("a")
    node("b")
    pool, other = pool_of("m"), pool_of("n")
    serving(pool, 2)
    serving(other, 2)
    ModelVersion.objects.filter(model=pool.model).update(engine_environment="vllm-cuda-0.32.0")
    falls_silent("a")
    watched_for()
    look_for_lost_nodes()
    left = {replica.pool_id: (replica.is_wanted, replica.reason) for replica in on("a")}
    assert left[pool.pk][0] and left[pool.pk][1].endswith("b: it has cpu, not cuda")
    assert not left[other.pk][0]


def test_after_an_outage_of_the_database_nobody_is_lost() -> None:
    """Every heartbeat is old then, and whoever beats first must not take the others for dead."""
    node("a")
    node("b")
    serving(pool_of(), 2)
    falls_silent("a", "b")
    watched_for(timedelta(hours=1), until=timedelta(seconds=60))
    beats("b")
    assert look_for_lost_nodes() == []
    assert [replica.state for replica in on("a")] == [S.READY]


def test_nobody_is_lost_before_somebody_has_looked_for_as_long_as_the_limit() -> None:
    node("a")
    node("b")
    serving(pool_of(), 2)
    falls_silent("a")
    assert look_for_lost_nodes() == []
    watched_for(timedelta(seconds=5))
    assert look_for_lost_nodes() == []
    watched_for(timedelta(seconds=11))
    assert look_for_lost_nodes() == ["a"]


def test_while_no_other_node_is_alive_engines_go_on_serving() -> None:
    node("a")
    serving(pool_of(), 1)
    falls_silent("a")
    watched_for()
    assert look_for_lost_nodes() == []
    assert [replica.state for replica in on("a")] == [S.READY]


def test_a_report_that_comes_late_brings_nothing_back() -> None:
    """Its agent had no database for a while, and had started the engine again meanwhile."""
    node("a")
    node("b")
    serving(pool_of(), 2)
    (old,) = on("a")
    falls_silent("a")
    watched_for()
    look_for_lost_nodes()
    for expected, to in ((S.READY, S.FAILED), (S.FAILED, S.REQUESTED), (S.REQUESTED, S.STAGING)):
        with pytest.raises(IllegalTransition):
            advance(replica_id=old.id, expected=expected, to=to)
    advance(replica_id=old.id, expected=S.FAILED, to=S.STOPPED)
    assert replicas_of("a") == []


def test_what_was_let_go_already_is_not_placed_again() -> None:
    node("a")
    node("b")
    pool = pool_of()
    serving(pool, 2)
    Replica.objects.filter(node="a").update(is_wanted=False, state=S.DRAINING)
    falls_silent("a")
    watched_for()
    look_for_lost_nodes()
    assert (on("a")[0].state, len(on("b"))) == (S.FAILED, 1)


def test_a_machine_that_never_comes_back_is_forgotten() -> None:
    node("a")
    node("b")
    serving(pool_of(), 2)
    for name in ("a", "b"):
        record_use(version_id=on(name)[0].version_id or 0, node=name, size_bytes=1, digest="d")
    with pytest.raises(UnknownNode):
        forget_node(node="a", actor="test")
    falls_silent("a")
    watched_for()
    look_for_lost_nodes()
    assert forget_node(node="a", actor="test") == 1
    assert [replica.state for replica in on("a")] == [S.STOPPED]
    assert list(NodeHeartbeat.objects.values_list("name", flat=True)) == ["b"]
    assert list(WeightCopy.objects.values_list("node", flat=True)) == ["b"]


def test_one_that_another_sweep_has_placed_meanwhile_ends_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    node("a")
    node("b")
    pool = pool_of()
    serving(pool, 4)
    falls_silent("a")
    watched_for()
    theirs = list[str]()

    def they_were_quicker(replica: Replica) -> str:
        if not theirs:
            theirs.append(replace(replica))
            raise Conflict("it is on its way out already")
        return replace(replica)

    monkeypatch.setattr(lost_nodes, "replace", they_were_quicker)
    look_for_lost_nodes()
    assert [bool(old.replaced_by) for old in on("a")] == [False, True], "the first was undone with its look"

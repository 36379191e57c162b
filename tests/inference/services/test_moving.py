"""One replica gives its place to another: the new one first."""

import pytest

from headway.errors import Conflict, InvalidInput
from inference.errors import NoNodeHasRoom, UnknownReplica
from inference.models import Replica, ReplicaKind, ReplicaState
from inference.services.fleet_sweep import look_after_fleet
from inference.services.log_tails import ask_for_log, log_of, tell_logs
from inference.services.moving import drain_replica, keep_after_all, restart_replica, settle_moves
from inference.services.nodes import set_cordon
from inference.services.registry import register_replica
from inference.services.wanted import want, wanted_counts
from tests.inference.services.fleet import falls_silent, node, now_serves, pool_of, serving, stable, watched_for

pytestmark = pytest.mark.django_db
S = ReplicaState


def row(replica_id: str) -> Replica:
    return Replica.objects.get(pk=replica_id)


def test_the_old_one_serves_until_the_new_one_does() -> None:
    node("a")
    node("b", is_cordoned=True)
    pool = pool_of()
    (old,) = serving(pool, 1)
    set_cordon(node="b", is_cordoned=False, actor="test")
    new = drain_replica(replica_id=old.id, actor="test")
    assert row(new).node == "b"
    assert settle_moves() == []
    assert row(old.id).is_wanted
    now_serves(new)
    assert settle_moves() == [old.id]
    assert (row(old.id).is_wanted, row(new).is_wanted) == (False, True)


def test_it_does_not_count_as_one_of_those_wanted_meanwhile() -> None:
    """Whoever scales the pool meanwhile must neither let the new one go nor ask for a third."""
    node("a")
    node("b")
    pool = pool_of()
    (old,) = serving(pool, 1)
    drain_replica(replica_id=old.id, actor="test")
    assert wanted_counts(pool, stable(pool)) == (1, 0)
    assert want(pool=pool, version=stable(pool), serving=1).is_empty


def test_scaled_down_meanwhile_the_old_one_goes_too() -> None:
    node("a")
    node("b")
    pool = pool_of()
    (old,) = serving(pool, 1)
    new = drain_replica(replica_id=old.id, actor="test")
    assert want(pool=pool, version=stable(pool), serving=0).removed == [new]
    assert settle_moves() == [old.id]


def test_a_new_one_that_fails_leaves_the_old_one_serving() -> None:
    node("a")
    node("b")
    (old,) = serving(pool_of(), 1)
    new = drain_replica(replica_id=old.id, actor="test")
    Replica.objects.filter(pk=new).update(state=S.FAILED)
    assert settle_moves() == []
    assert row(old.id).state == S.READY


def test_where_no_other_node_has_room_nothing_changes() -> None:
    node("a")
    node("b", max_replicas=1)
    first, _ = serving(pool_of(), 2)
    with pytest.raises(NoNodeHasRoom, match="no node beside a has room"):
        drain_replica(replica_id=first.id, actor="test")
    assert (row(first.id).replaced_by, Replica.objects.count()) == ("", 2)


def test_a_restart_is_gapless_where_there_is_room_for_two() -> None:
    node("a")
    (old,) = serving(pool_of(), 1)
    new, is_gapless = restart_replica(replica_id=old.id, actor="test")
    assert (is_gapless, row(old.id).is_wanted, row(new).node) == (True, True, "a")


def test_a_restart_on_a_full_machine_drains_first() -> None:
    node("a", max_replicas=1)
    (old,) = serving(pool_of(), 1)
    new, is_gapless = restart_replica(replica_id=old.id, actor="test")
    assert (is_gapless, row(old.id).is_wanted, row(new).node) == (False, False, "a")


def test_what_goes_already_is_not_moved_again() -> None:
    node("a")
    node("b")
    (old,) = serving(pool_of(), 1)
    drain_replica(replica_id=old.id, actor="test")
    for move in (drain_replica, restart_replica):
        with pytest.raises(Conflict, match="on its way out"):
            move(replica_id=old.id, actor="test")
    assert Replica.objects.count() == 2


def test_only_managed_ones_that_are_there_can_be_moved() -> None:
    pool_of()
    external = register_replica(public_id="m", url="http://127.0.0.1:1", kind=ReplicaKind.VLLM, actor="test")
    with pytest.raises(InvalidInput, match="no agent"):
        restart_replica(replica_id=external.id, actor="test")
    with pytest.raises(UnknownReplica):
        drain_replica(replica_id="rep-none", actor="test")


def test_a_warm_one_is_replaced_by_a_warm_one() -> None:
    node("a")
    node("b")
    pool = pool_of()
    replicas = serving(pool, 1, warm=1)
    warm = next(replica for replica in replicas if replica.is_standby)
    new = restart_replica(replica_id=warm.id, actor="test")[0]
    assert row(new).is_standby
    now_serves(new)
    assert settle_moves() == [warm.id]


def test_a_log_is_told_by_the_agent_of_its_node_when_it_was_asked_for() -> None:
    node("a")
    (replica,) = serving(pool_of(), 1)
    assert tell_logs(node="a", tail=lambda _id: "x") == 0
    ask_for_log(replica_id=replica.id)
    assert log_of(replica.id).asked_at is not None
    assert tell_logs(node="b", tail=lambda _id: "x") == 0
    assert tell_logs(node="a", tail=lambda replica_id: f"last words of {replica_id}\0") == 1
    told = log_of(replica.id)
    assert (told.text, told.asked_at) == (f"last words of {replica.id}", None)
    assert tell_logs(node="a", tail=lambda _id: "x") == 0


def test_one_whose_successor_is_replaced_itself_waits_for_the_last_of_them() -> None:
    """The zone is emptied, and the node that is to take over is lost before its engine serves."""
    node("a")
    node("b")
    (old,) = serving(pool_of(), 1)
    second = drain_replica(replica_id=old.id, actor="test")
    node("c")
    falls_silent("b")
    watched_for()
    look_after_fleet()
    third = row(second).replaced_by
    assert (row(third).node, row(old.id).is_wanted) == ("c", True)
    now_serves(third)
    assert settle_moves() == [old.id]


def test_a_restart_of_the_one_that_is_to_come_does_not_let_the_old_one_go() -> None:
    node("a")
    node("b")
    pool = pool_of()
    (old,) = serving(pool, 1)
    second = drain_replica(replica_id=old.id, actor="test")
    third, _ = restart_replica(replica_id=second, actor="test")
    assert settle_moves() == [second]
    assert wanted_counts(pool, stable(pool)) == (1, 0)
    now_serves(third)
    assert settle_moves() == [old.id]


def test_one_that_stays_after_all_leaves_nobody_behind_who_was_to_come() -> None:
    node("a")
    node("b")
    pool = pool_of()
    (old,) = serving(pool, 1)
    second = drain_replica(replica_id=old.id, actor="test")
    third, _ = restart_replica(replica_id=second, actor="test")
    keep_after_all(row(old.id))
    assert (row(second).is_wanted, row(third).is_wanted, wanted_counts(pool, stable(pool))) == (False, False, (1, 0))


def test_one_that_was_let_go_by_then_does_not_take_its_successor_along() -> None:
    """The sweep lets the old one go as the new one serves, at the moment in which an operator keeps it."""
    node("a")
    node("b")
    pool = pool_of()
    (old,) = serving(pool, 1)
    as_it_was = row(old.id)
    new = drain_replica(replica_id=old.id, actor="test")
    now_serves(new)
    assert settle_moves() == [old.id]
    keep_after_all(as_it_was)
    assert (row(old.id).is_wanted, row(new).is_wanted, wanted_counts(pool, stable(pool))) == (False, True, (1, 0))

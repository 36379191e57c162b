"""Who changes a pool waits for others who do, and never in a ring with those who publish."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from inference.fleet_models import RollingRestart
from inference.models import NodeHeartbeat, Replica, ReplicaState
from inference.services.holding import hold_pool, hold_replicas
from inference.services.lost_nodes import forget_node, look_for_lost_nodes
from inference.services.moving import restart_replica, settle_moves
from inference.services.registry import publish_model
from inference.services.replicas import advance, publish_replica
from inference.services.restarts import advance_restarts, restart_model
from inference.services.wanted import want
from inference.services.zones import drain_zone
from tests.inference.services.fleet import falls_silent, node, now_serves, pool_of, serving, stable, watched_for

# SQLite has one writer at a time, for the whole of its transaction.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.on_postgresql]
Other = Callable[[Callable[[], object]], Future[object]]
WITHIN_S = 60.0


@pytest.fixture
def other() -> Iterator[Other]:
    """Starts work beside the test, over a connection of its own."""

    def work_and_close(work: Callable[[], object]) -> object:
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as threads:
        yield lambda work: threads.submit(work_and_close, work)


def until_somebody_waits() -> None:
    deadline_s = time.monotonic() + WITHIN_S
    with connection.cursor() as cursor:
        while time.monotonic() < deadline_s:
            cursor.execute("SELECT 1 FROM pg_locks WHERE NOT granted LIMIT 1")
            if cursor.fetchone() is not None:
                return
            time.sleep(0.02)
    raise AssertionError("nobody waits")


def test_an_agent_that_tells_of_a_start_waits_for_who_changes_the_pool_and_not_in_a_ring(other: Other) -> None:
    """Whoever publishes and then lets a replica go, while its agent has moved it and is about to publish that."""
    node("a")
    pool = pool_of()
    (replica_id,) = want(pool=pool, version=stable(pool), serving=1).added
    with transaction.atomic():
        held = hold_pool(pool.pk)
        publish_model(held)
        told = other(lambda: advance(replica_id=replica_id, expected=ReplicaState.REQUESTED, to=ReplicaState.STAGING))
        until_somebody_waits()
        want(pool=held, version=stable(pool), serving=0)
    told.result(timeout=WITHIN_S)
    found = Replica.objects.get()
    assert (found.state, found.is_wanted) == (ReplicaState.STAGING, False)


def test_an_agent_of_another_pool_waits_for_nobody(other: Other) -> None:
    node("a")
    pool, another = pool_of("m"), pool_of("n")
    (replica_id,) = want(pool=another, version=stable(another), serving=1).added
    with transaction.atomic():
        hold_pool(pool.pk)
        told = other(lambda: advance(replica_id=replica_id, expected=ReplicaState.REQUESTED, to=ReplicaState.STAGING))
        told.result(timeout=WITHIN_S)


def test_an_agent_that_comes_back_as_its_node_is_taken_for_lost_is_in_no_ring(other: Other) -> None:
    node("a")
    _, second = serving(pool_of(), 2)
    node("b")
    falls_silent("a")
    watched_for()
    with transaction.atomic():
        hold_replicas(Replica.objects.filter(node="a"))
        lost = other(look_for_lost_nodes)
        until_somebody_waits()
        advance(replica_id=second.id, expected=ReplicaState.READY, to=ReplicaState.DRAINING)
    lost.result(timeout=WITHIN_S)
    assert set(Replica.objects.filter(node="a").values_list("state", flat=True)) == {ReplicaState.FAILED}


def test_who_has_published_waits_for_no_agent_that_is_about_to(other: Other) -> None:
    """A rollout that goes back is told to gateways, and its replicas are drained, while their agent tells of a move."""
    node("a")
    pool = pool_of()
    (replica_id,) = want(pool=pool, version=stable(pool), serving=1).added

    def publishes_and_drains() -> None:
        with transaction.atomic():
            publish_model(hold_pool(pool.pk))
            want(pool=pool, version=stable(pool), serving=0)

    with transaction.atomic():
        Replica.objects.filter(pk=replica_id).update(state=ReplicaState.STAGING)  # as `advance` does, which publishes then
        drained = other(publishes_and_drains)
        until_somebody_waits()
        publish_replica(Replica.objects.select_related("pool__model", "version").get())
    drained.result(timeout=WITHIN_S)
    found = Replica.objects.get()
    assert (found.state, found.is_wanted) == (ReplicaState.STAGING, False)


def test_a_node_is_forgotten_while_an_agents_late_move_is_told(other: Other) -> None:
    """Two replicas: what is said of the first holds the feed, for which the agent of the second waits with its row."""
    node("a")
    node("gone")
    pool = pool_of()
    rows = sorted(want(pool=pool, version=stable(pool), serving=2).added)
    Replica.objects.update(node="gone")
    NodeHeartbeat.objects.filter(pk="gone").update(seen_at=timezone.now() - timedelta(days=1))
    with transaction.atomic():
        Replica.objects.filter(pk=rows[1]).update(state=ReplicaState.STAGING)
        forgotten = other(lambda: forget_node(node="gone", actor="test"))
        until_somebody_waits()
        publish_replica(Replica.objects.select_related("pool__model", "version").get(pk=rows[1]))
    forgotten.result(timeout=WITHIN_S)
    assert not Replica.objects.exclude(state=ReplicaState.STOPPED).exists()


def test_a_zone_of_two_models_is_drained_while_the_second_ones_pool_is_changed(other: Other) -> None:
    node("a", zone="north")
    first, second = pool_of("m"), pool_of("n")
    serving(first, 1)
    serving(second, 1)
    node("b", zone="south")
    with transaction.atomic():
        held = hold_pool(second.pk)
        drained = other(lambda: drain_zone(zone="north", actor="test"))
        until_somebody_waits()
        publish_model(held)
    drained.result(timeout=WITHIN_S)
    assert Replica.objects.exclude(replaced_by="").count() == 2


def test_a_sweep_that_finds_another_at_a_restart_goes_on_its_way(other: Other) -> None:
    """Every agent and beat come by each second: an operator who cancels must not wait in a queue of them."""
    node("a")
    serving(pool_of(), 2)
    begun = restart_model(public_id="m", actor="test")
    with transaction.atomic():
        RollingRestart.objects.select_for_update().get(pk=begun.pk)
        other(advance_restarts).result(timeout=WITHIN_S)
    assert RollingRestart.objects.get().replica == ""
    advance_restarts()
    assert RollingRestart.objects.get().replica


def test_a_sweep_waits_for_nobody_who_holds_a_pool(other: Other) -> None:
    """An agent that waits does not beat."""
    node("a")
    pool = pool_of()
    old, moved = serving(pool, 2)
    restart_model(public_id="m", actor="test")
    new, _ = restart_replica(replica_id=moved.id, actor="test")
    now_serves(new)
    with transaction.atomic():
        hold_pool(pool.pk)
        for sweep in (settle_moves, advance_restarts):
            assert not other(sweep).result(timeout=WITHIN_S)
    assert settle_moves() == [moved.id]
    advance_restarts()
    assert Replica.objects.get(pk=old.id).replaced_by

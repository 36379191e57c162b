"""Who changes a pool waits for others who do, and never in a ring with those who publish."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from inference.models import NodeHeartbeat, Replica, ReplicaState
from inference.services.holding import hold_pool
from inference.services.lost_nodes import forget_node
from inference.services.registry import publish_model
from inference.services.replicas import advance, publish_replica
from inference.services.wanted import want
from inference.services.zones import drain_zone
from tests.inference.services.fleet import node, pool_of, serving, stable

# SQLite has one writer at a time, for the whole of its transaction.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.on_postgresql]
Other = Callable[[Callable[[], object]], Future[None]]
WITHIN_S = 60.0


@pytest.fixture
def other() -> Iterator[Other]:
    """Starts work beside the test, over a connection of its own."""

    def work_and_close(work: Callable[[], object]) -> None:
        try:
            work()
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


def test_an_agent_tells_of_a_start_while_somebody_holds_the_pool(other: Other) -> None:
    node("a")
    pool = pool_of()
    (replica_id,) = want(pool=pool, version=stable(pool), serving=1).added
    with transaction.atomic():
        held = hold_pool(pool.pk)
        told = other(lambda: advance(replica_id=replica_id, expected=ReplicaState.REQUESTED, to=ReplicaState.STAGING))
        until_somebody_waits()
        publish_model(held)
    told.result(timeout=WITHIN_S)
    assert Replica.objects.get().state == ReplicaState.STAGING


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

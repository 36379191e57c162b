"""The feed's promises: ids become visible in their order, and the newest row of each object stays."""

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from inference.gateway.state import Change
from inference.models import ControlChange
from inference.services import control
from tests.inference.gateway.control_rows import state_of


@pytest.mark.django_db(transaction=True)
def test_a_change_becomes_visible_only_after_every_change_with_a_lower_id() -> None:
    """The first transaction has published and not committed when the second publishes and commits."""
    first_published, may_commit, second_started = threading.Event(), threading.Event(), threading.Event()
    ids: dict[str, int] = {}

    def first() -> None:
        with transaction.atomic():
            ids["first"] = control.publish(kind="model", key="first", payload={}).id
            first_published.set()
            assert may_commit.wait(20)
        connection.close()

    def second() -> None:
        assert first_published.wait(20)
        second_started.set()
        ids["second"] = control.publish_now(kind="model", key="second", payload={}).id
        connection.close()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    assert second_started.wait(20)
    threads[1].join(0.5)
    try:
        assert threads[1].is_alive(), "the second overtook the first: a reader would pass the first one's id by"
        assert not ControlChange.objects.exists()
    finally:
        may_commit.set()
        for thread in threads:
            thread.join(20)
    assert ids["first"] < ids["second"]
    assert [row[0] for row in control.rows_after(0, limit=10)] == [ids["first"], ids["second"]]


@pytest.mark.django_db(transaction=True)
def test_a_reader_that_polls_while_many_write_misses_nothing() -> None:
    num_writers, num_each = 4, 25

    def write(writer: int) -> None:
        for number in range(num_each):
            with transaction.atomic():
                control.publish(kind="model", key=f"{writer}-{number}", payload={})
                control.publish(kind="replica", key=f"{writer}-{number}", payload=None)
        connection.close()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(num_writers)]
    for thread in threads:
        thread.start()
    seen: list[int] = []
    while any(thread.is_alive() for thread in threads):
        seen.extend(row[0] for row in control.rows_after(seen[-1] if seen else 0, limit=7))
    while rows := control.rows_after(seen[-1] if seen else 0, limit=7):
        seen.extend(row[0] for row in rows)
    assert seen == sorted(seen)
    assert len(seen) == num_writers * num_each * 2
    assert set(seen) == set(ControlChange.objects.values_list("id", flat=True))


@pytest.mark.django_db
def test_the_newest_row_of_each_object_is_all_a_new_reader_needs() -> None:
    for key, payload in (("a", {"n": 1}), ("b", {"n": 2}), ("a", None), ("b", {"n": 3}), ("a", {"n": 4})):
        control.publish_now(kind="model", key=key, payload=payload)
    control.publish_now(kind="key", key="a", payload=None)
    assert [row[1:] for row in control.newest_rows()] == [
        ("model", "b", {"n": 3}),
        ("model", "a", {"n": 4}),
        ("key", "a", None),
    ]


def publish_aged(key: str, *, days: int, n: int) -> None:
    row = control.publish_now(kind="model", key=key, payload={"n": n})
    ControlChange.objects.filter(pk=row.pk).update(at=timezone.now() - timedelta(days=days))


@pytest.mark.django_db
def test_compaction_deletes_old_rows_that_newer_ones_replace_and_no_others() -> None:
    publish_aged("replaced", days=3, n=1)
    publish_aged("alone", days=3, n=2)
    publish_aged("replaced", days=2, n=3)
    publish_aged("young", days=0, n=4)
    publish_aged("young", days=0, n=5)
    assert control.compact_feed(older_than=timezone.now() - timedelta(days=1)) == 1
    left = ControlChange.objects.order_by("id").values_list("payload__n", flat=True)
    assert list(left) == [2, 3, 4, 5]
    assert control.compact_feed(older_than=timezone.now() - timedelta(days=1)) == 0


@pytest.mark.django_db
def test_a_reader_that_was_away_longer_than_rows_are_kept_arrives_at_the_same_state() -> None:
    def publish_model(key: str, version: str) -> None:
        payload = {"created": 1, "pool": key, "version": version, "max_in_flight": 1, "max_queued": 1}
        row = control.publish_now(kind="model", key=key, payload=payload)
        ControlChange.objects.filter(pk=row.pk).update(at=timezone.now() - timedelta(days=3))

    publish_model("a", "v1")
    publish_model("b", "v1")
    state = state_of(*(Change(*row) for row in control.newest_rows()))
    for version in ("v2", "v3"):
        publish_model("a", version)
    control.compact_feed(older_than=timezone.now() - timedelta(days=1))
    state.apply([Change(*row) for row in control.rows_after(state.applied_change_id, limit=100)])
    assert [(model.public_id, model.version) for model in state.models()] == [("a", "v3"), ("b", "v1")]

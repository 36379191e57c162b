"""What is kept of how pools did, minute by minute."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from inference.models import Pool
from inference.scaling_models import PoolMinute
from inference.services.pool_minutes import MINUTE, Figure, note_minutes, pool_series
from inference.services.registry import register_model
from inference.services.scale_decisions import forget_old_scaling
from tests.inference.services.scaled_pool import SPEC, all_ready, have, pool, scaled_pool, shown_busy

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def one_that_serves() -> None:
    scaled_pool()
    have(1)
    all_ready()


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def series(start: datetime = NOON, *, step: timedelta = MINUTE, num_steps: int = 1) -> list[dict[str, Figure]]:
    return pool_series(pool().id, start=start, step=step, num_steps=num_steps)


def test_looks_of_one_minute_are_one_row_with_their_mean_and_the_most() -> None:
    for seconds, waiting, ttft_s in ((1, 2, 0.5), (11, 8, 0.7), (59, 5, 0.9)):
        assert note_minutes(shown=shown_busy(waiting=waiting, ttft_s=ttft_s), now=at(seconds)) == 1
    assert PoolMinute.objects.get().at == NOON
    (found,) = series()
    assert (found["queued.interactive"], found["ttft_ms.interactive"]) == (Figure(5.0, 8), Figure(700.0, 900.0))
    assert (found["batch_cap"].mean, found["running"].mean, found["jain_index"].mean) == (16, 3, 0.987)
    assert "ttft_ms.batch" not in found and "inter_token_ms" not in found, "what nobody knows is no zero"


def test_minutes_are_joined_to_steps_and_one_that_nobody_saw_is_empty() -> None:
    for minute, waiting in ((0, 1), (1, 3), (4, 7), (5, 100)):
        note_minutes(shown=shown_busy(waiting=waiting), now=at(60 * minute + 30))
    found = series(step=2 * MINUTE, num_steps=3)
    assert [each.get("queued.interactive") for each in found] == [Figure(2.0, 3), None, Figure(53.5, 100)]
    assert [bool(each) for each in series(at(-60), num_steps=3)] == [False, True, True]


def test_without_a_dispatcher_or_without_the_pool_in_its_frame_nothing_is_kept() -> None:
    frames: list[dict[str, Any] | None] = [None, {}, {"pools": {}, "scaling": {}}, {"pools": {"other": {}}, "scaling": {}}]
    for shown in frames:
        assert note_minutes(shown=shown, now=NOON) == 0
    assert not PoolMinute.objects.exists()


def test_a_pool_without_replicas_is_seen_with_what_waits_for_it() -> None:
    """Zero traffic, and zero replicas, are data."""
    frame: dict[str, Any] = shown_busy(waiting=4)
    frame["pools"]["m"] |= {"in_flight": 0, "caps": {}}
    frame["scaling"]["m"]["replicas"] = {}
    note_minutes(shown=frame, now=NOON)
    (found,) = series()
    assert found["queued.interactive"].mean == 4 and "batch_cap" not in found


def test_more_pools_take_no_more_queries_and_do_not_mix() -> None:
    frame = shown_busy()

    def number(seconds: float) -> int:
        with CaptureQueriesContext(connection) as queries:
            note_minutes(shown=frame, now=at(seconds))
        return len(queries)

    number(0)
    before = number(10)
    for name in ("other", "third"):
        register_model(public_id=name, actor="test", version=SPEC)
        frame["pools"][name], frame["scaling"][name] = frame["pools"]["m"] | {"jain_index": 0.5}, frame["scaling"]["m"]
    assert number(20) == before
    assert series()[0]["jain_index"].mean == 0.987
    other = Pool.objects.get(model__public_id="other")
    assert pool_series(other.id, start=NOON, step=MINUTE, num_steps=1)[0]["jain_index"].mean == 0.5


def test_two_days_are_kept() -> None:
    for hours in (0, 1, 49):
        note_minutes(shown=shown_busy(), now=NOON + timedelta(hours=hours))
    assert forget_old_scaling(now=NOON + timedelta(hours=49)) == 1
    assert sorted(PoolMinute.objects.values_list("at", flat=True)) == [NOON + timedelta(hours=1), NOON + timedelta(hours=49)]

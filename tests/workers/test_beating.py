"""Celery's beat of ours: it ticks while it leads, and outlives a database that is away."""

from typing import Any

import pytest
from celery.beat import Scheduler
from django.db import InterfaceError, OperationalError

from headway.celery_app import app
from workers.beating import LOOK_S, LeadingScheduler
from workers.models import BeatLease
from workers.services.beat_lease import Leadership

pytestmark = pytest.mark.django_db


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of Celery's own scheduler."""
    seen: list[int] = []

    def tick(_self: Scheduler, *_args: Any, **_kwargs: Any) -> float:
        seen.append(1)
        return 60.0

    monkeypatch.setattr(Scheduler, "tick", tick)
    return seen


def test_every_task_of_the_schedule_is_there() -> None:
    import workers.tasks  # noqa: F401  as the worker does

    scheduler = LeadingScheduler(app=app)
    assert {entry.task for entry in scheduler.schedule.values()} <= set(app.tasks)
    assert len(scheduler.schedule) >= 5


def test_only_the_leader_ticks(ticks: list[int]) -> None:
    first, second = LeadingScheduler(app=app), LeadingScheduler(app=app)
    assert [first.tick(), second.tick(), second.tick()] == [LOOK_S] * 3
    assert len(ticks) == 1
    assert BeatLease.objects.get().epoch == 1


@pytest.mark.parametrize("error", [OperationalError("away"), InterfaceError("closed")])
def test_with_the_database_away_nobody_ticks_and_nobody_dies(
    ticks: list[int], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    scheduler = LeadingScheduler(app=app)

    def fail(_self: Leadership, *, now_s: float) -> bool:
        raise error

    with monkeypatch.context() as away:
        away.setattr(Leadership, "hold", fail)
        away.setattr("workers.beating.connection.close", lambda: None)
        assert scheduler.tick() == LOOK_S
    assert ticks == []
    scheduler.tick()
    assert len(ticks) == 1

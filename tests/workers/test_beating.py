"""Celery's beat of ours: it ticks while it leads, and outlives a database that is away."""

from typing import Any

import pytest
from celery.beat import Scheduler
from django.conf import settings
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


def test_a_sweep_nobody_took_goes_so_that_workers_that_come_back_are_not_met_by_days_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept_s: dict[str, float] = {}

    def send_task(task: str, *_arguments: Any, **options: Any) -> None:
        kept_s[task] = options["expires"]

    scheduler = LeadingScheduler(app=app, lazy=True)
    scheduler.setup_schedule()
    monkeypatch.setattr(scheduler, "send_task", send_task)
    for entry in scheduler.schedule.values():
        monkeypatch.delitem(app.tasks, entry.task, raising=False)  # told by name, whatever is loaded here
        scheduler.apply_async(entry, advance=False)
    schedule: list[dict[str, Any]] = [*settings.CELERY_BEAT_SCHEDULE.values()]
    every_s = {str(each["task"]): float(each["schedule"]) for each in schedule}
    assert kept_s.keys() == every_s.keys()
    assert all(max(600, every_s[task]) <= kept <= 3600 for task, kept in kept_s.items())
    assert sum(kept / every_s[task] for task, kept in kept_s.items()) < 2500, "all that may wait at once"

"""Time as a thing that can be handed over: services and loops take a `Clock`, tests give a `FakeClock`."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall time, aware, UTC."""

    def monotonic_s(self) -> float:
        """Seconds that never go back; only differences mean something."""


class SystemClock:
    monotonic_s = staticmethod(time.monotonic)

    def now(self) -> datetime:
        return datetime.now(UTC)


class FakeClock:
    """A clock that moves when it is told to."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._monotonic_s = 1000.0

    def now(self) -> datetime:
        return self._now

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def advance(self, duration_s: float) -> None:
        assert duration_s >= 0, "time does not go back"
        self._now += timedelta(seconds=duration_s)
        self._monotonic_s += duration_s

"""When a request's answer was handed on, piece by piece: what TTFT and the time between tokens are made of.

A piece costs a look at the clock and an append. What it says is counted by `settle`: at once for the first, else a few times a
second and at the end.
"""

from collections.abc import Callable
from itertools import pairwise

from headway.clock import Clock
from inference.gateway.attempt_notes import AttemptNotes
from inference.gateway.metrics import Metrics
from inference.gateway.record import Record


class OutputTimes:
    def __init__(self, clock: Clock, record: Record, notes: AttemptNotes, metrics: Metrics) -> None:
        self._now_s, self._record, self._notes, self._metrics = clock.monotonic_s, record, notes, metrics
        self._pending: list[float] = []
        self._append: Callable[[float], None] = self._pending.append
        self.last_s = clock.monotonic_s()
        """Since when nothing was handed on: since the start, if nothing was. As of the latest `settle`."""

    def append_now(self) -> None:
        """Something the model made is handed on."""
        self._append(self._now_s())

    def settle(self) -> None:
        """Count what is not counted yet."""
        times = self._pending
        if not times:
            return
        self._notes.outputs(times[0], times[-1])
        if self._record.ttft_ms is None:
            self._record.ttft_ms = self._record.elapsed_ms(times[0])
            self._metrics.first_output(self._record.ttft_ms / 1000)
            since_s = times
        else:
            since_s = [self.last_s, *times]
        self._metrics.further_outputs([then_s - before_s for before_s, then_s in pairwise(since_s)])
        self.last_s = times[-1]
        times.clear()

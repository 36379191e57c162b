"""Time in the simulator: a heap of things to do. Two runs with the same inputs do the same things in the same order."""

import heapq
from collections.abc import Callable


class Event:
    """Something to do later; `cancel` it and it does not happen."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class EventLoop:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Event]] = []
        self._is_stopped = False
        self._serial = 0  # events of one instant happen in the order they were asked for

    def at(self, when_s: float, action: Callable[[], None]) -> Event:
        """Do `action` at `when_s`, or now where that has passed."""
        event = Event(action)
        self._serial += 1
        heapq.heappush(self._heap, (max(when_s, self.now_s), self._serial, event))
        return event

    def stop(self) -> None:
        """`run` returns after the event in progress."""
        self._is_stopped = True

    def run(self) -> None:
        """Until nothing is left to do."""
        while self._heap and not self._is_stopped:
            when_s, _, event = heapq.heappop(self._heap)
            if event.action is None:
                continue
            assert when_s >= self.now_s
            self.now_s = when_s
            event.action()

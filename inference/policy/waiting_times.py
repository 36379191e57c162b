"""What time alone decides about those who wait in a pool: when they are refused, when they become late."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from inference.policy.entry import Entry, Stage


class WaitingTimes:
    """Two heaps by time, with lazy deletion."""

    def __init__(self) -> None:
        self._expiries: list[tuple[float, int, Entry]] = []
        self._late: list[tuple[float, int, Entry]] = []

    def waits(self, entry: Entry, *, late_at_s: float | None, num_waiting: int) -> None:
        """Until `entry.expires_s`; late from `late_at_s` on."""
        self._expiries = _pushed(self._expiries, (entry.expires_s, entry.number, entry), num_waiting)
        if late_at_s is not None:
            self._late = _pushed(self._late, (late_at_s, entry.number, entry), num_waiting)

    def expired(self, now_s: float) -> Iterator[Entry]:
        while (first := self._first(self._expiries)) is not None and first[0] <= now_s:
            heappop(self._expiries)
            yield first[2]

    def late(self, now_s: float) -> Iterator[Entry]:
        while (first := self._first(self._late)) is not None and first[0] <= now_s:
            heappop(self._late)
            yield first[2]

    def next_s(self) -> float | None:
        firsts = [first[0] for first in (self._first(self._expiries), self._first(self._late)) if first is not None]
        return min(firsts, default=None)

    def _first(self, heap: list[tuple[float, int, Entry]]) -> tuple[float, int, Entry] | None:
        while heap:
            at_s, _, entry = heap[0]
            if entry.stage is Stage.WAITING and (heap is self._late or entry.expires_s == at_s):
                return heap[0]
            heappop(heap)
        return None


def _pushed(
    heap: list[tuple[float, int, Entry]], item: tuple[float, int, Entry], num_waiting: int
) -> list[tuple[float, int, Entry]]:
    """Those that wait no longer are let go when they are the most."""
    if len(heap) > 2 * num_waiting + 64:
        heap = [each for each in heap if each[2].stage is Stage.WAITING]
        heapify(heap)
    heappush(heap, item)
    return heap

"""What time alone decides about those who wait in a pool: when they are refused, when they become late.

A calendar: times are kept by slots of a quarter of a second, and put in order only when their slot has come. So who
leaves is taken out at once, and no call pays for all that have left.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from inference.policy.entry import Entry

SLOT_S = 0.25
LAST_S = 1e12
"""Whatever is later is never."""


class Calendar:
    def __init__(self) -> None:
        self._slots: dict[int, dict[int, tuple[float, Entry]]] = {}
        self._order: list[int] = []  # a heap of slots, with some that are empty by now
        self._open: list[tuple[float, int]] = []  # a heap: the slots that have come, with some that have left
        self._in_open: dict[int, tuple[float, Entry]] = {}
        self._open_until = 0

    def add(self, at_s: float, entry: Entry) -> None:
        slot = _slot_of(at_s)
        if slot < self._open_until:
            self._in_open[entry.number] = (at_s, entry)
            heappush(self._open, (at_s, entry.number))
            return
        items = self._slots.get(slot)
        if items is None:
            items = self._slots[slot] = {}
            heappush(self._order, slot)
        items[entry.number] = (at_s, entry)

    def remove(self, at_s: float, entry: Entry) -> None:
        """One that is not there, or was taken, is no error."""
        slot = _slot_of(at_s)
        items = self._in_open if slot < self._open_until else self._slots.get(slot)
        if items is not None and items.pop(entry.number, None) is not None and not items and items is not self._in_open:
            del self._slots[slot]

    def due(self, now_s: float) -> Iterator[Entry]:
        """Takes those whose time has come, the earliest first."""
        self._open_slots(_slot_of(now_s) + 1)
        while (first_s := self._first_open_s()) is not None and first_s <= now_s:
            yield self._in_open.pop(heappop(self._open)[1])[1]

    def next_s(self) -> float | None:
        """The earliest time."""
        first_s = self._first_open_s()
        while first_s is None and self._order:
            self._open_slots(self._order[0] + 1)
            first_s = self._first_open_s()
        return first_s

    def _open_slots(self, until: int) -> None:
        if until <= self._open_until:
            return
        self._open_until = until
        while self._order and self._order[0] < until:
            items = self._slots.pop(heappop(self._order), {})
            if items:
                self._open += [(at_s, number) for number, (at_s, _) in items.items()]
                self._in_open |= items
                heapify(self._open)

    def _first_open_s(self) -> float | None:
        while self._open:
            at_s, number = self._open[0]
            if number in self._in_open and self._in_open[number][0] == at_s:
                return at_s
            heappop(self._open)
        return None


class WaitingTimes:
    def __init__(self) -> None:
        self._expiries = Calendar()
        self._late = Calendar()

    def waits(self, entry: Entry) -> None:
        """Until `entry.expires_s`; late from `entry.late_at_s` on."""
        self._expiries.add(entry.expires_s, entry)
        if entry.late_at_s is not None:
            self._late.add(entry.late_at_s, entry)

    def leaves(self, entry: Entry) -> None:
        """It waits no longer. One that does not is no error."""
        self._expiries.remove(entry.expires_s, entry)
        if entry.late_at_s is not None:
            self._late.remove(entry.late_at_s, entry)

    def expired(self, now_s: float) -> Iterator[Entry]:
        return self._expiries.due(now_s)

    def late(self, now_s: float) -> Iterator[Entry]:
        return self._late.due(now_s)

    def next_s(self) -> float | None:
        expiry_s, late_s = self._expiries.next_s(), self._late.next_s()
        if expiry_s is None or late_s is None:
            return late_s if expiry_s is None else expiry_s
        return min(expiry_s, late_s)


def _slot_of(at_s: float) -> int:
    return int(at_s / SLOT_S) if at_s < LAST_S else int(LAST_S / SLOT_S)

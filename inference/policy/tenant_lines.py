"""Who waits, tenant by tenant: an account (what a tenant was served in a tier) and its lines of waiting requests.

Everything is a heap with lazy deletion: what has left stays in it until it comes to the top.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from inference.policy.decisions import Tier
from inference.policy.entry import Entry, LineClass

Item = tuple[float, int, int, Entry]
"""Arrival, number, ticket. No two of a heap are the same in these, so that entries are never compared."""


@dataclass(slots=True, eq=False)
class Account:
    """A tenant in one tier of one pool. `counter`: virtual tokens charged, divided by the plan's weight (VTC)."""

    tenant: str
    tier: Tier
    weight: float
    mean_completion_tokens: float
    counter: float = 0.0
    ahead: float = 0.0
    """Of the counter, what its requests that run are expected to make yet."""
    waiting: int = 0
    waiting_tokens: int = 0
    lines: list["TenantLine"] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class KeyLine:
    """One key's waiting requests of one class and tier, by arrival."""

    key: str
    is_blocked: bool = False
    size: int = 0
    heap: list[Item] = field(default_factory=list)

    def first(self, line: "TenantLine") -> Item | None:
        heap = self.heap
        while heap:
            if heap[0][3].line is line and heap[0][3].ticket == heap[0][2]:
                return heap[0]
            heappop(heap)
        return None

    def compact(self, line: "TenantLine") -> None:
        """Those who left from the middle are let go when they are the most: their asks would be kept in memory."""
        if len(self.heap) > 2 * self.size + 16:
            self.heap = [item for item in self.heap if item[3].line is line and item[3].ticket == item[2]]
            heapify(self.heap)


@dataclass(slots=True, eq=False)
class TenantLine:
    """A tenant's waiting requests of one class and tier: the first of all its keys that are not blocked is next."""

    account: Account
    line_class: LineClass
    number: int
    size: int = 0
    heap_counter: float | None = None
    """The account's counter under which the line is in its tier's heap; None: it is not in it."""
    keys: dict[str, KeyLine] = field(default_factory=dict)
    heads: list[tuple[float, int, KeyLine]] = field(default_factory=list)
    """For every key that is not blocked and has someone waiting, at least once, and never later than its first."""

    def add(self, entry: Entry, *, is_key_blocked: bool) -> None:
        entry.line = self
        entry.ticket += 1
        self.size += 1
        key_line = self.keys.get(entry.ask.key)
        if key_line is None:
            key_line = self.keys[entry.ask.key] = KeyLine(entry.ask.key, is_key_blocked)
        first = key_line.first(self)
        item = (entry.arrival_s, entry.number, entry.ticket, entry)
        heappush(key_line.heap, item)
        key_line.size += 1
        if not key_line.is_blocked and (first is None or item[:2] < first[:2]):
            heappush(self.heads, (entry.arrival_s, entry.number, key_line))

    def remove(self, entry: Entry) -> None:
        entry.line = None
        self.size -= 1
        key_line = self.keys[entry.ask.key]
        key_line.size -= 1
        if key_line.size == 0:
            del self.keys[entry.ask.key]
            key_line.heap.clear()
        else:
            key_line.compact(self)

    def head(self) -> Entry | None:
        """The next that is not blocked by its key."""
        heads = self.heads
        while heads:
            arrival_s, number, key_line = heads[0]
            first = None if key_line.is_blocked else key_line.first(self)
            if first is None:
                heappop(heads)
            elif first[1] != number or first[0] != arrival_s:
                heapreplace(heads, (first[0], first[1], key_line))
            else:
                return first[3]
        return None

    def block_key(self, key: str) -> None:
        if key in self.keys:
            self.keys[key].is_blocked = True

    def wake_key(self, key: str) -> None:
        key_line = self.keys.get(key)
        if key_line is not None and key_line.is_blocked:
            key_line.is_blocked = False
            first = key_line.first(self)
            if first is not None:
                heappush(self.heads, (first[0], first[1], key_line))

    def in_order(self) -> list[Entry]:
        """All that wait, blocked or not, by arrival. O(n log n)."""
        items = [item for key_line in self.keys.values() for item in key_line.heap]
        return [entry for _, _, ticket, entry in sorted(items) if entry.line is self and entry.ticket == ticket]

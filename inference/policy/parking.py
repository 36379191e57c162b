"""Which batch request gives its slot to a more urgent one that would miss its target: an engine never preempts for a slot.

Only batch requests that can go on at the exact token are parked, each a bounded number of times and not before it has
run for a while, so that nobody goes to and fro; the one with the fewest tokens to read again is chosen. The slot goes
to the request it was made free for, if that still waits.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

from inference.policy.brain_tunables import ParkingTunables
from inference.policy.decisions import Tier
from inference.policy.entry import Entry, Stage

SCAN = 8
"""How many candidates are looked at for one asker."""
RETRY_S = 0.25
"""After no victim was found, when it is looked again."""


class Parking:
    def __init__(self, tunables: ParkingTunables) -> None:
        self.num_parked = 0
        """Since the start."""
        self._tunables = tunables
        self._candidates: list[tuple[int, int, Entry]] = []  # by tokens to read again, which only grow while it runs
        self._num_running = 0
        self._late = {tier: OrderedDict[int, Entry]() for tier in (Tier.INTERACTIVE, Tier.STANDARD)}
        self._retry_s = float("-inf")

    # Candidates

    def began(self, entry: Entry) -> None:
        if self._can_park(entry):
            self._num_running += 1
            heappush(self._candidates, (_tokens_lost(entry), entry.number, entry))
            if len(self._candidates) > 2 * self._num_running + 64:
                self._candidates = [item for item in self._candidates if item[2].stage is Stage.RUNNING]
                heapify(self._candidates)

    def ended(self, entry: Entry) -> None:
        """It runs no longer, for whatever reason."""
        if self._can_park(entry):
            self._num_running -= 1

    def parked(self, entry: Entry) -> None:
        """After `ended`."""
        self.num_parked += 1
        entry.num_parks += 1

    def _can_park(self, entry: Entry) -> bool:
        return entry.tier is Tier.BATCH and entry.ask.can_park and entry.num_parks < self._tunables.max_parks

    # Askers

    def is_late(self, entry: Entry) -> None:
        """It waits and would miss its target."""
        self._late[entry.tier][entry.number] = entry

    def waits_no_longer(self, entry: Entry) -> None:
        """One that was not late is no error."""
        if entry.tier is not Tier.BATCH:
            self._late[entry.tier].pop(entry.number, None)

    def late(self) -> list[Entry]:
        """The first of each tier."""
        return [next(iter(late.values())) for late in self._late.values() if late]

    def has_candidates(self) -> bool:
        return self._num_running > 0

    def is_due(self, now_s: float) -> bool:
        """Whether `choose` may find somebody."""
        return self._num_running > 0 and now_s >= self._retry_s and any(self._late.values())

    def next_check_s(self) -> float | None:
        return self._retry_s if self._num_running and any(self._late.values()) else None

    def choose(
        self, *, could_use: Callable[[Entry], bool], is_useful: Callable[[str], bool], now_s: float
    ) -> list[tuple[Entry, Entry]]:
        """Pairs of whom to park and for whom.

        `could_use`: nothing but a replica's slot keeps this asker waiting; `is_useful`: one request less on this replica
        makes room there.
        """
        pairs: list[tuple[Entry, Entry]] = []
        for late in self._late.values():
            while late:
                number, asker = next(iter(late.items()))
                victim = self._victim(asker, is_useful, now_s) if could_use(asker) else None
                if victim is None:
                    self._retry_s = now_s + RETRY_S
                    late.move_to_end(number)  # another may be able to use what this one cannot
                    break
                del late[number]
                victim.park_for, asker.parks = asker, victim
                pairs.append((victim, asker))
        return pairs

    def _victim(self, asker: Entry, is_useful: Callable[[str], bool], now_s: float) -> Entry | None:
        """The one that loses least, of the first few. O(log running)."""
        candidates = self._candidates
        passed: list[tuple[int, int, Entry]] = []
        found: Entry | None = None
        while candidates and len(passed) < SCAN and found is None:
            tokens, number, entry = candidates[0]
            lost = _tokens_lost(entry)
            if entry.stage is not Stage.RUNNING or entry.park_for is not None or not self._can_park(entry):
                heappop(candidates)
            elif lost != tokens:
                heapreplace(candidates, (lost, number, entry))
            elif (
                now_s - entry.granted_s < self._tunables.min_running_s
                or entry.replica in asker.ask.excluded
                or not is_useful(entry.replica)
            ):
                passed.append(heappop(candidates))
            else:
                found = entry
                heappop(candidates)
        for item in passed:
            heappush(candidates, item)
        return found

    def check_invariants(self, running: list[Entry]) -> None:
        can_park = [entry for entry in running if self._can_park(entry)]
        assert self._num_running == len(can_park)
        known = {item[2].id for item in self._candidates}
        assert all(entry.park_for is not None or entry.id in known for entry in can_park), "each may be chosen"


def _tokens_lost(entry: Entry) -> int:
    """What is read again when it goes on; the prefix cache may make it less."""
    return entry.ask.work_tokens + entry.completion_tokens

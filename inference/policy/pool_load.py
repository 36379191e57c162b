"""What runs in a pool: on which replica, under which cap, which of it may be parked, how many long prompts are read."""

from collections.abc import Callable, Iterable, Iterator

from inference.policy.batch_cap import PoolCaps
from inference.policy.brain_tunables import BrainTunables
from inference.policy.decisions import Park, ReplicaSpec
from inference.policy.entry import Entry, Stage
from inference.policy.parking import Parking


class PoolLoad:
    def __init__(self, tunables: BrainTunables) -> None:
        self.caps = PoolCaps(tunables.batch_cap)
        self.parking = Parking(tunables.parking)
        self.in_flight = 0
        self.num_usable = 0
        """Replicas that may get something new."""
        self.long_prefills = 0
        self._max_long_prefills_per_replica = tunables.max_long_prefills_per_replica

    def set_replicas(self, specs: Iterable[ReplicaSpec]) -> Iterator[tuple[str, int]]:
        """Yields the cap of each."""
        yield from self.caps.set_replicas(specs)
        self.num_usable = self.caps.num_usable()

    def may_read_long(self) -> bool:
        return self.long_prefills < self._max_long_prefills_per_replica * self.num_usable

    def begin(self, entry: Entry, replica: str, now_s: float) -> None:
        """`replica` empty: nobody knows it (restored)."""
        entry.stage, entry.replica, entry.granted_s = Stage.RUNNING, replica, now_s
        entry.num_grants += 1
        entry.is_parked, entry.parks = False, None  # who is being parked for it makes room for another
        self.in_flight += 1
        if replica:
            self.caps.began(replica, entry.tier)
            self.parking.began(entry)
        if entry.line_class[1]:
            entry.is_reading_long = True
            self.long_prefills += 1

    def end(self, entry: Entry) -> None:
        self.in_flight -= 1
        self.has_read(entry)
        if entry.replica:
            self.caps.ended(entry.replica, entry.tier)
            self.parking.ended(entry)
        entry.stage, entry.replica = Stage.AWAY, ""

    def has_read(self, entry: Entry) -> bool:
        """Its first token came. Whether that lets another long prompt in."""
        was_reading, entry.is_reading_long = entry.is_reading_long, False
        self.long_prefills -= was_reading
        return was_reading

    def park_for_late(self, could_use: Callable[[Entry], bool], now_s: float) -> list[Park]:
        if not self.parking.is_due(now_s):
            return []
        pairs = self.parking.choose(could_use=could_use, is_useful=self.caps.would_make_room, now_s=now_s)
        return [Park(id=victim.id, replica=victim.replica, for_id=asker.id) for victim, asker in pairs]

    def check_invariants(self, running: list[Entry]) -> None:
        self.parking.check_invariants([entry for entry in running if entry.replica])
        assert self.in_flight == len(running), "a slot leaked"
        assert self.long_prefills == sum(entry.is_reading_long for entry in running)
        for replica, num in self.caps.in_flight().items():
            assert num == sum(1 for entry in running if entry.replica == replica)

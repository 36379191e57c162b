"""The replicas of one pool: their slots, what they have to do, and who has least of it.

A replica's prefill queue is the uncached prompt tokens of requests granted to it whose first token has not been seen,
less what it must have worked off since. Replicas with room stand in buckets by load (on a log scale), so that the few
least loaded are found, and a change of load is entered, at a cost that does not grow with the fleet. Equals take turns.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import log2

from inference.policy.decisions import ReplicaSpec, StateFrame
from inference.policy.pace import FadingRatio, FadingSum

_LEVELS = 32
_FULL = -1


def level_of(load_s: float) -> int:
    """Two buckets to a doubling from 4 ms up; the last one from 3 minutes."""
    level = int(2.0 * log2(1.0 + load_s * 250.0))
    return level if level < _LEVELS else _LEVELS - 1


@dataclass(slots=True)
class Running:
    """A request on a replica."""

    id: str
    replica: "Replica"
    begun_s: float
    event: int
    """Number of its beginning, against the replica's `judged_from`."""
    incarnation: int
    prompt: tuple[int, ...]
    """Its marks, see `prefix`."""
    taken: int
    """By its replica's clock, see `prefix`."""
    predicted_blocks: int
    tells_cached: bool
    """The engine's count of cached tokens will be about this attempt."""
    prompt_tokens: int
    has_first_token: bool = False
    completion_tokens: int = 0
    counted_tokens: int = 0
    """Completion tokens at `reported_s`; the pace is measured from there."""
    reported_s: float = 0.0


@dataclass(slots=True, eq=False)
class Replica:
    id: str
    spec: ReplicaSpec
    speed: FadingRatio
    """Of prefilling: seconds that were expected at its nominal rate, by those it took."""
    inter_token: FadingRatio
    """Seconds by tokens, while no prompt was read there."""
    work: FadingSum
    """Prompt tokens it was given to prefill of late."""
    is_ready: bool = True
    incarnation: int = 0
    """Changes with epoch and address: what began under another one says nothing about this one."""
    batch_cap: int | None = None
    cap: int = 0
    """The lower of that and its own."""
    running: dict[str, Running] = field(default_factory=dict)
    s_per_token: float = 0.0
    """Of prefill: the owner's estimate, kept here for the moment of choosing."""
    speed_edition: int = -1
    """Which news of its pool's speed is in it."""
    slot_s: float = 0.0
    """What every request in flight adds to its score; likewise."""
    work_s: float = 0.0
    """What its recent work adds; likewise."""
    is_odd: bool = False
    """There is something to say against it besides its load: the owner looks closer."""
    pending: dict[str, int] = field(default_factory=dict)
    """Prompt tokens to prefill by request, in the order of granting; until the first token."""
    pending_tokens: int = 0
    prefilled_tokens: float = 0.0
    """Of the pending ones, by time alone."""
    advanced_s: float = 0.0
    last_read_s: float = float("-inf")
    """When a prompt was last done with: its first token came, or it left before that."""
    paced_s: float = float("-inf")
    """When `inter_token` was last measured."""
    busy_since_s: float = 0.0
    """Since when what is pending has been worked on without a first token."""
    completion_tokens: int = 0
    prompt_tokens: int = 0
    """Of the running requests."""
    frame: StateFrame = field(default_factory=StateFrame)
    frame_s: float = float("-inf")
    num_foreign: int = 0
    """Requests that wait in the engine and are not ours, as of the frame."""
    # Where it stands in the fleet's indexes.
    groups: tuple["Group", ...] = ()
    well_groups: tuple["Group", ...] = ()
    """Where it stands while it is well."""
    zone: "Group | None" = None
    """None: there are no zones to speak of."""
    level: int = _FULL
    counted_cap: int = 0
    counted_in_flight: int = 0

    @property
    def in_flight(self) -> int:
        return len(self.running)

    @property
    def is_usable(self) -> bool:
        """Ready, and may get something new."""
        return self.is_ready and not self.spec.is_draining

    def fit_cap(self) -> None:
        """After a change of either bound."""
        own = self.spec.max_in_flight
        self.cap = own if self.batch_cap is None else min(self.batch_cap, own)

    def has_room(self) -> bool:
        return len(self.running) < self.cap

    def queued_s(self, report_delay_s: float, now_s: float) -> float:
        """How long what is pending will take to prefill.

        Time alone can only have worked off the first request in the queue and what one report may be late for:
        a replica that is stuck does not look free.
        """
        if not self.pending:
            return 0.0
        done_s = self.prefilled_tokens * self.s_per_token + now_s - self.advanced_s
        most_s = next(iter(self.pending.values())) * self.s_per_token + report_delay_s
        left_s = self.pending_tokens * self.s_per_token - (done_s if done_s < most_s else most_s)
        return left_s if left_s > 0.0 else 0.0

    def add_pending(self, request: str, tokens: int, now_s: float) -> None:
        if self.pending:
            self.prefilled_tokens += (now_s - self.advanced_s) / self.s_per_token
        else:
            self.prefilled_tokens, self.busy_since_s = 0.0, now_s
        self.advanced_s = now_s
        self.pending[request] = tokens
        self.pending_tokens += tokens

    def drop_pending(self, request: str, now_s: float) -> tuple[int, float]:
        """The first token has come, or it has ended: its tokens, and the seconds of work since the last such time."""
        tokens = self.pending.pop(request, None)
        if tokens is None:
            return 0, 0.0
        self.pending_tokens -= tokens
        done = self.prefilled_tokens + (now_s - self.advanced_s) / self.s_per_token - tokens
        self.prefilled_tokens = max(0.0, min(done, self.pending_tokens))
        self.advanced_s = self.last_read_s = now_s
        busy_s, self.busy_since_s = now_s - self.busy_since_s, now_s
        return tokens, busy_s


class Group:
    """Replicas that are equals in one respect (well, of a zone; ejected), by load."""

    __slots__ = ("_buckets", "_filled", "capacity", "in_flight", "num_members", "num_with_room")

    def __init__(self) -> None:
        self._buckets: list[dict[Replica, None]] = [{} for _ in range(_LEVELS)]
        self._filled = 0  # bit n: bucket n is not empty
        self.num_members = self.num_with_room = self.in_flight = self.capacity = 0

    def take(self, replica: Replica) -> None:
        self.num_members += 1
        self.in_flight += replica.counted_in_flight
        self.capacity += replica.counted_cap
        if replica.level != _FULL:
            self.num_with_room += 1
            self._buckets[replica.level][replica] = None
            self._filled |= 1 << replica.level

    def drop(self, replica: Replica) -> None:
        self.num_members -= 1
        self.in_flight -= replica.counted_in_flight
        self.capacity -= replica.counted_cap
        if replica.level != _FULL:
            self.num_with_room -= 1
            bucket = self._buckets[replica.level]
            del bucket[replica]
            if not bucket:
                self._filled ^= 1 << replica.level

    def moves(self, replica: Replica, level: int) -> None:
        """A member has another load, or has got a request: among equals it is the last now."""
        before = replica.level
        if before != _FULL:
            bucket = self._buckets[before]
            del bucket[replica]
            if not bucket:
                self._filled ^= 1 << before
        else:
            self.num_with_room += 1
        if level != _FULL:
            self._buckets[level][replica] = None
            self._filled |= 1 << level
        else:
            self.num_with_room -= 1

    def least_loaded(self, limit: int) -> list[Replica]:
        """At most so many, with room; those that have stood in a bucket longest come first."""
        found: list[Replica] = []
        filled = self._filled
        while filled and len(found) < limit:
            lowest = filled & -filled
            found.extend(islice(self._buckets[lowest.bit_length() - 1], limit - len(found)))
            filled ^= lowest
        return found

    def members_with_room(self) -> Iterator[Replica]:
        for bucket in self._buckets:
            yield from bucket


class Fleet:
    """The replicas, and the groups they stand in: all that are well, those of a zone that are well, the ejected."""

    def __init__(self, *, fade_s: float, pace_fade_s: float) -> None:
        self._fade_s = fade_s
        self._pace_fade_s = pace_fade_s
        self.replicas: dict[str, Replica] = {}
        """With those that have gone and on which something runs still."""
        self.running: dict[str, Running] = {}
        self.well = Group()
        self.ejected = Group()
        self.zones: dict[str, Group] = {}
        self.usable: set[str] = set()
        self.ejected_groups = (self.ejected,)

    def update(self, spec: ReplicaSpec) -> bool:
        """A replica as it is now; True: another engine than before. What runs, runs on. Then `regroup` and `place`."""
        replica = self.replicas.get(spec.id)
        if replica is None:
            replica = self.replicas[spec.id] = self._new(spec)
            replica.fit_cap()
            return True
        was = replica.spec
        is_another = not replica.is_ready or was.epoch != spec.epoch or was.address != spec.address
        if is_another:
            fresh = self._new(spec)
            replica.speed, replica.inter_token, replica.work = fresh.speed, fresh.inter_token, fresh.work
            replica.frame, replica.frame_s, replica.num_foreign = fresh.frame, fresh.frame_s, 0
            replica.incarnation += 1
        replica.spec, replica.is_ready = spec, True
        replica.fit_cap()
        return is_another

    def missing(self, wanted: Iterable[str]) -> list[Replica]:
        """The ready ones that are not among these."""
        names = set(wanted)
        return [replica for replica in self.replicas.values() if replica.is_ready and replica.id not in names]

    def place(self, replica: Replica, *, load_s: float, is_ejected: bool) -> None:
        """Enter what has changed into the indexes: the only way in, out and about. Costs the same for any fleet."""
        cap, in_flight, was = replica.cap, len(replica.running), replica.counted_in_flight
        level = level_of(load_s) if in_flight < cap else _FULL
        groups = replica.well_groups
        if is_ejected or not replica.is_ready or replica.spec.is_draining:
            groups = self.ejected_groups if is_ejected and replica.is_usable else ()
        if groups is replica.groups and cap == replica.counted_cap:
            takes_turn = level != replica.level or in_flight > was
            for group in groups:
                group.in_flight += in_flight - was
                if takes_turn:
                    group.moves(replica, level)
            replica.level, replica.counted_in_flight = level, in_flight
            return
        for group in replica.groups:
            group.drop(replica)
        replica.groups, replica.level = groups, level
        replica.counted_cap, replica.counted_in_flight = cap, in_flight
        for group in groups:
            group.take(replica)

    def regroup(self) -> None:
        """After `update`s: zones are groups of their own only when there are several. Then `place` all."""
        names = {replica.spec.zone for replica in self.replicas.values() if replica.is_usable}
        self.usable = {replica.id for replica in self.replicas.values() if replica.is_usable}
        if len(names) < 2:
            names = set()
        self.zones = {name: self.zones.get(name) or Group() for name in names}
        for replica in self.replicas.values():
            zone = self.zones.get(replica.spec.zone)
            if zone is not replica.zone or not replica.well_groups:
                replica.zone = zone
                replica.well_groups = (self.well, zone) if zone else (self.well,)

    def start(self, running: Running) -> None:
        assert running.id not in self.running, "a request runs once"
        self.running[running.id] = running
        replica = running.replica
        replica.running[running.id] = running
        replica.prompt_tokens += running.prompt_tokens

    def stop(self, running: Running) -> None:
        """Then `place` its replica."""
        replica = running.replica
        del self.running[running.id], replica.running[running.id]
        replica.prompt_tokens -= running.prompt_tokens
        replica.completion_tokens -= running.completion_tokens

    def _new(self, spec: ReplicaSpec) -> Replica:
        return Replica(
            id=spec.id,
            spec=spec,
            speed=FadingRatio(self._fade_s),
            inter_token=FadingRatio(self._pace_fade_s),
            work=FadingSum(self._fade_s),
        )

    def check_invariants(self) -> None:
        for replica in self.replicas.values():
            mine = {name for name, running in self.running.items() if running.replica is replica}
            assert mine == set(replica.running), "a slot leaked"
            assert replica.is_ready or mine, "a replica that has gone is forgotten with its last request"
            assert replica.pending.keys() <= replica.running.keys()
            assert replica.pending_tokens == sum(replica.pending.values())
            assert replica.prompt_tokens == sum(running.prompt_tokens for running in replica.running.values())
            assert replica.completion_tokens == sum(running.completion_tokens for running in replica.running.values())
            assert bool(replica.groups) == replica.is_usable == (replica.id in self.usable)
        assert all(self.replicas.get(running.replica.id) is running.replica for running in self.running.values())
        for group in (self.well, self.ejected, *self.zones.values()):
            members = [replica for replica in self.replicas.values() if group in replica.groups]
            with_room = {replica for replica in members if replica.has_room()}
            assert with_room == set(group.members_with_room()) == set(group.least_loaded(len(self.replicas)))
            assert group.num_members == len(members) and group.num_with_room == len(with_room)
            assert group.in_flight == sum(replica.in_flight for replica in members)
            assert group.capacity == sum(replica.cap for replica in members)

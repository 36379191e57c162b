"""The queue in front of one model's replicas: who is let through, to which replica, who waits, who is sent away.

First come, first served, with a cap on the requests at once on each replica and a bound on the queue. An asker may
exclude replicas (it tried them). A replica that failed is left alone for a while (its cool-down), unless nothing else
is left. Tiers are carried along and not obeyed yet.

Times are seconds of any one clock that does not go back. Every call that changes something returns what it decided,
about the asker and about those that were waiting; `Wait` is not final, `Admit` and `Refuse` are.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class AdmissionTunables:
    queue_timeout_s: float = 30.0
    """How long a request may wait for a replica to become free."""
    replica_hold_s: float = 2.0
    """How long requests wait for a replica to come back after the last one has gone."""
    cool_down_s: float = 2.0
    """How long a replica is left alone after a failure; doubles with each further one."""
    max_cool_down_s: float = 30.0
    """The most it doubles to."""
    no_replica_retry_after_s: float = 5.0
    """What a client is told when no replica serves."""
    max_retry_after_s: float = 30.0
    """The most a client is told to wait."""


class Reason(StrEnum):
    FREE_SLOT = "free_slot"
    LAST_RESORT = "last_resort"  # every replica he may use is cooling down
    ALL_BUSY = "all_busy"
    NO_REPLICA = "no_replica"
    ALL_TRIED = "all_tried"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"


@dataclass(frozen=True, slots=True)
class Ticket:
    """One asker. `number` is given by the caller, never twice."""

    number: int
    tier: str = "standard"
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A replica that is ready. A higher `epoch` is a new engine: what its forerunner did is forgotten."""

    id: str
    max_in_flight: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Admit:
    ticket: int
    replica: str
    reason: Reason
    waited_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    ticket: int
    reason: Reason
    position: int  # 1: the next


@dataclass(frozen=True, slots=True)
class Refuse:
    ticket: int
    reason: Reason
    retry_after_s: float


Decision = Admit | Wait | Refuse


@dataclass(slots=True)
class _Replica:
    id: str
    max_in_flight: int
    epoch: int
    is_ready: bool = True
    in_flight: int = 0
    last_chosen: int = 0
    failures: int = 0
    # On the counter of events, as last_chosen is: requests admitted before it say nothing about the replica as it is now.
    judged_from: int = 0
    cools_until_s: float = float("-inf")

    def has_room(self) -> bool:
        return self.is_ready and self.in_flight < self.max_in_flight

    def rank(self) -> tuple[float, int]:
        """Least loaded first; equals take turns."""
        return self.in_flight / self.max_in_flight, self.last_chosen

    def forget_failures(self) -> None:
        self.failures, self.cools_until_s = 0, float("-inf")


@dataclass(frozen=True, slots=True)
class _Waiter:
    ticket: Ticket
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class _Running:
    replica: _Replica
    since_s: float
    admitted_at: int


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    in_flight: int
    queued: int
    capacity: int
    in_flight_by_replica: dict[str, int] = field(default_factory=dict)
    cooling_down: frozenset[str] = frozenset()


class Admission:
    def __init__(self, tunables: AdmissionTunables, *, max_queued: int) -> None:
        self.max_queued = max_queued
        self._tunables = tunables
        self._replicas: dict[str, _Replica] = {}
        self._waiting: dict[int, _Waiter] = {}  # in the order of coming
        self._running: dict[int, _Running] = {}
        self._events = 0
        self._hold_until_s = float("-inf")  # while no replica is ready
        self._mean_running_s = 1.0

    # What the owner calls

    def submit(self, ticket: Ticket, now_s: float) -> list[Decision]:
        """Decide about a new asker: the last decision is about it, those before about others whom time has helped."""
        assert ticket.number not in self._waiting and ticket.number not in self._running, "a ticket is used once"
        decisions = self.expire(now_s)
        decisions.append(self._admit(ticket, now_s, since_s=now_s) or self._wait_or_refuse(ticket, now_s))
        return decisions

    def release(self, number: int, now_s: float) -> list[Decision]:
        """A running request has ended, well as far as its replica goes. One that is not running is no error."""
        running = self._running.get(number)
        if running is None:
            return []
        if running.admitted_at > running.replica.judged_from:
            running.replica.forget_failures()
        self._mean_running_s += 0.1 * (now_s - running.since_s - self._mean_running_s)
        self._end(number)
        return self._promote(now_s)

    def fail(self, number: int, now_s: float) -> list[Decision]:
        """A running request has ended because its replica failed: leave the replica alone for a while."""
        running = self._running.get(number)
        if running is None:
            return []
        replica = running.replica
        # What was running when it failed before is the same failure, seen by another request: no doubling.
        if running.admitted_at > replica.judged_from:
            replica.failures += 1
            doubled_s = self._tunables.cool_down_s * 2.0 ** min(replica.failures - 1, 30)
            replica.cools_until_s = now_s + min(doubled_s, self._tunables.max_cool_down_s)
            replica.judged_from = self._next_event()
        self._end(number)
        return self._promote(now_s)

    def cancel(self, number: int, now_s: float) -> list[Decision]:
        """The asker has gone, waiting or running; it says nothing about the replica. An unknown one is no error."""
        if self._waiting.pop(number, None) is not None or number not in self._running:
            return []
        self._end(number)
        return self._promote(now_s)

    def set_replicas(self, specs: Iterable[ReplicaSpec], now_s: float) -> list[Decision]:
        """These, and no others, are ready now. What runs on one that has gone runs on; it gets nothing new."""
        had_any = self._has_ready()
        wanted = {spec.id: spec for spec in specs}
        for replica in list(self._replicas.values()):
            if replica.id not in wanted:
                replica.is_ready = False
                self._drop_if_gone(replica)
        for spec in wanted.values():
            self._update(spec)
        if had_any and not wanted:
            self._hold_until_s = now_s + self._tunables.replica_hold_s
        return self._refuse_all_tried() + self.expire(now_s)

    def expire(self, now_s: float) -> list[Decision]:
        """What time alone decides: waiters whose time is up, cool-downs that have ended. Call it at `next_event_s`."""
        return self._refuse_expired(now_s) + self._promote(now_s)

    def next_event_s(self, now_s: float) -> float | None:
        """When time alone may decide something; None: never, as things stand."""
        if not self._waiting:
            return None
        times = [next(iter(self._waiting.values())).until_s]
        if not self._has_ready():
            times.append(self._hold_until_s)
        times.extend(r.cools_until_s for r in self._replicas.values() if r.has_room() and r.cools_until_s > now_s)
        return min(times)

    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    def snapshot(self, now_s: float) -> PoolSnapshot:
        ready = [replica for replica in self._replicas.values() if replica.is_ready]
        return PoolSnapshot(
            in_flight=len(self._running),
            queued=len(self._waiting),
            capacity=sum(replica.max_in_flight for replica in ready),
            in_flight_by_replica={replica.id: replica.in_flight for replica in self._replicas.values()},
            cooling_down=frozenset(replica.id for replica in ready if replica.cools_until_s > now_s),
        )

    # Steps

    def _admit(self, ticket: Ticket, now_s: float, *, since_s: float) -> Admit | None:
        choice = self._choose(ticket, now_s)
        if choice is None:
            return None
        replica, reason = choice
        assert replica.has_room(), "a cap is never exceeded"
        replica.in_flight += 1
        replica.last_chosen = self._next_event()
        self._running[ticket.number] = _Running(replica=replica, since_s=now_s, admitted_at=replica.last_chosen)
        return Admit(ticket=ticket.number, replica=replica.id, reason=reason, waited_s=now_s - since_s)

    def _choose(self, ticket: Ticket, now_s: float) -> tuple[_Replica, Reason] | None:
        """The least loaded with room; when all he may use are cooling down, the one that failed longest ago."""
        usable = [r for r in self._replicas.values() if r.is_ready and r.id not in ticket.excluded]
        warm = [r for r in usable if r.cools_until_s <= now_s]
        if warm:
            chosen = min((r for r in warm if r.has_room()), key=_Replica.rank, default=None)
            return (chosen, Reason.FREE_SLOT) if chosen else None
        chosen = min((r for r in usable if r.has_room()), key=lambda r: r.judged_from, default=None)
        return (chosen, Reason.LAST_RESORT) if chosen else None

    def _wait_or_refuse(self, ticket: Ticket, now_s: float) -> Decision:
        why = self._hopeless(ticket, now_s)
        if why is not None:
            return self._refuse(ticket, why)
        if len(self._waiting) >= self.max_queued:
            return self._refuse(ticket, Reason.QUEUE_FULL)
        until_s = now_s + self._tunables.queue_timeout_s
        self._waiting[ticket.number] = _Waiter(ticket=ticket, since_s=now_s, until_s=until_s)
        reason = Reason.ALL_BUSY if self._has_ready() else Reason.NO_REPLICA
        return Wait(ticket=ticket.number, reason=reason, position=len(self._waiting))

    def _hopeless(self, ticket: Ticket, now_s: float) -> Reason | None:
        """Why waiting would be in vain, or None."""
        if not self._has_ready():
            return Reason.NO_REPLICA if now_s >= self._hold_until_s else None
        can_be_served = any(r.is_ready and r.id not in ticket.excluded for r in self._replicas.values())
        return None if can_be_served else Reason.ALL_TRIED

    def _refuse_expired(self, now_s: float) -> list[Decision]:
        refused: list[Decision] = []
        is_given_up = not self._has_ready() and now_s >= self._hold_until_s
        while self._waiting:
            first = next(iter(self._waiting.values()))  # also the first to expire
            if not is_given_up and first.until_s > now_s:
                break
            del self._waiting[first.ticket.number]
            refused.append(self._refuse(first.ticket, Reason.NO_REPLICA if is_given_up else Reason.QUEUE_TIMEOUT))
        return refused

    def _refuse_all_tried(self) -> list[Decision]:
        """Waiters who have excluded every replica that is left."""
        ready_ids = {replica.id for replica in self._replicas.values() if replica.is_ready}
        in_vain = [w.ticket for w in self._waiting.values() if ready_ids and ready_ids <= w.ticket.excluded]
        for ticket in in_vain:
            del self._waiting[ticket.number]
        return [self._refuse(ticket, Reason.ALL_TRIED) for ticket in in_vain]

    def _promote(self, now_s: float) -> list[Decision]:
        """Let waiters through, in their order, as far as there is room that they may use."""
        admitted: list[Decision] = []
        blocked: set[frozenset[str]] = set()  # who excludes what a blocked one does is blocked too
        for waiter in list(self._waiting.values()) if self._has_room() else ():
            if waiter.ticket.excluded in blocked:
                continue
            decision = self._admit(waiter.ticket, now_s, since_s=waiter.since_s)
            if decision is None:
                blocked.add(waiter.ticket.excluded)
                continue
            del self._waiting[waiter.ticket.number]
            admitted.append(decision)
        return admitted

    def _refuse(self, ticket: Ticket, reason: Reason) -> Refuse:
        if reason in {Reason.NO_REPLICA, Reason.ALL_TRIED}:
            return Refuse(ticket=ticket.number, reason=reason, retry_after_s=self._tunables.no_replica_retry_after_s)
        return Refuse(ticket=ticket.number, reason=reason, retry_after_s=self._expected_wait_s())

    def _expected_wait_s(self) -> float:
        """How long the queue as it is takes to pass, from how long requests have been running."""
        capacity = sum(r.max_in_flight for r in self._replicas.values() if r.is_ready)
        rounds = (len(self._waiting) + 1) / max(capacity, 1)
        return min(max(1.0, rounds * self._mean_running_s), self._tunables.max_retry_after_s)

    def _update(self, spec: ReplicaSpec) -> None:
        known = self._replicas.get(spec.id)
        if known is None:
            self._replicas[spec.id] = _Replica(id=spec.id, max_in_flight=spec.max_in_flight, epoch=spec.epoch)
            return
        if not known.is_ready or known.epoch != spec.epoch:
            known.forget_failures()
            known.judged_from = self._next_event()
        known.is_ready, known.max_in_flight, known.epoch = True, spec.max_in_flight, spec.epoch

    def _end(self, number: int) -> None:
        replica = self._running.pop(number).replica
        assert replica.in_flight > 0, "a slot is given back once"
        replica.in_flight -= 1
        self._drop_if_gone(replica)

    def _drop_if_gone(self, replica: _Replica) -> None:
        if not replica.is_ready and replica.in_flight == 0:
            del self._replicas[replica.id]

    def _has_ready(self) -> bool:
        return any(replica.is_ready for replica in self._replicas.values())

    def _has_room(self) -> bool:
        return any(replica.has_room() for replica in self._replicas.values())

    def _next_event(self) -> int:
        self._events += 1
        return self._events

    def check_invariants(self, now_s: float) -> None:
        """What must hold after any call with this `now_s`; for tests."""
        for replica in self._replicas.values():
            running = sum(1 for entry in self._running.values() if entry.replica is replica)
            assert replica.in_flight == running, "a slot leaked"
            assert replica.is_ready or running, "a replica that has gone is forgotten with its last request"
        assert all(self._replicas.get(entry.replica.id) is entry.replica for entry in self._running.values())
        assert not self._waiting.keys() & self._running.keys()
        untils = [waiter.until_s for waiter in self._waiting.values()]
        assert untils == sorted(untils), "the first in the queue is the first to expire"
        for waiter in self._waiting.values():
            assert self._choose(waiter.ticket, now_s) is None, "someone waits while a slot is free that he may use"

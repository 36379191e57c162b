"""Who may be chosen: a replica that keeps failing is left alone for a while, then shows with one request that it is well.

A failure is a strike; good answers wear strikes off; at enough of them the replica is ejected for a cool-down that
doubles from one ejection to the next, up to a bound. Then one request (the probe) is let through: when it gets its
first token the replica is back, on trial: the next failure ejects it again at once, the next good answer clears it.
What was running when it failed before is the same failure, seen by another request. Only endings that blame the
replica count: clients that leave, bad requests and refusals say nothing about it.

So a replica that fails everything gets `strikes_to_eject` requests and then one every `max_cool_down_s`; and one that
has become well is back with the first token of the first request after at most `max_cool_down_s`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class HealthTunables:
    strikes_to_eject: float = 3.0
    """Failures in a row. More than one, since a single request may be what breaks it."""
    forgiven_per_success: float = 0.25
    """Strikes a good answer wears off: who fails more than one in five is ejected in the end."""
    cool_down_s: float = 2.0
    """Of the first ejection; doubles with each further one. Also how long a single strike makes a replica less liked."""
    max_cool_down_s: float = 30.0
    """The most it doubles to: how long a replica that is well again may have to wait for its probe."""
    suspicion_s: float = 1.0
    """What a fresh strike adds to a replica's score, fading within `cool_down_s`: an idle neighbour goes first."""


class State(Enum):
    WELL = "well"
    EJECTED = "ejected"
    DUE = "due"  # its cool-down is over: the next request is its probe
    PROBED = "probed"


@dataclass(slots=True)
class Record:
    """Of one replica. Events are numbered by the owner: a request begun before `judged_from` says nothing any more."""

    state: State = State.WELL
    strikes: float = 0.0
    ejections: int = 0
    judged_from: int = 0
    failed_at_s: float = float("-inf")
    until_s: float = float("-inf")
    probe: str = ""

    @property
    def is_ejected(self) -> bool:
        return self.state is not State.WELL

    @property
    def is_spotless(self) -> bool:
        """A good answer changes nothing."""
        return not self.strikes and not self.ejections


@dataclass(slots=True)
class Health:
    """The records of all, and who is due for a probe. Mutates records; its owner moves the replica in its indexes."""

    tunables: HealthTunables
    records: dict[str, Record] = field(default_factory=dict)
    _cooling: list[tuple[float, str]] = field(default_factory=list)  # a heap, with entries that time has passed over
    _due: dict[str, None] = field(default_factory=dict)

    def reset(self, replica: str, event: int) -> Record:
        """New, or another engine than before."""
        self._due.pop(replica, None)
        record = self.records[replica] = Record(judged_from=event)
        return record

    def forget(self, replica: str) -> None:
        self._due.pop(replica, None)
        self.records.pop(replica, None)

    def failed(self, replica: str, *, begun_event: int, event: int, now_s: float) -> None:
        record = self.records[replica]
        if begun_event <= record.judged_from:
            return
        record.judged_from = event
        record.failed_at_s = now_s
        record.strikes += 1.0
        if record.is_ejected or record.strikes >= self.tunables.strikes_to_eject:
            self._eject(replica, record, now_s)

    def answered(self, replica: str, *, begun_event: int) -> None:
        """A first token has come: that of a probe, or of a last resort, ends an ejection."""
        record = self.records[replica]
        if record.is_ejected and begun_event > record.judged_from:
            self._due.pop(replica, None)
            record.state, record.probe = State.WELL, ""
            record.strikes = self.tunables.strikes_to_eject - 1.0  # on trial

    def served(self, replica: str, *, begun_event: int) -> None:
        """A request has ended well."""
        record = self.records[replica]
        self.answered(replica, begun_event=begun_event)
        if begun_event <= record.judged_from:
            return
        if record.ejections:
            record.strikes, record.ejections = 0.0, 0
        elif record.strikes:
            record.strikes = max(0.0, record.strikes - self.tunables.forgiven_per_success)

    def may_be_due(self) -> bool:
        """Cheap: False when nobody is ejected."""
        return bool(self._cooling or self._due)

    def probe_begins(self, replica: str, request: str) -> None:
        record = self.records[replica]
        assert record.state is State.DUE, "one probe at a time, after the cool-down"
        del self._due[replica]
        record.state, record.probe = State.PROBED, request

    def probe_lost(self, replica: str, request: str) -> None:
        """Its client has gone, say: the next request probes. No error when the request is no probe."""
        record = self.records[replica]
        if record.state is State.PROBED and record.probe == request:
            record.state, record.probe = State.DUE, ""
            self._due[replica] = None

    def due(self, now_s: float) -> Iterator[str]:
        """Whose cool-down is over, the longest first."""
        while self._cooling and self._cooling[0][0] <= now_s:
            until_s, replica = heappop(self._cooling)
            record = self.records.get(replica)
            if record is not None and record.state is State.EJECTED and record.until_s == until_s:
                record.state = State.DUE
                self._due[replica] = None
        return iter(self._due)

    def next_event_s(self, now_s: float) -> float | None:
        """When the next cool-down ends; None: none is running."""
        self.due(now_s)
        while self._cooling:
            until_s, replica = self._cooling[0]
            record = self.records.get(replica)
            if record is not None and record.state is State.EJECTED and record.until_s == until_s:
                return until_s
            heappop(self._cooling)
        return None

    def suspicion_s(self, record: Record, now_s: float) -> float:
        """Seconds of score that a late failure costs a replica."""
        left = 1.0 - (now_s - record.failed_at_s) / self.tunables.cool_down_s
        return record.strikes * self.tunables.suspicion_s * left if left > 0.0 else 0.0

    def _eject(self, replica: str, record: Record, now_s: float) -> None:
        self._due.pop(replica, None)
        record.ejections += 1
        doubled_s = self.tunables.cool_down_s * 2.0 ** min(record.ejections - 1, 30)
        record.until_s = now_s + min(doubled_s, self.tunables.max_cool_down_s)
        record.state, record.probe = State.EJECTED, ""
        heappush(self._cooling, (record.until_s, replica))

    def check_invariants(self) -> None:
        assert set(self._due) == {name for name, record in self.records.items() if record.state is State.DUE}
        waiting = {(until_s, name) for until_s, name in self._cooling}
        for name, record in self.records.items():
            assert record.state is not State.EJECTED or (record.until_s, name) in waiting, "it would never be probed"
            assert (record.state is State.PROBED) == bool(record.probe)

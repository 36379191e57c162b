"""One run: a workload through a front to replicas, until every request has ended."""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from random import Random

from inference.policy.decisions import Ask, Decision, Ending, Granted, Park, Refused, ReplicaSpec, Usage
from inference.sim.engine_profile import EngineProfile
from inference.sim.event_loop import Event, EventLoop
from inference.sim.fronts import Front, FrontContext, MakeFront
from inference.sim.histogram import Histogram
from inference.sim.records import Load, Record
from inference.sim.replica import Replica
from inference.sim.sequence import Sequence, Stage
from inference.sim.workload import Workload


@dataclass(frozen=True, slots=True)
class Setup:
    """Equal replicas and how they are watched."""

    profile: EngineProfile
    replicas: int = 8
    seed: int = 0
    progress_s: float = 0.25
    """Gateways report tokens this often."""
    frame_s: float = 0.5
    """Agents report replicas this often."""
    first_token_report_s: float = 0.0
    """So much later than it comes does a gateway report a first token."""
    late_ttft_s: float = 10.0
    """A request whose first token comes later than this is late."""
    give_up_share: float | None = None
    """Stop once more than this share of all requests is refused or late: the searches need not see the rest."""


@dataclass(slots=True)
class Outcome:
    setup: Setup
    records: list[Record]
    loads: dict[str, Load]
    gaps: dict[tuple[int, str], Histogram]
    end_s: float
    gave_up: bool
    preemptions: int
    busy_s: dict[str, float]
    prefilled_tokens: int
    service_tokens: dict[str, int] = field(default_factory=dict)
    """By tenant, prompts and answers, when the last request arrived: while there still was competition."""


class Simulation:
    """Drives one front; also the listener of its replicas."""

    def __init__(self, workload: Workload, make_front: MakeFront, setup: Setup) -> None:
        self.setup = setup
        self.loop = EventLoop()
        self.workload = workload
        profile = setup.profile
        self.replicas = {
            f"r{number}": Replica(
                f"r{number}",
                profile=profile,
                content_block_tokens=workload.content_block_tokens,
                loop=self.loop,
                listener=self,
            )
            for number in range(setup.replicas)
        }
        specs = tuple(
            ReplicaSpec(
                name,
                profile.max_sequences,
                kv_tokens=profile.kv_tokens,
                prefill_tokens_per_s=profile.prefill_tokens_per_s,
            )
            for name in self.replicas
        )
        self.front: Front = make_front(FrontContext(specs, workload.content_block_tokens, Random(setup.seed)))
        self.records: dict[str, Record] = {}
        self.loads = {name: Load() for name in self.replicas}
        self.stall_gaps: dict[tuple[int, str], Histogram] = {}
        """Gaps of requests that were parked."""
        self._running: dict[str, tuple[Replica, Sequence]] = {}
        self._last_token_s: dict[str, float] = {}
        self._open = 0
        self._next_arrival = 0
        self._bad = 0
        self._gave_up = False
        self._wake: tuple[float, Event] | None = None
        self._service_tokens: dict[str, int] = {}

    def run(self) -> Outcome:
        if self.workload.arrivals:
            self.loop.at(self.workload.arrivals[0].at_s, self._arrive)
            if self.front.wants_progress:
                self.loop.at(0.0, self._progress)
                for index, name in enumerate(self.replicas):
                    self._frame_later(name, self.setup.frame_s * index / len(self.replicas))
        self.loop.run()
        return self._outcome()

    # What arrives.

    def _arrive(self) -> None:
        number, arrival = self._next_arrival, self.workload.arrivals[self._next_arrival]
        self._next_arrival += 1
        if self._next_arrival < len(self.workload.arrivals):
            self.loop.at(self.workload.arrivals[self._next_arrival].at_s, self._arrive)
        record = Record(f"q{number}", arrival)
        self.records[record.id] = record
        self._open += 1
        if not self._any_replica().can_ever_serve(arrival.prompt_tokens, arrival.output_tokens):
            self._refuse(record)
        else:
            self._apply(self.front.submit(self._ask(record), self.loop.now_s))
        if self._next_arrival == len(self.workload.arrivals):
            self._note_service()

    def _any_replica(self) -> Replica:
        return next(iter(self.replicas.values()))

    def _ask(self, record: Record) -> Ask:
        arrival, done = record.arrival, record.completion_tokens
        return Ask(
            id=record.id,
            model="model",
            tenant=arrival.tenant,
            key=arrival.tenant,
            tier=arrival.tier,
            prompt_tokens=arrival.prompt_tokens + done,
            max_tokens=max(arrival.max_tokens, arrival.output_tokens) - done,
            blocks=arrival.content,
            deadline_s=None if arrival.deadline_s is None else arrival.at_s + arrival.deadline_s,
            can_park=arrival.can_park,
        )

    # What the front decides.

    def _apply(self, decisions: Many[Decision]) -> None:
        for decision in decisions:
            record = self.records[decision.id]
            if isinstance(decision, Granted):
                self._start(record, decision)
            elif isinstance(decision, Refused):
                record.reason = decision.reason
                self._refuse(record)
            elif isinstance(decision, Park):
                self._park(record)
        self._wake_later()

    def _start(self, record: Record, grant: Granted) -> None:
        assert record.id not in self._running and record.end_s is None, "granted twice"
        arrival, replica = record.arrival, self.replicas[grant.replica]
        record.attempts += 1
        record.replica, record.reason = grant.replica, grant.reason
        if record.granted_s is None:
            record.granted_s = self.loop.now_s
            record.predicted_ttft_s = grant.waited_s + grant.predicted_ttft_s
            record.predicted_cached_tokens = grant.predicted_cached_tokens
        sequence = Sequence(
            id=record.id,
            group=(int(arrival.tier), arrival.tenant),
            prompt_tokens=arrival.prompt_tokens + record.completion_tokens,
            output_tokens=arrival.output_tokens - record.completion_tokens,
            content=arrival.content,
            priority=grant.engine_priority,
        )
        self._running[record.id] = replica, sequence
        self.loads[replica.id].change(+1, self.loop.now_s)
        replica.submit(sequence)

    def _refuse(self, record: Record) -> None:
        record.is_refused = True
        record.end_s = self.loop.now_s
        self._open -= 1
        self._count_bad()

    def _park(self, record: Record) -> None:
        if record.id not in self._running:  # it ended in the same instant
            return
        replica, sequence = self._running.pop(record.id)
        done = replica.generated_by(sequence)
        replica.abort(sequence)
        self.loads[replica.id].change(-1, self.loop.now_s)
        record.parks += 1
        record.preemptions += sequence.preemptions
        record.completion_tokens += done
        if done:
            self._last_token_s[record.id] = self.loop.now_s
        ask = self._ask(record)
        # Not from inside the decision that asked for it: the owner is another process.
        self.loop.at(self.loop.now_s, lambda: self._apply(self.front.parked(record.id, ask, self.loop.now_s)))

    # What replicas tell.

    def on_first_token(self, replica: Replica, sequence: Sequence) -> None:
        record, now_s = self.records[sequence.id], self.loop.now_s
        if record.first_token_s is None:
            record.first_token_s = now_s
            record.cached_tokens = sequence.cached_tokens or 0
            if now_s - record.arrival.at_s > self.setup.late_ttft_s:
                self._count_bad()
        elif record.id in self._last_token_s:
            gaps = self.stall_gaps.setdefault(sequence.group, Histogram())
            gaps.add(now_s - self._last_token_s.pop(record.id))
        if not self.setup.first_token_report_s:
            self._report_first_token(record.id)
        else:
            self.loop.at(now_s + self.setup.first_token_report_s, lambda: self._report_first_token(record.id))

    def _report_first_token(self, request_id: str) -> None:
        self.front.first_token(request_id, self.loop.now_s)
        self._wake_later()

    def on_end(self, replica: Replica, sequence: Sequence) -> None:
        record, now_s = self.records[sequence.id], self.loop.now_s
        assert sequence.stage is Stage.ENDED and sequence.generated == sequence.output_tokens
        del self._running[record.id]
        record.end_s = now_s
        record.completion_tokens += sequence.generated
        record.preemptions += sequence.preemptions
        self._open -= 1
        load = self.loads[replica.id]
        load.change(-1, now_s)
        load.requests += 1
        load.computed_tokens += sequence.prompt_tokens - (sequence.cached_tokens or 0) + sequence.generated
        usage = Usage(record.arrival.prompt_tokens, record.cached_tokens, record.completion_tokens)
        self._apply(self.front.end(record.id, Ending.WELL, usage, now_s))

    # What happens by itself.

    @property
    def _is_over(self) -> bool:
        return self._gave_up or (not self._open and self._next_arrival == len(self.workload.arrivals))

    def _wake_later(self) -> None:
        when_s = None if self._is_over else self.front.next_event_s(self.loop.now_s)
        if self._wake is not None:
            if when_s is not None and self._wake[0] <= when_s:
                return
            self._wake[1].cancel()
            self._wake = None
        if when_s is not None and when_s != float("inf"):
            when_s = max(when_s, self.loop.now_s + 0.001)
            self._wake = when_s, self.loop.at(when_s, self._expire)

    def _expire(self) -> None:
        self._wake = None
        if not self._is_over:
            self._apply(self.front.expire(self.loop.now_s))

    def _progress(self) -> None:
        if self._is_over:
            return
        for replica in self.replicas.values():
            for request_id, tokens in replica.progress():
                self.front.progress(request_id, self.records[request_id].completion_tokens + tokens, self.loop.now_s)
        self.loop.at(self.loop.now_s + self.setup.progress_s, self._progress)

    def _frame_later(self, name: str, after_s: float) -> None:
        self.loop.at(self.loop.now_s + after_s, lambda: self._frame(name))

    def _frame(self, name: str) -> None:
        if self._is_over:
            return
        self._apply(self.front.frame(name, self.replicas[name].frame(), self.loop.now_s))
        self._frame_later(name, self.setup.frame_s)

    def _count_bad(self) -> None:
        self._bad += 1
        share = self.setup.give_up_share
        if share is not None and self._bad > share * len(self.workload.arrivals):
            self._gave_up = True
            self.loop.stop()

    # The end.

    def _note_service(self) -> None:
        for record in self.records.values():
            tokens = record.completion_tokens
            if record.first_token_s is not None:
                tokens += record.arrival.prompt_tokens
            if record.id in self._running:
                replica, sequence = self._running[record.id]
                tokens += replica.generated_by(sequence)
            tenant = record.arrival.tenant
            self._service_tokens[tenant] = self._service_tokens.get(tenant, 0) + tokens

    def _outcome(self) -> Outcome:
        gaps: dict[tuple[int, str], Histogram] = {}
        for some in (self.stall_gaps, *(replica.gaps for replica in self.replicas.values())):
            for group, histogram in some.items():
                gaps.setdefault(group, Histogram()).merge(histogram)
        for load in self.loads.values():
            load.change(0, self.loop.now_s)
        return Outcome(
            setup=self.setup,
            records=list(self.records.values()),
            loads=self.loads,
            gaps=gaps,
            end_s=self.loop.now_s,
            gave_up=self._gave_up,
            preemptions=sum(replica.preemptions for replica in self.replicas.values()),
            busy_s={name: replica.busy_s for name, replica in self.replicas.items()},
            prefilled_tokens=sum(replica.prefilled_tokens for replica in self.replicas.values()),
            service_tokens=self._service_tokens,
        )


def simulate(workload: Workload, make_front: MakeFront, setup: Setup) -> Outcome:
    return Simulation(workload, make_front, setup).run()

"""A run whose replicas come and go: as the autoscaler wants it, or as someone who knows the trace has planned it.

A replica costs from the moment it is asked for until it has drained: while it starts, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from inference.policy.autoscale import Decision, Memory, decide
from inference.policy.autoscale_tunables import AutoscaleTunables, ScaleBounds
from inference.policy.autoscale_view import seen_of, shown
from inference.policy.decisions import ReplicaSpec
from inference.sim.ours import MODEL, BrainFront
from inference.sim.records import Load
from inference.sim.replica import Replica
from inference.sim.simulation import Outcome, Setup, Simulation
from inference.sim.workload import Workload


@dataclass(frozen=True, slots=True)
class Step:
    """A change of what is wanted in rotation."""

    at_s: float
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class ScaleSetup:
    start_s: float = 30.0
    """From asking for a replica until it serves."""
    wake_s: float = 1.0
    """The same of one that stands by warm."""
    warm: int = 0
    """Kept beside those that serve; they cost what those do."""
    tick_s: float = 5.0
    """Between two looks of the autoscaler."""


@dataclass(slots=True)
class ScaledOutcome:
    outcome: Outcome
    steps: list[Step] = field(default_factory=list)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    replica_s: float = 0.0
    """Of all replicas, from asked for to drained, until the last request ended."""

    def late_share(self, within_s: float) -> float:
        """Of all requests, those without a first token within that."""
        records = self.outcome.records
        return sum(one.ttft_s is None or one.ttft_s > within_s for one in records) / len(records)

    def reversals(self, pause_s: float) -> int:
        """Steps in the other direction than one that was less than `pause_s` before."""
        found = 0
        for index, step in enumerate(self.steps):
            is_up = step.after > step.before
            earlier = (one for one in self.steps[:index] if step.at_s - one.at_s < pause_s)
            found += any((one.after > one.before) != is_up for one in earlier)
        return found


Planner = Callable[["ScaledSimulation"], None]


class ScaledSimulation(Simulation):
    """`setup.replicas` serve at the beginning."""

    front: BrainFront

    def __init__(self, workload: Workload, setup: Setup, scale: ScaleSetup, planner: Planner) -> None:
        super().__init__(workload, BrainFront, setup)
        self.scale = scale
        self.result: ScaledOutcome
        self._planner = planner
        self._steps: list[Step] = []
        self.decisions: list[tuple[float, Decision]] = []
        self._asked_s = dict.fromkeys(self.replicas, 0.0)
        self._gone_s: dict[str, float] = {}
        self._serving = list(self.replicas)
        self._starting: list[str] = []
        self._warm: list[str] = []
        self._draining: set[str] = set()
        self._next_number = len(self.replicas)
        self._loading = 0
        self.loop.at(0.0, self._stand_by)

    def run_scaled(self) -> ScaledOutcome:
        self._planner(self)
        outcome = self.run()
        end_s = max((one.end_s or 0.0 for one in outcome.records), default=0.0)
        spent_s = sum(max(0.0, min(self._gone_s.get(name, end_s), end_s) - at_s) for name, at_s in self._asked_s.items())
        return ScaledOutcome(outcome, self._steps, self.decisions, spent_s)

    @property
    def wanted(self) -> int:
        """In rotation, or on its way there."""
        return len(self._serving) + len(self._starting)

    @property
    def is_over(self) -> bool:
        return self._is_over

    def want(self, count: int) -> None:
        """Warm ones first; those that start go first, then the idle, then those with the fewest requests."""
        before = self.wanted
        if count != before:
            self._steps.append(Step(self.loop.now_s, before, count))
        while self.wanted > count:
            self._let_one_go()
        while self.wanted < count:
            self._start_one()
        self._stand_by()
        self._tell()

    # Coming

    def _start_one(self) -> None:
        if self._warm:
            name, takes_s = self._warm.pop(0), self.scale.wake_s
        else:
            name, takes_s = self._ask_for_one(), self.scale.start_s
        self._starting.append(name)
        self.loop.at(self.loop.now_s + takes_s, lambda: self._is_ready(name))

    def _ask_for_one(self) -> str:
        name = f"r{self._next_number}"
        self._next_number += 1
        self._asked_s[name] = self.loop.now_s
        return name

    def _is_ready(self, name: str) -> None:
        if name not in self._starting or self._is_over:
            return
        self._starting.remove(name)
        self._serving.append(name)
        if name not in self.replicas:
            self.replicas[name] = Replica(
                name,
                profile=self.setup.profile,
                content_block_tokens=self.workload.content_block_tokens,
                loop=self.loop,
                listener=self,
            )
            self.loads[name] = Load(changed_s=self.loop.now_s)
        self._tell()
        self._frame_later(name, 0.0)

    def _stand_by(self) -> None:
        """Warm ones are kept as many as the setup says; they are loaded at once, for simplicity after `start_s`."""
        while len(self._warm) + self._loading < self.scale.warm:
            name = self._ask_for_one()
            self._loading += 1
            self.loop.at(self.loop.now_s + self.scale.start_s, partial(self._is_warm, name))

    def _is_warm(self, name: str) -> None:
        self._loading -= 1
        self._warm.append(name)

    # Going

    def _let_one_go(self) -> None:
        if self._starting:
            name = self._starting.pop()
            self._gone_s[name] = self.loop.now_s
            return
        busy = {name: self.loads[name].in_flight for name in self._serving}
        name = min(self._serving, key=lambda one: (busy[one], one))
        self._serving.remove(name)
        self._draining.add(name)
        self._see_drained(name)

    def _see_drained(self, name: str) -> None:
        if name in self._draining and not self.loads[name].in_flight:
            self._draining.discard(name)
            self._gone_s[name] = self.loop.now_s
        elif name in self._draining:
            self.loop.at(self.loop.now_s + 0.25, lambda: self._see_drained(name))

    def _frame(self, name: str) -> None:
        if name in self._serving:
            super()._frame(name)

    def _tell(self) -> None:
        profile = self.setup.profile
        specs = [
            ReplicaSpec(
                name, profile.max_sequences, kv_tokens=profile.kv_tokens, prefill_tokens_per_s=profile.prefill_tokens_per_s
            )
            for name in self._serving
        ]
        self._apply(self.front.brain.set_replicas(MODEL, specs, self.loop.now_s))


class Autoscaled:
    """Looks every `tick_s`, as the live one does."""

    def __init__(self, bounds: ScaleBounds, tunables: AutoscaleTunables) -> None:
        self._bounds, self._tunables = bounds, tunables
        self._memory = Memory()

    def __call__(self, simulation: ScaledSimulation) -> None:
        def look() -> None:
            if simulation.is_over:
                return
            self._look(simulation)
            simulation.loop.at(simulation.loop.now_s + simulation.scale.tick_s, look)

        simulation.loop.at(simulation.scale.tick_s, look)

    def _look(self, simulation: ScaledSimulation) -> None:
        now_s = simulation.loop.now_s
        snapshot = simulation.front.brain.snapshot(now_s)
        serving = simulation.wanted
        seen = seen_of(shown(snapshot.pools[MODEL], snapshot.demand[MODEL]), serving=serving, clock="sim")
        decision, self._memory = decide(seen, self._memory, self._bounds, serving=serving, now_s=now_s, tunables=self._tunables)
        simulation.decisions.append((now_s, decision))
        simulation.want(decision.desired)


class Planned:
    """Who knows the trace: so many serve in each window, asked for early enough; `counts[0]` are there at the beginning."""

    def __init__(self, counts: Sequence[int], window_s: float) -> None:
        self._counts, self._window_s = tuple(counts), window_s

    def __call__(self, simulation: ScaledSimulation) -> None:
        start_s = simulation.scale.start_s
        for index in range(1, len(self._counts)):
            at_s, before, after = index * self._window_s, self._counts[index - 1], self._counts[index]
            if after != before:
                when_s = max(0.0, at_s - start_s) if after > before else at_s
                simulation.loop.at(when_s, partial(self._move, simulation, after - before))

    def _move(self, simulation: ScaledSimulation, by: int) -> None:
        if not simulation.is_over:
            simulation.want(simulation.wanted + by)


def run_scaled(workload: Workload, setup: Setup, scale: ScaleSetup, planner: Planner) -> ScaledOutcome:
    return ScaledSimulation(workload, setup, scale, planner).run_scaled()

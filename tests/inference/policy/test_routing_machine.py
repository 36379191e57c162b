"""Any order of calls: counters equal what runs, nothing is chosen that may not be, and the indexes agree with recounting."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.policy.decisions import Ask, Ending, Reason, ReplicaSpec, StateFrame, Usage
from inference.policy.health import HealthTunables
from inference.policy.routing import Router, RoutingTunables
from tests.inference.policy.routing_cast import chain

NAMES = ("a", "b", "c", "d", "e")
SPECS = st.builds(
    ReplicaSpec,
    id=st.sampled_from(NAMES),
    max_in_flight=st.integers(1, 4),
    epoch=st.integers(0, 1),
    zone=st.sampled_from(["", "x", "y"]),
    address=st.sampled_from(["one", "two"]),
    kv_tokens=st.sampled_from([0, 40, 200]),
    is_draining=st.booleans(),
)
TUNABLES = RoutingTunables(
    health=HealthTunables(strikes_to_eject=2.0, cool_down_s=1.0, max_cool_down_s=4.0),
    block_tokens=10,
    max_depth_blocks=6,
    max_index_entries=40,
    num_holders=2,
    num_least_loaded=2,
)


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.router = Router(TUNABLES)
        self.specs: dict[str, ReplicaSpec] = {}
        self.running: dict[str, str] = {}
        self.probes: set[str] = set()
        self.now_s = 0.0
        self.asked = 0

    @rule(specs=st.lists(SPECS, max_size=6))
    def set_replicas(self, specs: list[ReplicaSpec]) -> None:
        self.specs = {spec.id: spec for spec in specs}
        self.router.set_replicas(specs, self.now_s)

    def usable(self, ask: Ask) -> set[str]:
        return {name for name, spec in self.specs.items() if not spec.is_draining} - ask.excluded

    def in_flight(self, name: str) -> int:
        return sum(replica == name for replica in self.running.values())

    @rule(
        path=st.lists(st.integers(0, 1), max_size=8),
        excluded=st.frozensets(st.sampled_from((*NAMES, "unknown")), max_size=3),
        zone=st.sampled_from(["", "x", "y", "z"]),
        begins=st.booleans(),
    )
    def ask(self, path: list[int], excluded: frozenset[str], zone: str, begins: bool) -> None:
        self.asked += 1
        ask = Ask(
            f"q{self.asked}", "m", "acme", "k", prompt_tokens=10 * len(path), blocks=chain(*path), excluded=excluded, zone=zone
        )
        had_room, why = self.router.has_room(self.now_s), self.router.hopeless(ask)
        choice = self.router.choose(ask, self.now_s)
        usable = self.usable(ask)
        assert (why is None) == bool(usable)
        if not excluded:
            assert had_room == (choice is not None)
        ejected = {name for name, view in self.router.snapshot(self.now_s).replicas.items() if view.is_ejected}
        with_room = {name for name in usable if self.in_flight(name) < self.router.cap_of(name)}
        if choice is None:
            assert not with_room - ejected
            assert not with_room or usable - ejected, "a last resort was left out"
            return
        assert choice.replica in with_room
        assert (choice.replica in ejected) == (choice.reason in {Reason.PROBE, Reason.LAST_RESORT})
        assert choice.reason is not Reason.LAST_RESORT or usable <= ejected
        assert 0 <= choice.cached_tokens <= max(0, ask.prompt_tokens - 1)
        if begins:
            self.router.begin(ask, choice, self.now_s)
            self.running[ask.id] = choice.replica

    @rule(name=st.sampled_from(NAMES))
    def restore(self, name: str) -> None:
        self.asked += 1
        ask = Ask(f"q{self.asked}", "m", "acme", "k", prompt_tokens=30, blocks=chain(1, 2, 3))
        known = name in self.specs or name in self.running.values()
        assert self.router.restore(ask, name, self.now_s) == known
        if known:
            self.running[ask.id] = name

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 99), tokens=st.integers(0, 50))
    def progress(self, at: int, tokens: int) -> None:
        name = list(self.running)[at % len(self.running)]
        if tokens:
            self.router.progress(name, tokens, self.now_s)
        else:
            self.router.first_token(name, self.now_s)

    @precondition(lambda self: self.running)
    @rule(at=st.integers(0, 99), ending=st.sampled_from(list(Ending)), cached=st.none() | st.integers(0, 60))
    def end(self, at: int, ending: Ending, cached: int | None) -> None:
        name = list(self.running)[at % len(self.running)]
        del self.running[name]
        usage = None if cached is None else Usage(cached_tokens=cached)
        for _ in range(2):
            self.router.end(name, ending, usage, self.now_s)

    @rule(name=st.sampled_from(NAMES), cap=st.integers(0, 6))
    def set_cap(self, name: str, cap: int) -> None:
        self.router.set_cap(name, cap)

    @rule(name=st.sampled_from(NAMES), waiting=st.none() | st.integers(0, 5), kv=st.none() | st.floats(0.0, 1.0))
    def frame(self, name: str, waiting: int | None, kv: float | None) -> None:
        self.router.frame(name, StateFrame(waiting=waiting, kv_used_ratio=kv), self.now_s)

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        before = self.router.has_room(self.now_s)
        event_s = self.router.next_event_s(self.now_s)
        until_s = self.now_s + seconds
        if not before and (event_s is None or until_s < event_s):
            assert not self.router.has_room(until_s), "room came by time alone, unannounced"
        self.now_s = until_s

    @invariant()
    def holds(self) -> None:
        self.router.check_invariants(self.now_s)
        assert self.router.in_flight() == len(self.running)
        for name in NAMES:
            assert set(self.router.running_on(name)) == {q for q, replica in self.running.items() if replica == name}
        usable = [name for name, spec in self.specs.items() if not spec.is_draining]
        assert self.router.capacity() == sum(self.router.cap_of(name) for name in usable)


AnyOrder.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
test_any_order = AnyOrder.TestCase

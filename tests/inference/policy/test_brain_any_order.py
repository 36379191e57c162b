"""Any order of calls on the whole brain; the machine keeps its own account of who waits, who runs, and how each ended."""

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inference.policy.brain import Brain
from inference.policy.brain_tunables import BrainTunables, ParkingTunables, QueueTunables
from inference.policy.decisions import (
    PICOS_A_MICRO,
    Ask,
    Decision,
    Ending,
    Granted,
    Limit,
    LimitKind,
    Park,
    Queued,
    Reason,
    Refused,
    ReplicaSpec,
    Scope,
    ScopeKind,
    StateFrame,
    TenantTerms,
    Tier,
    TierTargets,
    Usage,
)
from inference.policy.routing import Router, RoutingTunables
from inference.policy.split import Versions

REPLICAS = ("a", "b", "c")
MODELS = ("m", "n")
BUSY = ("m", "m", "m", "n")
TENANTS = ("acme", "bolt", "cord")
KEYS = ("1", "2")
TUNABLES = BrainTunables(
    queue_timeout_s=20.0,
    parked_timeout_s=60.0,
    long_prompt_tokens=500,
    max_long_prefills_per_replica=1,
    queue=QueueTunables(ageing_s=5.0, quantum_tokens=50.0),
    parking=ParkingTunables(max_parks=2, min_running_s=1.0),
)
TARGETS = {
    Tier.INTERACTIVE: TierTargets(1.0, 0.05),
    Tier.STANDARD: TierTargets(3.0, 0.1),
    Tier.BATCH: TierTargets(30.0, 0.5),
}


def limits(tenant: str, concurrency: int | None, key_concurrency: int | None, rpm: int | None) -> tuple[Limit, ...]:
    own = Scope(ScopeKind.TENANT, tenant)
    made = [
        (own, LimitKind.CONCURRENCY, concurrency),
        (Scope(ScopeKind.KEY, "1"), LimitKind.CONCURRENCY, key_concurrency),
        (Scope(ScopeKind.MODEL, f"{tenant}/m"), LimitKind.CONCURRENCY, key_concurrency),
        (own, LimitKind.REQUESTS, rpm),
    ]
    return tuple(Limit(scope, kind, value) for scope, kind, value in made if value is not None)


CAPS = st.dictionaries(st.sampled_from(REPLICAS), st.integers(1, 3), min_size=1)
TIERS = st.sampled_from([Tier.INTERACTIVE, Tier.STANDARD, Tier.BATCH, Tier.BATCH])


RELEASES = [
    Versions("v1"),
    Versions("v1", "v2", 500_000, "r1"),
    Versions("v1", "v2", 0, "r1"),
    Versions("v2", pinned=frozenset({"v1"})),
    Versions("v2"),
]


class BrainMachine(RuleBasedStateMachine):
    @initialize(max_queued=st.sampled_from([30, 30, 3, 0]), caps=CAPS, is_released=st.booleans())
    def start(self, max_queued: int, caps: dict[str, int], is_released: bool) -> None:
        """`is_released`: versions come and go; else nobody tells of them."""
        self.now_s = 100.0
        self.is_released = is_released
        self.versions: dict[str, Versions | None] = {}
        self.brain = Brain(TUNABLES, lambda model: Router(RoutingTunables()))
        self.max_queued = max_queued
        self.asks: dict[str, Ask] = {}
        self.waiting: set[str] = set()
        self.running: dict[str, str] = {}
        self.away: set[str] = set()
        self.ended: dict[str, str] = {}
        self.to_park: set[str] = set()
        self.concurrency: dict[str, int | None] = {}
        self.specs: dict[tuple[str, str], ReplicaSpec] = {}
        self.restored: set[str] = set()
        for model in MODELS:
            self.brain.set_pool(model, max_queued=max_queued, targets=TARGETS, now_s=self.now_s)
            self.set_replicas(model, caps, 0, RELEASES[0])

    def take(self, decisions: list[Decision], own: str | None = None) -> None:
        if own is not None:
            assert decisions[-1].id == own, "the asker's own decision is the last"
        for decision in decisions:
            assert decision.id not in self.ended, "ended once"
            if isinstance(decision, Queued):
                assert decision.position >= 1 and decision.predicted_wait_s >= 0
                assert decision.id in self.waiting
            elif isinstance(decision, Park):
                assert self.running[decision.id] == decision.replica
                assert decision.id not in self.to_park
                assert self.asks[decision.id].can_park
                assert decision.for_id in self.waiting and self.asks[decision.for_id].tier < Tier.BATCH
                self.to_park.add(decision.id)
            elif isinstance(decision, Refused):
                self.waiting.remove(decision.id)
                self.ended[decision.id] = decision.reason
                if decision.reason is Reason.LIMIT:
                    assert decision.hit is not None
            else:
                self.granted(decision)

    def granted(self, decision: Granted) -> None:
        self.waiting.remove(decision.id)
        ask = self.asks[decision.id]
        assert decision.replica not in ask.excluded
        spec = self.specs[(ask.model, decision.replica)]
        assert not spec.is_draining
        versions = self.versions[ask.model]
        assert versions is None or versions.serves(spec.version), "only versions that serve ever do"
        assert versions is None or not versions.serves(ask.version) or ask.version == spec.version, "who must have one has it"
        self.running[decision.id] = decision.replica
        mine = [
            each for each, replica in self.running.items() if replica == decision.replica and self.asks[each].model == ask.model
        ]
        assert len(mine) <= spec.max_in_flight, "the cap"
        limit = self.concurrency.get(ask.tenant)
        ours = [each for each in self.running if self.asks[each].tenant == ask.tenant]
        assert limit is None or len(ours) <= limit, "the tenant's requests at once"

    @rule(
        model=st.sampled_from(BUSY),
        tenant=st.sampled_from(TENANTS),
        key=st.sampled_from(KEYS),
        tier=TIERS,
        prompt_tokens=st.sampled_from([1, 60, 300, 1000]),
        excluded=st.sampled_from([frozenset[str]()] * 4 + [frozenset({"a"}), frozenset({"b", "c"})]),
        deadline_s=st.sampled_from([None, None, None, 0.1, 5.0, 30.0]),
        can_park=st.sampled_from([True, True, False]),
        waits_for_restart=st.sampled_from([False, False, True]),
        version=st.sampled_from(["", "", "", "", "v1", "v2"]),
    )
    def submit(self, deadline_s: float | None, **fields: Any) -> None:
        ask = Ask(
            id=f"r{len(self.asks)}",
            conversation=b"%d" % len(self.asks),
            max_tokens=100,
            deadline_s=None if deadline_s is None else self.now_s + deadline_s,
            **fields,
        )
        self.asks[ask.id] = ask
        self.waiting.add(ask.id)
        decisions = self.brain.submit(ask, self.now_s)
        self.take(decisions, ask.id)
        own = decisions[-1]
        if isinstance(own, Queued):
            waiting = self.brain.snapshot(self.now_s).pools[ask.model].queued_by_tier
            num_before = sum(number for tier, number in waiting.items() if tier <= own.tier) - 1
            assert num_before < self.max_queued, "of all versions together"

    @rule(tenant=st.sampled_from(TENANTS), num=st.integers(2, 6), tier=TIERS)
    def flood(self, tenant: str, num: int, tier: Tier) -> None:
        for at in range(num):
            self.submit(
                None,
                model="m",
                tenant=tenant,
                key=KEYS[at % 2],
                tier=tier,
                prompt_tokens=60,
                excluded=frozenset(),
                can_park=True,
            )

    @rule(data=st.data(), ending=st.sampled_from(Ending))
    def end(self, data: Any, ending: Ending) -> None:
        if self.running:
            name = data.draw(st.sampled_from(sorted(self.running)))
            del self.running[name]
            self.to_park.discard(name)
            self.ended[name] = ending
            usage = Usage(self.asks[name].prompt_tokens, 0, 30, 5 * PICOS_A_MICRO)
            self.take(self.brain.end(name, ending, usage, self.now_s))
            assert self.brain.end(name, ending, usage, self.now_s) == []

    @rule(data=st.data(), is_gone=st.booleans())
    def fail_and_ask_again(self, data: Any, is_gone: bool) -> None:
        if self.running:
            name = data.draw(st.sampled_from(sorted(self.running)))
            replica = self.running.pop(name)
            self.to_park.discard(name)
            self.away.add(name)
            excluded = self.asks[name].excluded | {replica}
            self.asks[name] = replace(self.asks[name], excluded=excluded, waits_for_restart=is_gone)
            self.take(self.brain.end(name, Ending.FAILED, None, self.now_s))

    @rule(data=st.data())
    def ask_again(self, data: Any) -> None:
        if self.away:
            name = data.draw(st.sampled_from(sorted(self.away)))
            self.away.remove(name)
            self.waiting.add(name)
            self.take(self.brain.submit(self.asks[name], self.now_s), name)

    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        alive = sorted(self.waiting | self.away | self.running.keys())
        if alive:
            name = data.draw(st.sampled_from(alive))
            self.waiting.discard(name)
            self.away.discard(name)
            self.to_park.discard(name)
            self.running.pop(name, None)
            self.ended[name] = "left"
            self.take(self.brain.cancel(name, None, self.now_s))

    @rule()
    def chat_among_batch(self) -> None:
        """What parking is for: batch has run for a while, then someone in a hurry comes."""
        self.flood("acme", 6, Tier.BATCH)
        self.time_passes(1.5)
        self.flood("bolt", 2, Tier.INTERACTIVE)
        self.time_passes(0.6)

    @rule(data=st.data(), made=st.integers(0, 60))
    def tell(self, data: Any, made: int) -> None:
        if self.running:
            name = data.draw(st.sampled_from(sorted(self.running)))
            self.brain.first_token(name, self.now_s)
            self.brain.progress(name, made, self.now_s)
            self.look_again()

    @rule(data=st.data())
    def park(self, data: Any) -> None:
        if self.to_park:
            name = data.draw(st.sampled_from(sorted(self.to_park)))
            self.to_park.remove(name)
            del self.running[name]
            self.waiting.add(name)
            self.take(self.brain.parked(name, replace(self.asks[name], max_tokens=50), self.now_s))

    @rule(
        model=st.sampled_from(MODELS),
        caps=st.dictionaries(st.sampled_from(REPLICAS), st.integers(1, 3)),
        epoch=st.integers(0, 2),
        versions=st.sampled_from(RELEASES),
    )
    def set_replicas(self, model: str, caps: dict[str, int], epoch: int, versions: Versions) -> None:
        self.versions[model] = told = versions if self.is_released else None
        specs = [
            ReplicaSpec(name, cap, epoch, is_draining=name == "c" and epoch == 1, version="v1" if name == "a" else "v2")
            for name, cap in caps.items()
        ]
        before = {name: spec.epoch for (of, name), spec in self.specs.items() if of == model}
        fresh = {spec.id for spec in specs if before.get(spec.id) != spec.epoch}
        for name in self.waiting:
            if self.asks[name].model == model:
                self.asks[name] = replace(self.asks[name], excluded=self.asks[name].excluded - fresh)
        self.specs = {pair: spec for pair, spec in self.specs.items() if pair[0] != model}
        self.specs |= {(model, spec.id): spec for spec in specs}
        self.take(self.brain.set_replicas(model, specs, self.now_s, told))

    @rule(
        tenant=st.sampled_from(TENANTS),
        concurrency=st.sampled_from([None, None, 0, 1, 3]),
        key=st.sampled_from([None, None, 0, 1, 2]),
        rpm=st.sampled_from([None, None, 2, 20]),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
        ceiling=st.sampled_from([Tier.INTERACTIVE, Tier.INTERACTIVE, Tier.BATCH]),
    )
    def set_terms(
        self, tenant: str, concurrency: int | None, key: int | None, rpm: int | None, weight: float, ceiling: Tier
    ) -> None:
        self.concurrency[tenant] = concurrency
        terms = TenantTerms(tenant, weight=weight, tier_ceiling=ceiling, limits=limits(tenant, concurrency, key, rpm))
        self.take(self.brain.set_terms(terms, self.now_s))

    @rule(replica=st.sampled_from(REPLICAS), iteration_s=st.none() | st.sampled_from([0.01, 0.2]))
    def frame(self, replica: str, iteration_s: float | None) -> None:
        self.take(self.brain.frame(replica, StateFrame(iteration_s=iteration_s), self.now_s))

    @rule(duration_s=st.sampled_from([0.0, 0.1, 0.6, 1.0, 3.0, 25.0]))
    def time_passes(self, duration_s: float) -> None:
        until_s = self.now_s + duration_s
        for _ in range(200):
            next_s = self.brain.next_event_s(self.now_s)
            if next_s is None or next_s > until_s:
                break
            self.now_s = max(self.now_s, next_s)
            self.take(self.brain.expire(self.now_s))
        else:
            raise AssertionError("it spins (B134)")
        self.now_s = until_s
        before = set(self.waiting)
        self.take([decision for decision in self.brain.expire(until_s) if not isinstance(decision, Park)])
        assert self.waiting == before, "time decides nothing before the time that was announced"

    @rule()
    def look_again(self) -> None:
        next_s = self.brain.next_event_s(self.now_s)
        if next_s is not None and next_s <= self.now_s:
            self.take(self.brain.expire(self.now_s))

    @invariant()
    def its_account_is_ours(self) -> None:
        self.brain.check_invariants(self.now_s)
        snapshot = self.brain.snapshot(self.now_s)
        assert snapshot.in_flight == len(self.running)
        assert snapshot.queued == len(self.waiting)
        assert snapshot.away == len(self.away)
        assert {queued.id for queued in self.brain.positions(self.now_s)} == self.waiting
        for pool in snapshot.pools.values():
            assert 0.0 < pool.jain_index <= 1.0 + 1e-9


BrainMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestAnyOrderOfCalls = BrainMachine.TestCase

"""The brain as its callers see it: real limiter, real router, a clock that is an argument."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from inference.dispatch.observing import observed
from inference.policy.brain import Brain
from inference.policy.brain_tunables import BrainTunables, ParkingTunables
from inference.policy.decisions import (
    NO_MODEL,
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
    RetryKind,
    Scope,
    ScopeKind,
    StateFrame,
    TenantTerms,
    Tier,
    TierTargets,
    TokenPrice,
    Usage,
)
from inference.policy.routing import Router, RoutingTunables

TARGETS = {
    Tier.INTERACTIVE: TierTargets(0.5, 0.05),
    Tier.STANDARD: TierTargets(3.0, 0.1),
    Tier.BATCH: TierTargets(60.0, 0.5),
}
TUNABLES = BrainTunables(queue_timeout_s=30.0, replica_hold_s=2.0, parking=ParkingTunables(max_parks=2, min_running_s=2.0))


class Cell:
    """A brain with one model, its clock, and who was granted what."""

    def __init__(
        self,
        *specs: ReplicaSpec,
        max_queued: int = 1_000,
        tunables: BrainTunables = TUNABLES,
        targets: dict[Tier, TierTargets] | None = None,
    ) -> None:
        self.brain = Brain(tunables, lambda model: Router(RoutingTunables()))
        self.brain.set_pool("m", max_queued=max_queued, targets=TARGETS if targets is None else targets, now_s=0.0)
        self.now_s = 0.0
        self.count = 0
        self.asks: dict[str, Ask] = {}
        self.running: dict[str, str] = {}
        self.made: dict[str, int] = {}
        self.decisions: list[Decision] = []
        self.take(self.brain.set_replicas("m", specs, 0.0))

    def take(self, decisions: Iterable[Decision]) -> list[Decision]:
        taken = list(decisions)
        self.decisions += taken
        self.running |= {decision.id: decision.replica for decision in taken if isinstance(decision, Granted)}
        self.brain.check_invariants(self.now_s)
        return taken

    def ask(self, tenant: str = "acme", tier: Tier = Tier.STANDARD, **fields: Any) -> Decision:
        return self.submit(tenant, tier, **fields)[-1]

    def submit(self, tenant: str = "acme", tier: Tier = Tier.STANDARD, **fields: Any) -> list[Decision]:
        self.count += 1
        defaults: dict[str, Any] = {"key": f"{tenant}-key", "prompt_tokens": 50, "max_tokens": 50, "model": "m"}
        ask = Ask(id=f"{tenant}-{self.count}", tenant=tenant, tier=tier, **(defaults | fields))
        self.asks[ask.id] = ask
        return self.take(self.brain.submit(ask, self.now_s))

    def end(self, name: str, ending: Ending = Ending.WELL, *, made: int = 20, is_final: bool = True) -> list[Decision]:
        self.running.pop(name, None)
        usage = Usage(self.asks[name].prompt_tokens, 0, made) if is_final else None
        return self.take(self.brain.end(name, ending, usage, self.now_s))

    def end_oldest(self) -> list[Decision]:
        return self.end(next(iter(self.running)))

    def decode(self, token_s: float, *, seconds: float) -> None:
        """All that runs has its first token, and from now on makes one every `token_s`, as is reported after `seconds`."""
        for name in self.running:
            self.brain.first_token(name, self.now_s)
            self.made.setdefault(name, 1)
        self.at(self.now_s + seconds)
        for name in self.running:
            self.made[name] += round(seconds / token_s)
            self.brain.progress(name, self.made[name], self.now_s)

    def at(self, now_s: float) -> list[Decision]:
        """Time goes on; what it decides is told."""
        decisions: list[Decision] = []
        while (next_s := self.brain.next_event_s(self.now_s)) is not None and next_s <= now_s:
            self.now_s = max(self.now_s, next_s)
            decisions += self.take(self.brain.expire(self.now_s))
        self.now_s = now_s
        return decisions


def ids(decisions: Iterable[Decision], kind: type[Decision] = Granted) -> list[str]:
    return [decision.id for decision in decisions if isinstance(decision, kind)]


def concurrency(tenant: str, value: int, scope: Scope | None = None) -> TenantTerms:
    return TenantTerms(tenant, limits=(Limit(scope or Scope(ScopeKind.TENANT, tenant), LimitKind.CONCURRENCY, value),))


class TestComingAndGoing:
    def test_a_free_slot_is_given_at_once_and_the_next_in_line_gets_the_one_that_is_freed(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        first = cell.ask()
        assert isinstance(first, Granted)
        assert (first.replica, first.max_tokens, first.waited_s, first.tier) == ("a", 50, 0.0, Tier.STANDARD)
        second, third = cell.ask(), cell.ask()
        assert isinstance(second, Queued) and isinstance(third, Queued)
        assert (second.position, third.position) == (1, 2)
        cell.now_s = 3.0
        (granted,) = cell.end(first.id)
        assert isinstance(granted, Granted)
        assert (granted.id, granted.waited_s) == (second.id, 3.0)

    def test_a_full_queue_refuses_a_new_one_and_not_one_that_was_let_through_before(self) -> None:
        cell = Cell(ReplicaSpec("a", 1), ReplicaSpec("b", 1), max_queued=1)
        first, _, _ = cell.ask(), cell.ask(), cell.ask()
        refused = cell.ask()
        assert isinstance(refused, Refused)
        assert (refused.reason, refused.retry_kind) == (Reason.QUEUE_FULL, RetryKind.ESTIMATE)
        assert refused.retry_after_s is not None and refused.retry_after_s >= 1.0
        assert isinstance(first, Granted)
        cell.end(first.id, Ending.FAILED, is_final=False)
        again = cell.take(cell.brain.submit(replace(cell.asks[first.id], excluded=frozenset({first.replica})), cell.now_s))
        assert isinstance(again[-1], Queued)

    def test_a_queue_full_of_patient_work_keeps_no_urgent_one_out(self) -> None:
        cell = Cell(ReplicaSpec("a", 1), max_queued=2)
        cell.ask()
        for tier in reversed(Tier):
            assert [type(cell.ask(tier=tier)) for _ in range(3)] == [Queued, Queued, Refused]

    def test_a_retry_reserves_nothing_again_and_comes_before_later_ones_of_its_tenant(self) -> None:
        cell = Cell(ReplicaSpec("a", 1), ReplicaSpec("b", 1))
        limit = Limit(Scope(ScopeKind.TENANT, "acme"), LimitKind.REQUESTS, 3)
        cell.brain.set_terms(TenantTerms("acme", limits=(limit,)), 0.0)
        first, second = cell.ask(), cell.ask()
        assert isinstance(first, Granted)
        later = cell.ask()
        cell.end(first.id, Ending.FAILED, is_final=False)
        assert later.id in cell.running
        cell.take(cell.brain.submit(cell.asks[first.id], 0.0))
        refused = cell.ask()
        assert isinstance(refused, Refused)
        assert refused.reason is Reason.LIMIT
        assert refused.hit is not None and refused.hit.limit == limit
        assert cell.brain.snapshot(0.0).limits.open == 3
        assert ids(cell.end(second.id)) == [first.id]

    def test_what_a_refused_one_reserved_is_given_back(self) -> None:
        cell = Cell(ReplicaSpec("a", 1), max_queued=0)
        cell.brain.set_terms(TenantTerms("acme", limits=(Limit(Scope(ScopeKind.TENANT, "acme"), LimitKind.REQUESTS, 2),)), 0.0)
        first = cell.ask()
        for _ in range(5):
            refused = cell.ask()
            assert isinstance(refused, Refused)
            assert refused.reason is Reason.QUEUE_FULL
            assert refused.rates.remaining_requests == 1
        cell.end(first.id)
        assert isinstance(cell.ask(), Granted)

    def test_who_leaves_waiting_or_running_frees_what_he_has(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        first, second, third = cell.ask(), cell.ask(), cell.ask()
        assert cell.take(cell.brain.cancel(second.id, None, 0.0)) == []
        assert ids(cell.take(cell.brain.cancel(first.id, Usage(50, 0, 3), 0.0))) == [third.id]
        assert cell.brain.cancel(first.id, None, 0.0) == cell.brain.cancel("stranger", None, 0.0) == []

    def test_the_plans_ceiling_clamps_the_tier(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        cell.brain.set_terms(TenantTerms("acme", tier_ceiling=Tier.BATCH), 0.0)
        granted, queued = cell.ask(tier=Tier.INTERACTIVE), cell.ask(tier=Tier.INTERACTIVE)
        assert isinstance(granted, Granted) and isinstance(queued, Queued)
        assert granted.tier is queued.tier is Tier.BATCH
        assert granted.engine_priority == 2

    def test_a_model_that_is_not_served_refuses_and_one_that_is_dropped_lets_what_runs_run_on(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        refused = cell.ask(model="unknown")
        assert isinstance(refused, Refused)
        assert refused.reason is Reason.NO_REPLICA
        running, waiting = cell.ask(), cell.ask()
        assert ids(cell.take(cell.brain.drop_pool("m", 0.0)), Refused) == [waiting.id]
        assert isinstance(cell.ask(), Refused)
        assert cell.end(running.id) == []
        assert cell.brain.snapshot(0.0).pools == {}
        assert cell.brain.drop_pool("m", 0.0) == cell.brain.set_replicas("m", [], 0.0) == []

    def test_asks_for_a_model_that_nobody_knows_count_as_requests_exactly_and_leave_nothing_behind(self) -> None:
        cell = Cell(ReplicaSpec("a", 9))
        cell.brain.set_terms(TenantTerms("acme", limits=(Limit(Scope(ScopeKind.TENANT, "acme"), LimitKind.REQUESTS, 3),)), 0.0)
        granted = cell.ask()
        assert isinstance(granted, Granted)
        for _ in range(2):
            refused = cell.ask(model=NO_MODEL)
            assert isinstance(refused, Refused) and refused.reason is Reason.NO_REPLICA
        for model in (NO_MODEL, "m"):
            hit = cell.ask(model=model)
            assert isinstance(hit, Refused) and hit.reason is Reason.LIMIT
            assert hit.hit is not None and (hit.hit.used + hit.hit.reserved, hit.hit.asked) == (3, 1)
        cell.brain.check_invariants(cell.now_s)
        assert cell.brain.snapshot(cell.now_s).limits.open == 1  # the one that runs
        cell.now_s = 61.0
        assert isinstance(cell.ask(), Granted)

    def test_b132_targets_out_of_order_are_refused_and_change_nothing(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        with pytest.raises(ValueError, match="stricter"):
            cell.brain.set_pool("m", max_queued=0, targets={**TARGETS, Tier.INTERACTIVE: TierTargets(10.0, 0.05)}, now_s=0.0)
        with pytest.raises(ValueError, match="weight"):
            cell.brain.set_terms(TenantTerms("acme", weight=0.0), 0.0)
        cell.ask()
        assert isinstance(cell.ask(), Queued)


class TestTime:
    def test_who_waits_too_long_is_refused_at_the_time_that_was_announced(self) -> None:
        cell = Cell(ReplicaSpec("a", 1), targets={})
        cell.ask()
        cell.now_s = 1.0
        waiting, hasty = cell.ask(), cell.ask(deadline_s=9.0)
        assert cell.brain.next_event_s(1.0) == 9.0
        (refused,) = cell.at(9.0)
        assert isinstance(refused, Refused)
        assert (refused.id, refused.reason) == (hasty.id, Reason.DEADLINE)
        assert cell.brain.next_event_s(9.0) == 31.0
        assert cell.at(30.9) == []
        (refused,) = cell.at(31.0)
        assert isinstance(refused, Refused)
        assert (refused.id, refused.reason) == (waiting.id, Reason.QUEUE_TIMEOUT)
        assert cell.brain.next_event_s(31.0) is None

    @pytest.mark.parametrize(
        ("queue_timeout_s", "expected_s"), [(30.0, [30.0, 30.0, 300.0]), (5.0, [5.0, 5.0, 300.0]), (900.0, [900.0] * 3)]
    )
    def test_batch_waits_longer_and_never_less_than_the_others(self, queue_timeout_s: float, expected_s: list[float]) -> None:
        cell = Cell(ReplicaSpec("a", 1), targets={}, tunables=replace(TUNABLES, queue_timeout_s=queue_timeout_s))
        cell.ask()
        names = [cell.ask(tier=tier).id for tier in Tier]
        refused_s: dict[str, float] = {}
        while (next_s := cell.brain.next_event_s(cell.now_s)) is not None:
            refused_s |= dict.fromkeys(ids(cell.at(next_s), Refused), next_s)
        assert [refused_s[name] for name in names] == expected_s

    def test_a_wait_that_is_predicted_longer_than_the_deadline_is_refused_at_once_and_says_so(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        for _ in range(30):
            cell.ask()
            cell.now_s += 8.0
            cell.end_oldest()
        cell.ask()
        waiting = cell.ask()
        refused = cell.ask(deadline_s=cell.now_s + 5.0)
        assert isinstance(refused, Refused)
        assert refused.reason is Reason.DEADLINE
        assert refused.predicted_wait_s is not None and refused.predicted_wait_s > 5.0
        assert cell.brain.snapshot(cell.now_s).queued == 1
        assert cell.brain.snapshot(cell.now_s).limits.open == 2, "nothing stays reserved"
        patient = cell.ask(deadline_s=cell.now_s + 100.0)
        assert isinstance(patient, Queued) and isinstance(waiting, Queued)

    def test_one_that_waits_again_after_a_failure_has_its_time_anew(self) -> None:
        cell = Cell(ReplicaSpec("a", 1), targets={})
        first, again = cell.ask(), cell.ask()
        cell.now_s = 10.0
        assert ids(cell.end(first.id)) == [again.id]
        cell.ask()
        cell.now_s = 12.0
        cell.end(again.id, Ending.FAILED, is_final=False)
        cell.take(cell.brain.submit(cell.asks[again.id], 12.0))
        assert cell.at(41.9) == []
        assert ids(cell.at(42.0), Refused) == [again.id]

    def test_when_the_last_replica_goes_requests_are_held_for_a_short_while(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        running = cell.ask()
        cell.now_s = 10.0
        cell.take(cell.brain.set_replicas("m", [], 10.0))
        held = cell.ask()
        assert isinstance(held, Queued)
        assert held.reason is Reason.NO_REPLICA
        assert ids(cell.take(cell.brain.set_replicas("m", [ReplicaSpec("b", 1)], 10.0))) == [held.id]
        cell.take(cell.brain.set_replicas("m", [], 20.0))
        cell.now_s = 20.0
        lost = cell.ask()
        assert cell.at(21.9) == []
        (refused,) = cell.at(22.0)
        assert isinstance(refused, Refused)
        assert (refused.id, refused.reason) == (lost.id, Reason.NO_REPLICA)
        assert isinstance(cell.ask(), Refused), "the hold is for the first moment, not for ever"
        assert cell.end(running.id) == []

    def test_who_waits_for_the_last_replica_he_has_not_tried_is_refused_when_it_goes(self) -> None:
        cell = Cell(ReplicaSpec("a", 1), ReplicaSpec("b", 1))
        cell.ask()
        cell.ask()
        tried = cell.ask(excluded=frozenset({"a"}))
        (refused,) = cell.take(cell.brain.set_replicas("m", [ReplicaSpec("a", 1)], 0.0))
        assert isinstance(refused, Refused)
        assert (refused.id, refused.reason) == (tried.id, Reason.ALL_TRIED)

    def test_b134_a_hundred_that_wait_ask_for_no_work_until_something_can_happen(self) -> None:
        cell = Cell(ReplicaSpec("a", 1), targets={})
        cell.brain.set_terms(concurrency("acme", 1), 0.0)
        cell.ask()
        for _ in range(100):
            cell.ask()
        looks = 0
        while (next_s := cell.brain.next_event_s(cell.now_s)) is not None and next_s < 30.0:
            looks += 1
            cell.now_s = next_s
            assert cell.take(cell.brain.expire(next_s)) == []
        assert looks == 0


class TestUnwellReplicas:
    def fail(self, cell: Cell, times: int) -> None:
        """Of b, again and again; a is full."""
        for _ in range(times):
            failing = cell.ask("probe", excluded=frozenset({"a"}))
            assert cell.running[failing.id] == "b"
            cell.end(failing.id, Ending.FAILED)

    def cell(self) -> Cell:
        cell = Cell(ReplicaSpec("a", 1), ReplicaSpec("b", 1))
        assert isinstance(cell.ask(excluded=frozenset({"b"})), Granted)
        return cell

    def test_the_only_one_left_to_somebody_is_his_last_resort_also_when_it_is_freed_by_a_failure(self) -> None:
        cell = self.cell()
        self.fail(cell, 2)
        failing = cell.ask("probe", excluded=frozenset({"a"}))
        spared, waiting = cell.ask("other"), cell.ask("probe", excluded=frozenset({"a"}))
        (granted,) = cell.end(failing.id, Ending.FAILED)
        assert isinstance(granted, Granted) and isinstance(spared, Queued)
        assert (granted.id, granted.reason) == (waiting.id, Reason.LAST_RESORT)

    def test_the_first_token_of_a_probe_lets_the_next_in(self) -> None:
        cell = Cell(ReplicaSpec("a", 1), ReplicaSpec("b", 3))
        assert isinstance(cell.ask(excluded=frozenset({"b"})), Granted)
        self.fail(cell, 3)
        first, second = cell.ask("other"), cell.ask("other")
        assert isinstance(first, Queued) and isinstance(second, Queued)
        (probe,) = cell.at(3.0)
        assert isinstance(probe, Granted)
        assert (probe.id, probe.reason) == (first.id, Reason.PROBE)
        cell.brain.first_token(first.id, 3.0)
        assert ids(cell.at(3.0)) == [second.id]


class TestLimitsOnHowManyAtOnce:
    @pytest.mark.parametrize(
        "scope",
        [Scope(ScopeKind.TENANT, "acme"), Scope(ScopeKind.KEY, "acme-key"), Scope(ScopeKind.MODEL, "acme/m")],
    )
    def test_who_is_at_the_limit_waits_without_blocking_others_and_is_woken_when_a_slot_frees(self, scope: Scope) -> None:
        cell = Cell(ReplicaSpec("a", 3))
        cell.brain.set_terms(concurrency("acme", 1, scope), 0.0)
        first, second = cell.ask(), cell.ask()
        assert isinstance(second, Queued)
        assert second.reason is Reason.CONCURRENCY
        assert isinstance(cell.ask("bolt"), Granted)
        assert ids(cell.end(first.id)) == [second.id]

    def test_a_slot_of_a_tenant_freed_in_one_pool_wakes_who_waits_for_it_in_another(self) -> None:
        cell = Cell(ReplicaSpec("a", 2))
        cell.brain.set_pool("n", max_queued=10, targets={}, now_s=0.0)
        cell.brain.set_replicas("n", [ReplicaSpec("z", 2)], 0.0)
        cell.brain.set_terms(concurrency("acme", 1), 0.0)
        here = cell.ask()
        there = cell.ask(model="n")
        assert isinstance(there, Queued)
        assert ids(cell.end(here.id)) == [there.id]

    def test_a_higher_limit_wakes_at_once(self) -> None:
        cell = Cell(ReplicaSpec("a", 3))
        cell.brain.set_terms(concurrency("acme", 1), 0.0)
        cell.ask()
        waiting = [cell.ask().id, cell.ask().id]
        assert ids(cell.take(cell.brain.set_terms(concurrency("acme", 3), 0.0))) == waiting

    def test_b50_a_key_that_fills_every_slot_with_long_jobs_leaves_room_for_one_that_asks_now_and_then(self) -> None:
        """Slots free one at a time; B's worst wait is one of them."""
        cell = Cell(ReplicaSpec("a", 8))
        for _ in range(200):
            cell.ask("flood", prompt_tokens=2_000)
        waits = []
        for _ in range(30):
            cell.now_s += 0.5
            cell.end_oldest()
            asked = cell.ask("now and then")
            asked_s = cell.now_s
            while asked.id not in cell.running:
                cell.now_s += 0.5
                cell.end_oldest()
            waits.append(cell.now_s - asked_s)
            cell.end(asked.id)
        assert max(waits) <= 0.5


class TestLongPrompts:
    LONG = 10_000

    def test_b133_only_a_few_long_prompts_are_read_at_once_and_short_chats_find_a_slot(self) -> None:
        cell = Cell(ReplicaSpec("a", 16))
        for _ in range(20):
            cell.ask("long", prompt_tokens=30_000)
        assert len(cell.running) == TUNABLES.max_long_prefills_per_replica
        chats = [cell.ask("chat", prompt_tokens=50) for _ in range(10)]
        assert all(isinstance(chat, Granted) for chat in chats)
        assert cell.brain.snapshot(0.0).pools["m"].long_prefills == 2

    def test_the_next_is_read_when_one_has_its_first_token_or_leaves(self) -> None:
        cell = Cell(ReplicaSpec("a", 16))
        names = [cell.ask("long", prompt_tokens=self.LONG).id for _ in range(4)]
        cell.brain.first_token(names[0], 0.0)
        assert cell.brain.next_event_s(0.0) == 0.0
        assert ids(cell.at(0.0)) == [names[2]]
        assert ids(cell.end(names[1])) == [names[3]]
        cell.end(names[0])
        assert cell.brain.snapshot(0.0).pools["m"].long_prefills == 2

    def test_one_that_was_begun_when_the_next_comes_makes_room_for_it_as_well(self) -> None:
        cell = Cell(ReplicaSpec("a", 16))
        names = [cell.ask("long", prompt_tokens=self.LONG).id for _ in range(3)]
        cell.brain.progress(names[0], 5, 1.0)
        cell.now_s = 1.0
        decisions = cell.submit("long", prompt_tokens=self.LONG)
        assert ids(decisions) == [names[2]], "who waits comes first"
        assert isinstance(decisions[-1], Queued)


class TestParking:
    def full_of_batch(self, slots: int = 1, *replicas: str, can_park: bool = True) -> Cell:
        cell = Cell(*(ReplicaSpec(replica, slots) for replica in replicas or ("a",)))
        for at in range(slots * len(replicas or ("a",))):
            cell.ask("bulk", Tier.BATCH, can_park=can_park, prompt_tokens=1_000 - at)
        cell.now_s = 10.0
        for name in list(cell.running):
            cell.brain.first_token(name, cell.now_s)
        return cell

    def parks(self, decisions: list[Decision]) -> list[tuple[str, str]]:
        return [(decision.id, decision.for_id) for decision in decisions if isinstance(decision, Park)]

    def park(self, cell: Cell, name: str, left: int = 30) -> list[Decision]:
        del cell.running[name]
        cell.asks[name] = replace(cell.asks[name], max_tokens=left)
        return cell.take(cell.brain.parked(name, cell.asks[name], cell.now_s))

    def test_one_that_would_be_late_has_a_batch_request_parked_and_gets_its_slot(self) -> None:
        cell = self.full_of_batch()
        victim = next(iter(cell.running))
        decisions = [*cell.submit("chat", Tier.INTERACTIVE), *cell.at(10.3)]
        chat = f"chat-{cell.count}"
        assert self.parks(decisions) == [(victim, chat)]
        cell.submit("other", Tier.INTERACTIVE)
        told = self.park(cell, victim)
        assert ids(told) == [chat]
        own = told[-1]
        assert isinstance(own, Queued)
        assert (own.id, own.reason) == (victim, Reason.PARKED)
        assert cell.brain.snapshot(cell.now_s).pools["m"].parked == 1
        assert cell.brain.snapshot(cell.now_s).limits.open == 3, "no new reservation"

    def test_the_slot_is_kept_for_the_one_it_was_made_free_for_whoever_comes_meanwhile(self) -> None:
        cell = self.full_of_batch()
        victim = next(iter(cell.running))
        asker = cell.submit("acme", Tier.STANDARD)[-1].id
        assert self.parks(cell.at(12.0)) == [(victim, asker)]
        cell.submit("chat", Tier.INTERACTIVE)
        assert ids(self.park(cell, victim)) == [asker]

    def test_the_parked_one_goes_on_with_what_is_left_in_its_old_place(self) -> None:
        cell = self.full_of_batch()
        victim = next(iter(cell.running))
        later = cell.ask("bulk", Tier.BATCH)
        cell.submit("chat", Tier.INTERACTIVE)
        cell.at(10.3)
        self.park(cell, victim, left=30)
        (granted,) = cell.end_oldest()
        assert isinstance(granted, Granted) and isinstance(later, Queued)
        assert (granted.id, granted.max_tokens) == (victim, 30)
        assert granted.waited_s == 0.0, "not the time before it was parked"

    def test_the_one_with_the_fewest_tokens_to_read_again_is_chosen(self) -> None:
        cell = self.full_of_batch(3)
        names = list(cell.running)
        cell.brain.progress(names[2], 10, 10.0)
        assert self.parks([*cell.submit("chat", Tier.INTERACTIVE), *cell.at(10.3)])[0][0] == names[1]

    def test_nobody_is_parked_more_often_than_allowed_nor_before_it_has_run_a_while(self) -> None:
        cell = self.full_of_batch()
        victim = next(iter(cell.running))
        for turn in range(2):
            chat = cell.submit("chat", Tier.INTERACTIVE)[-1].id
            cell.at(cell.now_s + 0.3)
            assert ids(self.park(cell, victim)) == [chat]
            assert ids(cell.end(chat)) == [victim]
            if turn == 0:
                impatient = [*cell.submit("chat", Tier.INTERACTIVE), *cell.at(cell.now_s + 1.5)]
                assert self.parks(impatient) == [], "it has just begun again"
                assert self.parks(cell.at(cell.now_s + 1.0)) != []
                assert ids(cell.end(victim, is_final=False)) == [impatient[0].id]
                cell.end(impatient[0].id)
                cell.take(cell.brain.submit(cell.asks[victim], cell.now_s))
                cell.now_s += 5.0
        cell.now_s += 10.0
        assert self.parks([*cell.submit("chat", Tier.INTERACTIVE), *cell.at(cell.now_s + 5.0)]) == []

    def test_nothing_is_parked_that_cannot_be_nor_for_batch_nor_for_one_at_its_own_limit(self) -> None:
        cell = self.full_of_batch(can_park=False)
        assert self.parks([*cell.submit("chat", Tier.INTERACTIVE), *cell.at(15.0)]) == []
        cell = self.full_of_batch()
        assert self.parks([*cell.submit("more", Tier.BATCH), *cell.at(15.0)]) == []
        cell.brain.set_terms(concurrency("chat", 0), cell.now_s)
        assert self.parks([*cell.submit("chat", Tier.INTERACTIVE), *cell.at(20.0)]) == []
        cell.brain.set_terms(concurrency("chat", 1), cell.now_s)
        assert len(self.parks(cell.at(20.5))) == 1

    def test_standard_has_batch_parked_only_when_its_own_target_is_at_stake(self) -> None:
        cell = self.full_of_batch()
        for _ in range(3):
            cell.brain.progress(next(iter(cell.running)), 5, 10.0)
        asked = cell.submit("acme", Tier.STANDARD)
        assert self.parks([*asked, *cell.at(11.4)]) == []
        assert len(self.parks(cell.at(11.6))) == 1

    def test_one_request_is_parked_for_each_and_none_on_a_replica_that_the_asker_has_tried(self) -> None:
        cell = self.full_of_batch(1, "a", "b", "c")
        cheapest = cell.running[list(cell.running)[-1]]
        for _ in range(2):
            cell.submit("chat", Tier.INTERACTIVE, excluded=frozenset({cheapest}))
        cell.at(10.3)
        parks = [decision for decision in cell.decisions if isinstance(decision, Park)]
        assert {park.replica for park in parks} == {"a", "b", "c"} - {cheapest}
        assert len({park.for_id for park in parks}) == 2
        assert self.parks(cell.at(11.0)) == []

    def test_one_that_ends_before_it_is_parked_leaves_its_slot_to_the_asker_all_the_same(self) -> None:
        cell = self.full_of_batch()
        victim = next(iter(cell.running))
        chat = cell.submit("chat", Tier.INTERACTIVE)[-1].id
        cell.at(10.3)
        assert ids(cell.end(victim)) == [chat]
        assert cell.brain.parked(victim, cell.asks[victim], cell.now_s) == []

    def test_when_the_asker_has_gone_the_slot_goes_to_the_next_in_line(self) -> None:
        cell = self.full_of_batch()
        victim = next(iter(cell.running))
        chat = cell.submit("chat", Tier.INTERACTIVE)[-1].id
        cell.at(10.3)
        cell.take(cell.brain.cancel(chat, None, cell.now_s))
        assert ids(self.park(cell, victim)) == [victim]

    def test_a_parked_one_is_not_refused_by_the_queues_timeout(self) -> None:
        cell = self.full_of_batch()
        victim = next(iter(cell.running))
        cell.submit("chat", Tier.INTERACTIVE)
        cell.at(10.3)
        self.park(cell, victim)
        assert cell.at(200.0) == []
        (refused,) = cell.at(400.0)
        assert isinstance(refused, Refused)
        assert refused.id == victim


class TestStarvation:
    @pytest.mark.parametrize("tier", [Tier.STANDARD, Tier.BATCH])
    def test_b131_a_low_call_under_a_saturating_high_load_is_served_within_the_stated_wait(self, tier: Tier) -> None:
        """`ageing_s`, and the next slot that frees: here one every half second."""
        cell = Cell(ReplicaSpec("a", 2), tunables=replace(TUNABLES, queue_timeout_s=300.0), targets={})
        for _ in range(8):
            cell.ask("high", Tier.INTERACTIVE)
        low = cell.ask("low", tier)
        while low.id not in cell.running:
            cell.now_s += 0.5
            cell.ask("high", Tier.INTERACTIVE)
            cell.end_oldest()
        assert cell.now_s <= TUNABLES.queue.ageing_s + 0.5

    def test_one_in_a_hurry_is_squeezed_in_when_the_slot_made_for_it_came_to_nothing(self) -> None:
        """The cap shrank meanwhile: a slot less, and still one who waits in a hurry. The engine has the slot."""
        cell = Cell(ReplicaSpec("a", 4))
        for _ in range(4):
            cell.ask("bulk", Tier.BATCH, can_park=True)
        cell.decode(1.0, seconds=10.0)
        chat = cell.submit("chat", Tier.INTERACTIVE)[-1].id
        cell.at(10.3)
        (park,) = [decision for decision in cell.decisions if isinstance(decision, Park)]
        cell.take(cell.brain.frame("a", StateFrame(), 10.3))
        assert cell.brain.snapshot(10.3).pools["m"].caps == {"a": 3}
        del cell.running[park.id]
        assert chat not in ids(cell.take(cell.brain.parked(park.id, cell.asks[park.id], 10.3)))
        (granted,) = [decision for decision in cell.at(11.0) if isinstance(decision, Granted)]
        assert (granted.id, granted.reason) == (chat, Reason.SQUEEZED)

    def test_the_urgent_go_beyond_the_cap_by_as_much_as_batch_work_can_give_back(self) -> None:
        cell = Cell(ReplicaSpec("a", 8))
        for _ in range(8):
            cell.ask("bulk", Tier.BATCH, can_park=True)
        cell.decode(1.0, seconds=10.0)  # a second a token: the cap shrinks, what runs runs on
        cell.take(cell.brain.frame("a", StateFrame(), 10.0))
        cap = cell.brain.snapshot(10.0).pools["m"].caps["a"]
        assert cap == 6
        running = list(cell.running)
        for name in running[: 8 - cap]:
            cell.end(name)
        assert cell.brain.snapshot(10.0).pools["m"].in_flight == cap
        chats = [cell.submit("chat", Tier.INTERACTIVE)[-1].id for _ in range(8)]
        granted = [decision for decision in cell.at(10.5) if isinstance(decision, Granted)]
        assert {decision.id for decision in granted} <= set(chats)
        assert {decision.reason for decision in granted} == {Reason.SQUEEZED}
        assert len(granted) == 8 - cap

    def over_its_cap(self, cell: Cell) -> Cell:
        """Four batch requests on `a`, whose cap is below that; its engine has eight slots."""
        for _ in range(8):
            cell.ask("bulk", Tier.BATCH)
        cell.decode(1.0, seconds=10.0)
        cell.take(cell.brain.frame("a", StateFrame(), 10.0))
        assert cell.brain.snapshot(10.0).pools["m"].caps["a"] == 6
        for name in list(cell.running)[:2]:
            cell.end(name)
        return cell

    def test_no_long_prompt_is_squeezed_in_where_as_many_are_read_as_may_be(self) -> None:
        tunables = replace(TUNABLES, max_long_prefills_per_replica=0)
        cell = self.over_its_cap(Cell(ReplicaSpec("a", 8), tunables=tunables))
        cell.submit("chat", Tier.INTERACTIVE, prompt_tokens=TUNABLES.long_prompt_tokens, key="long")
        assert ids(cell.at(12.0)) == []
        cell.brain.check_invariants(12.0)

    def test_nobody_is_squeezed_in_on_a_replica_that_is_ejected(self) -> None:
        cell = self.over_its_cap(Cell(ReplicaSpec("a", 8)))
        router = cell.brain.routers()["m"]
        while router.is_well("a"):  # each ends, and the next in its place fails as well
            cell.end(next(iter(cell.running)), Ending.FAILED)
            cell.ask("bulk", Tier.BATCH)
        cell.submit("chat", Tier.INTERACTIVE)
        assert Reason.SQUEEZED not in [decision.reason for decision in cell.at(11.0) if isinstance(decision, Granted)]

    def test_one_parked_when_no_replica_is_left_and_none_is_waited_for_is_told_when_its_end_comes(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        bulk = cell.ask("bulk", Tier.BATCH, can_park=True)
        cell.at(5.0)
        chat = cell.submit("chat", Tier.INTERACTIVE)[-1]
        (park,) = [decision for decision in cell.at(6.0) if isinstance(decision, Park)]
        cell.take(cell.brain.set_replicas("m", [], 6.0))
        assert ids(cell.at(9.0), Refused) == [chat.id]
        del cell.running[bulk.id]
        cell.take(cell.brain.parked(park.id, cell.asks[park.id], 9.0))
        assert cell.brain.next_event_s(9.0) == 9.0, "time alone decides nothing that was not announced"
        assert ids(cell.at(9.0), Refused) == [bulk.id]


class TestReports:
    def test_positions_tell_everybody_where_he_stands(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        cell.ask()
        urgent = [cell.ask("b", Tier.INTERACTIVE).id for _ in range(2)]
        patient = cell.ask("c", Tier.BATCH).id
        positions = {queued.id: queued.position for queued in cell.brain.positions(0.0)}
        assert positions == {urgent[0]: 1, urgent[1]: 2, patient: 3}

    def test_the_snapshot_counts_what_is_there(self) -> None:
        cell = Cell(ReplicaSpec("a", 2), ReplicaSpec("b", 1))
        names = [cell.ask("acme", Tier(at % 3)).id for at in range(6)]
        snapshot = cell.brain.snapshot(0.0)
        pool = snapshot.pools["m"]
        assert (snapshot.in_flight, snapshot.queued, snapshot.away) == (3, 3, 0)
        assert pool.capacity == 3
        assert pool.queued_by_tier == {Tier.INTERACTIVE: 1, Tier.STANDARD: 1, Tier.BATCH: 1}
        assert pool.in_flight_by_replica == {"a": 2, "b": 1}
        assert pool.caps == {"a": 2, "b": 1}
        cell.end(names[0], Ending.FAILED, is_final=False)
        assert cell.brain.snapshot(0.0).away == 1

    def test_the_jain_index_is_near_1_for_two_floods_by_weight_and_low_when_one_gets_nothing(self) -> None:
        cell = Cell(ReplicaSpec("a", 4))
        for tenant, weight in (("one", 1.0), ("two", 2.0)):
            cell.brain.set_terms(TenantTerms(tenant, weight=weight), 0.0)
        for _ in range(60):
            for tenant in ("one", "two", "two"):
                cell.ask(tenant, Tier.BATCH)
        for _ in range(100):
            cell.now_s += 0.1
            cell.end_oldest()
        assert cell.brain.snapshot(cell.now_s).pools["m"].jain_index > 0.95
        cell.brain.set_terms(concurrency("starved", 0), cell.now_s)
        cell.ask("starved")
        assert cell.brain.snapshot(cell.now_s).pools["m"].jain_index == pytest.approx(2 / 3, abs=0.05)


class TestBatchCap:
    def test_a_replica_that_is_too_slow_for_its_tiers_gets_fewer_and_more_when_it_holds(self) -> None:
        cell = Cell(ReplicaSpec("a", 10))
        for _ in range(12):
            cell.ask(tier=Tier.INTERACTIVE)
        cell.decode(0.2, seconds=1.0)
        cell.take(cell.brain.frame("a", StateFrame(), 1.0))
        assert cell.brain.snapshot(1.0).pools["m"].caps == {"a": 8}
        assert cell.brain.frame("stranger", StateFrame(), 1.0) == []
        for _ in range(2):
            assert ids(cell.end_oldest()) == []
        assert len(ids(cell.end_oldest())) == 1
        cell.decode(0.01, seconds=10.0)
        assert len(ids(cell.take(cell.brain.frame("a", StateFrame(), 11.0)))) == 1
        assert cell.brain.snapshot(11.0).pools["m"].caps == {"a": 9}

    def test_acceptance_of_speculation_is_shown_for_those_that_speculate(self) -> None:
        cell = Cell(ReplicaSpec("a", 10), ReplicaSpec("b", 10))
        cell.take(cell.brain.frame("a", StateFrame(acceptance_ratio=0.4), 1.0))
        cell.take(cell.brain.frame("b", StateFrame(running=1), 1.0))
        snapshot = cell.brain.snapshot(1.0)
        assert snapshot.pools["m"].acceptance == {"a": 0.4}
        assert observed(snapshot)["pools"]["m"]["acceptance"] == {"a": 0.4}

    def test_gaps_made_by_the_prompts_of_others_take_no_slot_away(self) -> None:
        """However slow it looks, fewer at once would not read them faster; nor is the engine's own word taken for it."""
        cell = Cell(ReplicaSpec("a", 4))
        for _ in range(3):
            cell.ask(tier=Tier.INTERACTIVE)
        cell.decode(0.02, seconds=1.0)
        decoding = list(cell.running)
        for second in range(1, 20):
            reading = cell.ask(tier=Tier.INTERACTIVE, prompt_tokens=4_000).id
            cell.at(second + 1.0)
            for name in decoding:
                cell.made[name] += 5
                cell.brain.progress(name, cell.made[name], cell.now_s)
            cell.take(cell.brain.frame("a", StateFrame(iteration_s=0.2), cell.now_s))
            cell.end(reading)
        assert cell.brain.snapshot(cell.now_s).pools["m"].caps == {"a": 4}


class TestReannounce:
    def test_what_runs_is_taken_as_it_is_and_counted_where_it_is_too_much(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        cell.brain.set_terms(concurrency("acme", 1), 0.0)
        for name, replica in (("one", "a"), ("two", "a"), ("three", "gone")):
            ask = Ask(id=name, model="m", tenant=name, key="k", prompt_tokens=10, max_tokens=10)
            cell.asks[name] = ask
            cell.brain.restore_running(ask, replica, age_s=5.0, completion_tokens=3, now_s=0.0)
            cell.brain.restore_running(ask, replica, age_s=5.0, completion_tokens=3, now_s=0.0)
            cell.brain.check_invariants(0.0)
        snapshot = cell.brain.snapshot(0.0)
        assert (snapshot.in_flight, snapshot.overcommitted) == (3, 2)
        assert isinstance(cell.ask(), Queued)
        cell.end("two")
        cell.end("three")
        assert cell.brain.snapshot(0.0).overcommitted == 0
        assert len(ids(cell.end("one"))) == 1

    def test_who_waited_keeps_its_place_and_is_never_refused(self) -> None:
        cell = Cell(ReplicaSpec("a", 1), max_queued=0)
        cell.brain.set_terms(TenantTerms("acme", limits=(Limit(Scope(ScopeKind.TENANT, "acme"), LimitKind.REQUESTS, 0),)), 0.0)
        cell.ask("bolt")
        for name, waited_s in (("young", 1.0), ("old", 20.0)):
            ask = Ask(id=name, model="m", tenant="acme", key="k", prompt_tokens=10, max_tokens=10)
            cell.asks[name] = ask
            own = cell.take(cell.brain.restore_waiting(ask, waited_s=waited_s, now_s=0.0))[-1]
            assert isinstance(own, Queued)
        assert ids(cell.end_oldest()) == ["old"]
        assert cell.at(28.0) == []
        assert ids(cell.at(29.0), Refused) == ["young"], "its 30 seconds began elsewhere"

    def test_what_was_settled_in_the_last_minute_still_counts(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        cell.brain.set_terms(TenantTerms("acme", limits=(Limit(Scope(ScopeKind.TENANT, "acme"), LimitKind.REQUESTS, 1),)), 0.0)
        ask = Ask(id="past", model="m", tenant="acme", key="k", prompt_tokens=10, max_tokens=10)
        cell.brain.restore_settled(ask, age_s=20.0, usage=Usage(10, 0, 5), now_s=0.0)
        refused = cell.ask()
        assert isinstance(refused, Refused)
        assert refused.retry_after_s == pytest.approx(40.0)
        cell.now_s = 40.0
        assert isinstance(cell.ask(), Granted)


class TestMoney:
    def test_a_refused_one_that_had_begun_pays_for_what_it_was_served(self) -> None:
        cell = Cell(ReplicaSpec("a", 1))
        cell.brain.set_terms(
            TenantTerms("acme", limits=(Limit(Scope(ScopeKind.TENANT, "acme"), LimitKind.BUDGET, 10_000),)), 0.0
        )
        price = TokenPrice(output_picos=1_000_000)
        begun = cell.ask(price=price)
        cell.brain.progress(begun.id, 7, 0.0)
        cell.end(begun.id, Ending.FAILED, is_final=False)
        cell.take(cell.brain.set_replicas("m", [], 0.0))
        cell.now_s = 5.0
        (refused,) = cell.take(cell.brain.submit(cell.asks[begun.id], 5.0))
        assert isinstance(refused, Refused)
        (budget,) = cell.brain.snapshot(5.0).limits.limits
        assert (budget.used, budget.reserved) == (7, 0)

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inference.policy.admission import (
    Admission,
    AdmissionTunables,
    Admit,
    Decision,
    Reason,
    Refuse,
    ReplicaSpec,
    Ticket,
    Wait,
)

TUNABLES = AdmissionTunables(queue_timeout_s=30.0, replica_hold_s=2.0, cool_down_s=2.0, max_cool_down_s=16.0)


def admission(*specs: ReplicaSpec, max_queued: int = 10) -> Admission:
    made = Admission(TUNABLES, max_queued=max_queued)
    assert made.set_replicas(specs, 0.0) == []
    return made


def ask(pool: Admission, number: int, now_s: float = 0.0, *excluded: str) -> Decision:
    return pool.submit(Ticket(number=number, excluded=frozenset(excluded)), now_s)[-1]


def replica_of(decision: Decision) -> str:
    assert isinstance(decision, Admit), decision
    return decision.replica


def test_it_takes_the_least_loaded_by_share_of_its_cap() -> None:
    pool = admission(ReplicaSpec("big", 4), ReplicaSpec("small", 1))
    chosen = [replica_of(ask(pool, number)) for number in range(5)]
    assert chosen.count("big") == 4
    assert chosen.count("small") == 1
    assert chosen[-1] == "big"


def test_equals_take_turns_even_when_every_request_ends_before_the_next_comes() -> None:
    pool = admission(ReplicaSpec("a", 4), ReplicaSpec("b", 4), ReplicaSpec("c", 4))
    chosen = []
    for number in range(9):
        chosen.append(replica_of(ask(pool, number)))
        pool.release(number, 0.0)
    assert chosen == ["a", "b", "c"] * 3


def test_who_came_first_gets_the_slot_that_becomes_free() -> None:
    pool = admission(ReplicaSpec("a", 1))
    ask(pool, 1)
    assert ask(pool, 2) == Wait(2, Reason.ALL_BUSY, 1)
    assert ask(pool, 3) == Wait(3, Reason.ALL_BUSY, 2)
    assert pool.release(1, 5.0) == [Admit(2, "a", Reason.FREE_SLOT, 5.0)]
    assert pool.release(2, 6.0) == [Admit(3, "a", Reason.FREE_SLOT, 6.0)]
    assert pool.release(2, 6.0) == [], "a slot is given back once"


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    pool = admission(ReplicaSpec("a", 1), max_queued=1)
    ask(pool, 1)
    ask(pool, 2)
    refused = ask(pool, 3)
    assert isinstance(refused, Refuse)
    assert refused.reason == Reason.QUEUE_FULL
    assert 1.0 <= refused.retry_after_s <= TUNABLES.max_retry_after_s
    assert isinstance(pool.release(1, 0.0)[0], Admit), "the one in the queue was not touched"


def test_the_time_to_come_back_follows_how_long_requests_run() -> None:
    pool = admission(ReplicaSpec("a", 1), max_queued=0)
    now_s = 0.0
    for number in range(100):
        ask(pool, number, now_s)
        now_s += 8.0
        pool.release(number, now_s)
    ask(pool, 1000, now_s)
    refused = ask(pool, 1001, now_s)
    assert isinstance(refused, Refuse)
    assert refused.retry_after_s == pytest.approx(8.0, rel=0.05)


def test_who_waits_too_long_is_refused_at_the_time_that_was_announced() -> None:
    pool = admission(ReplicaSpec("a", 1))
    ask(pool, 1)
    ask(pool, 2, 1.0)
    assert pool.next_event_s(1.0) == 31.0
    assert pool.expire(30.9) == []
    (refused,) = pool.expire(31.0)
    assert isinstance(refused, Refuse)
    assert (refused.ticket, refused.reason) == (2, Reason.QUEUE_TIMEOUT)
    assert pool.next_event_s(31.0) is None


def test_who_leaves_the_queue_leaves_no_gap_and_who_leaves_while_running_frees_the_slot() -> None:
    pool = admission(ReplicaSpec("a", 1))
    for number in (1, 2, 3):
        ask(pool, number)
    assert pool.cancel(2, 0.0) == []
    assert pool.cancel(1, 0.0) == [Admit(3, "a", Reason.FREE_SLOT, 0.0)]
    assert pool.cancel(99, 0.0) == []
    pool.check_invariants(0.0)


def test_an_excluded_replica_is_never_chosen_and_a_later_request_may_pass_one_that_cannot_use_the_slot() -> None:
    pool = admission(ReplicaSpec("a", 1), ReplicaSpec("b", 1))
    ask(pool, 1)
    ask(pool, 2)
    assert isinstance(ask(pool, 3, 0.0, "a"), Wait)
    assert isinstance(ask(pool, 4), Wait)
    assert pool.release(1, 0.0) == [Admit(4, "a", Reason.FREE_SLOT, 0.0)]
    assert pool.release(2, 0.0) == [Admit(3, "b", Reason.FREE_SLOT, 0.0)]


def test_who_has_tried_every_replica_is_refused_at_once() -> None:
    pool = admission(ReplicaSpec("a", 1), ReplicaSpec("b", 1))
    refused = ask(pool, 1, 0.0, "a", "b")
    assert isinstance(refused, Refuse)
    assert refused.reason == Reason.ALL_TRIED


def test_who_waits_for_the_last_replica_he_has_not_tried_is_refused_when_it_goes() -> None:
    pool = admission(ReplicaSpec("a", 1), ReplicaSpec("b", 1))
    ask(pool, 1)
    ask(pool, 2)
    ask(pool, 3, 0.0, "a")
    (refused,) = pool.set_replicas([ReplicaSpec("a", 1)], 0.0)
    assert isinstance(refused, Refuse)
    assert (refused.ticket, refused.reason) == (3, Reason.ALL_TRIED)


def test_a_model_that_never_had_a_replica_refuses_at_once() -> None:
    refused = ask(admission(), 1, 100.0)
    assert isinstance(refused, Refuse)
    assert refused.reason == Reason.NO_REPLICA
    assert refused.retry_after_s == TUNABLES.no_replica_retry_after_s


def test_when_the_last_replica_goes_requests_are_held_for_a_short_while() -> None:
    pool = admission(ReplicaSpec("a", 1))
    ask(pool, 1, 10.0)
    pool.set_replicas([], 10.0)
    assert ask(pool, 2, 11.0) == Wait(2, Reason.NO_REPLICA, 1)
    assert pool.next_event_s(11.0) == 12.0
    assert [type(decision) for decision in pool.set_replicas([ReplicaSpec("a", 2, epoch=1)], 11.5)] == [Admit]

    pool.set_replicas([], 20.0)
    ask(pool, 3, 20.0)
    (refused,) = pool.expire(22.0)
    assert isinstance(refused, Refuse)
    assert (refused.ticket, refused.reason) == (3, Reason.NO_REPLICA)
    assert isinstance(ask(pool, 4, 22.0), Refuse), "the hold is for the first moment, not for ever"


def test_what_runs_on_a_replica_that_goes_runs_on_and_keeps_its_slot() -> None:
    pool = admission(ReplicaSpec("a", 2))
    ask(pool, 1)
    ask(pool, 2)
    pool.set_replicas([], 0.0)
    pool.set_replicas([ReplicaSpec("a", 2)], 0.0)
    assert isinstance(ask(pool, 3), Wait)
    assert pool.release(1, 0.0) == [Admit(3, "a", Reason.FREE_SLOT, 0.0)]


def test_a_lower_cap_lets_nobody_new_in_until_enough_have_left() -> None:
    pool = admission(ReplicaSpec("a", 3))
    for number in (1, 2, 3, 4):
        ask(pool, number)
    pool.set_replicas([ReplicaSpec("a", 2)], 0.0)
    assert pool.release(1, 0.0) == []
    assert len(pool.release(2, 0.0)) == 1


class TestCoolDown:
    def test_a_replica_that_failed_is_left_alone_for_a_while(self) -> None:
        pool = admission(ReplicaSpec("a", 4), ReplicaSpec("b", 4))
        assert replica_of(ask(pool, 1)) == "a"
        pool.fail(1, 0.0)
        assert {replica_of(ask(pool, number)) for number in (2, 3, 4)} == {"b"}
        assert pool.snapshot(0.0).cooling_down == {"a"}
        assert replica_of(ask(pool, 5, 2.0)) == "a"

    def test_it_doubles_with_each_failure_up_to_a_bound_and_a_success_ends_it(self) -> None:
        pool = admission(ReplicaSpec("a", 4))
        now_s, lengths = 0.0, []
        for number in range(6):
            ask(pool, number, now_s)
            pool.fail(number, now_s)
            until_s = now_s
            while pool.snapshot(until_s).cooling_down:
                until_s += 0.5
            lengths.append(until_s - now_s)
            now_s = until_s
        assert lengths == [2.0, 4.0, 8.0, 16.0, 16.0, 16.0]
        ask(pool, 100, now_s)
        pool.release(100, now_s)
        ask(pool, 101, now_s)
        pool.fail(101, now_s)
        assert pool.snapshot(now_s + 2.0).cooling_down == frozenset()

    def test_requests_that_saw_the_same_failure_count_as_one(self) -> None:
        pool = admission(ReplicaSpec("a", 4), ReplicaSpec("b", 4))
        on_a = [number for number in range(8) if replica_of(ask(pool, number)) == "a"]
        assert len(on_a) == 4
        for number in on_a:
            pool.fail(number, 0.0)
        assert pool.snapshot(1.9).cooling_down == {"a"}
        assert pool.snapshot(2.0).cooling_down == frozenset()

    def test_a_success_of_before_the_failure_does_not_end_it(self) -> None:
        pool = admission(ReplicaSpec("a", 4))
        ask(pool, 1)
        ask(pool, 2)
        pool.fail(1, 0.0)
        pool.release(2, 0.0)
        assert pool.snapshot(0.0).cooling_down == {"a"}

    def test_the_one_that_failed_longest_ago_is_used_when_all_are_cooling_down(self) -> None:
        pool = admission(ReplicaSpec("a", 1), ReplicaSpec("b", 1))
        assert (replica_of(ask(pool, 1)), replica_of(ask(pool, 2))) == ("a", "b")
        pool.fail(2, 0.0)
        pool.fail(1, 0.0)
        assert ask(pool, 3) == Admit(3, "b", Reason.LAST_RESORT, 0.0)
        assert ask(pool, 4) == Admit(4, "a", Reason.LAST_RESORT, 0.0)

    def test_a_new_engine_is_not_blamed_for_the_old_one(self) -> None:
        pool = admission(ReplicaSpec("a", 4))
        ask(pool, 1)
        ask(pool, 2)
        pool.fail(1, 0.0)
        pool.set_replicas([ReplicaSpec("a", 4, epoch=1)], 0.0)
        assert pool.snapshot(0.0).cooling_down == frozenset()
        pool.fail(2, 0.0)
        assert pool.snapshot(0.0).cooling_down == frozenset(), "it ran on the old engine"

    def test_the_queue_is_looked_at_when_a_cool_down_ends(self) -> None:
        pool = admission(ReplicaSpec("a", 1), ReplicaSpec("b", 1))
        for number in (1, 2):
            ask(pool, number)
        pool.fail(1, 0.0)
        assert isinstance(ask(pool, 3), Wait), "b is warm, so a is spared"
        assert pool.next_event_s(0.0) == 2.0
        assert pool.expire(2.0) == [Admit(3, "a", Reason.FREE_SLOT, 2.0)]


REPLICAS = ("a", "b", "c")


class AdmissionMachine(RuleBasedStateMachine):
    """Any order of calls; the machine keeps its own account of who runs where."""

    @initialize(max_queued=st.integers(0, 5))
    def start(self, max_queued: int) -> None:
        self.pool = Admission(TUNABLES, max_queued=max_queued)
        self.max_queued = max_queued
        self.now_s = 0.0
        self.caps: dict[str, int] = {}
        self.next_number = 0
        self.waiting: dict[int, tuple[frozenset[str], float]] = {}
        self.running: dict[int, str] = {}

    def take(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Wait):
                assert decision.ticket in self.waiting
                continue
            excluded, since_s = self.waiting.pop(decision.ticket)  # decided once
            if isinstance(decision, Refuse):
                assert decision.retry_after_s > 0
                continue
            assert decision.replica not in excluded
            assert decision.replica in self.caps, "not ready"
            self.running[decision.ticket] = decision.replica
            assert list(self.running.values()).count(decision.replica) <= self.caps[decision.replica], "the cap"
            assert decision.waited_s == pytest.approx(self.now_s - since_s)
            for earlier, (other, _) in self.waiting.items():
                if earlier < decision.ticket:
                    assert other != excluded, "first come, first served"
                    assert decision.reason != Reason.FREE_SLOT or decision.replica in other, "he could have used it"

    @rule(excluded=st.frozensets(st.sampled_from(REPLICAS)))
    def submit(self, excluded: frozenset[str]) -> None:
        self.next_number += 1
        self.waiting[self.next_number] = (excluded, self.now_s)
        decisions = self.pool.submit(Ticket(number=self.next_number, excluded=excluded), self.now_s)
        assert decisions[-1].ticket == self.next_number
        self.take(decisions)

    @rule(data=st.data(), how=st.sampled_from(["release", "fail", "cancel"]))
    def end(self, data: Any, how: str) -> None:
        if self.running:
            number = data.draw(st.sampled_from(sorted(self.running)))
            del self.running[number]
            self.take(getattr(self.pool, how)(number, self.now_s))
            assert getattr(self.pool, how)(number, self.now_s) == []

    @rule(data=st.data())
    def leave_the_queue(self, data: Any) -> None:
        if self.waiting:
            number = data.draw(st.sampled_from(sorted(self.waiting)))
            del self.waiting[number]
            self.take(self.pool.cancel(number, self.now_s))

    @rule(caps=st.dictionaries(st.sampled_from(REPLICAS), st.integers(0, 3)), epoch=st.integers(0, 2))
    def set_replicas(self, caps: dict[str, int], epoch: int) -> None:
        self.caps = caps
        self.take(self.pool.set_replicas([ReplicaSpec(name, cap, epoch) for name, cap in caps.items()], self.now_s))

    @rule(duration_s=st.floats(0.0, 40.0))
    def time_passes(self, duration_s: float) -> None:
        next_s = self.pool.next_event_s(self.now_s)
        assert next_s is not None or not self.waiting
        until_s = self.now_s + duration_s
        if next_s is None or until_s < next_s:
            self.now_s = until_s
            assert self.pool.expire(until_s) == [], "time decides nothing before the time that was announced"
        else:
            self.now_s = until_s
            self.take(self.pool.expire(until_s))
        for _, since_s in self.waiting.values():
            assert since_s + TUNABLES.queue_timeout_s > self.now_s

    @invariant()
    def its_account_is_ours(self) -> None:
        self.pool.check_invariants(self.now_s)
        snapshot = self.pool.snapshot(self.now_s)
        assert snapshot.in_flight == len(self.running)
        assert snapshot.queued == len(self.waiting) <= self.max_queued
        assert self.pool.is_idle() == (not self.running and not self.waiting)


AdmissionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrderOfCalls = AdmissionMachine.TestCase

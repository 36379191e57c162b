"""How many replicas are to serve: up, down, to zero, and never on what nobody knows."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.policy.autoscale import Decision, Memory, PoolSeen, ReplicaSeen, Why, decide
from inference.policy.autoscale_load import late_share, quantile, replicas_for
from inference.policy.autoscale_tunables import AutoscaleTunables, ScaleBounds

TUNABLES = AutoscaleTunables()
RATE = 1000.0
TICK_S = 5.0


def replica(in_flight: int = 0, *, seen_s_ago: float | None = 0.5, kv: float = 0.1) -> ReplicaSeen:
    return ReplicaSeen(in_flight, cap=10, kv_used_ratio=kv, seen_s_ago=seen_s_ago)


class Rig:
    """A pool looked at every five seconds; what is decided is there at the next look."""

    def __init__(self, *, serving: int = 1, least: int = 0, most: int = 20, idle_s: float = 900.0) -> None:
        self.bounds = ScaleBounds(least, most, idle_s)
        self.memory, self.serving, self.now_s, self.second = Memory(), serving, 1_000_000.0, 0
        self.changes: list[tuple[float, int, int]] = []

    def look(
        self,
        tokens_per_s: float = 0.0,
        *,
        in_flight: int = 0,
        waiting: int = 0,
        replicas: list[ReplicaSeen] | None = None,
        answers: bool = True,
    ) -> Decision:
        self.now_s += TICK_S
        self.second += int(TICK_S)
        seen = PoolSeen(
            serving=self.serving,
            clock="d/1",
            second=self.second,
            work=(tokens_per_s,) * int(TICK_S),
            in_flight=in_flight,
            waiting=waiting,
            replicas=tuple([replica()] * self.serving if replicas is None else replicas),
            tokens_per_s=RATE,
            ttft_s=2.0,
        )
        decision, self.memory = decide(
            seen if answers else None,
            self.memory,
            self.bounds,
            serving=self.serving,
            now_s=self.now_s,
            tunables=TUNABLES,
        )
        if decision.desired != self.serving:
            self.changes.append((self.now_s, self.serving, decision.desired))
        self.serving = decision.desired
        return decision

    def looks(self, count: int, tokens_per_s: float = 0.0, **more: Any) -> None:
        for _ in range(count):
            self.look(tokens_per_s, **more)

    @property
    def reversals(self) -> int:
        """Steps in the other direction within the pause after one."""
        pairs = [(a, b) for i, b in enumerate(self.changes) for a in self.changes[:i]]
        return sum(b[0] - a[0] < TUNABLES.reversal_pause_s and (a[2] > a[1]) != (b[2] > b[1]) for a, b in pairs)


def test_a_steady_load_gets_what_it_needs_and_no_more() -> None:
    rig = Rig()
    rig.looks(60, 3.0 * RATE)
    assert rig.serving == 4  # 3 at 80 % of what they can
    rig.looks(60, 3.0 * RATE)
    assert rig.serving == 4


def test_slots_and_kv_are_load_as_prompts_are() -> None:
    rig = Rig(serving=2)
    rig.looks(10, 1.0, in_flight=20)
    assert rig.serving == 3, "two replicas whose slots are all taken"
    full = Rig(serving=2)
    for _ in range(10):
        full.look(1.0, in_flight=1, replicas=[replica(1, kv=0.95)] * full.serving)
    assert full.serving > 2


def test_what_waits_too_long_is_worked_off() -> None:
    rig = Rig(serving=2)
    behind = ReplicaSeen(1, cap=10, queued_tokens=20 * RATE, kv_used_ratio=0.1, seen_s_ago=0.1)
    decision = rig.look(RATE, in_flight=2, replicas=[behind, behind])
    assert (decision.why, decision.desired) == (Why.BACKLOG, 5)


def test_down_is_one_at_a_time_after_a_while_and_only_where_the_others_can_take_it() -> None:
    rig = Rig(serving=1)
    rig.looks(60, 3.0 * RATE)
    up_to = rig.serving
    rig.changes.clear()
    rig.looks(400, 0.3 * RATE)
    assert rig.serving == 1
    assert all(before - after == 1 for _, before, after in rig.changes)
    assert rig.changes[0][0] >= rig.now_s - 400 * TICK_S + TUNABLES.lookback_s
    gaps = [b[0] - a[0] for a, b in pairwise(rig.changes)]
    assert len(rig.changes) == up_to - 1 and min(gaps) >= TUNABLES.down_pause_s


def test_one_less_must_be_able_to_take_the_load() -> None:
    rig = Rig(serving=2, most=2)
    rig.looks(200, 0.7 * RATE)  # one would do at 80 %, and would be used beyond what is left to those that stay
    assert rig.serving == 2
    assert rig.look(0.7 * RATE).why is Why.LAST_CHECK


def test_zero_traffic_is_data_and_a_pool_goes_to_zero_after_its_time() -> None:
    rig = Rig(serving=3, idle_s=300.0)
    rig.looks(59)
    assert rig.serving > 0
    rig.looks(3)
    assert rig.serving == 0
    rig.looks(50)
    assert rig.serving == 0


def test_a_pool_with_a_minimum_never_goes_to_zero() -> None:
    rig = Rig(serving=3, least=1, idle_s=300.0)
    rig.looks(500)
    assert rig.serving == 1


def test_something_that_runs_keeps_it_from_zero() -> None:
    rig = Rig(serving=1, idle_s=60.0)
    rig.looks(100, 0.0, in_flight=1)
    assert rig.serving == 1


def test_a_request_that_waits_at_zero_gets_one() -> None:
    rig = Rig(serving=0)
    decision = rig.look(100.0, waiting=40, replicas=[])
    assert decision.desired == 1
    assert Rig(serving=0).look(waiting=1, replicas=[]).why is Why.ASKED


def test_b120_one_replica_without_metrics_does_not_stop_scaling_and_all_without_do() -> None:
    broken, fine = replica(9, seen_s_ago=None), replica(9)
    rig = Rig(serving=4)
    for _ in range(6):
        rig.look(6.0 * RATE, in_flight=36, replicas=[broken, *[fine] * (rig.serving - 1)])
    assert rig.serving == 8
    for seen_s_ago in (None, TUNABLES.stale_s + 1):
        stale = Rig(serving=4)
        for _ in range(100):
            old = [replica(0, seen_s_ago=seen_s_ago)] * 4
            assert stale.look(0.0, replicas=old).why is Why.STALE
            assert stale.look(60.0 * RATE, replicas=old).why is Why.STALE
        assert stale.serving == 4


def test_b120_nobody_who_answers_means_as_many_as_before_never_zero() -> None:
    rig = Rig(serving=3, idle_s=60.0)
    for _ in range(100):
        assert rig.look(answers=False).why is Why.UNKNOWN
    assert rig.serving == 3


def test_bounds_hold_even_when_nothing_is_known() -> None:
    rig = Rig(serving=1, least=2)
    decision = rig.look(answers=False)
    assert (decision.desired, decision.why) == (2, Why.BOUNDS)


def test_another_dispatcher_counts_other_seconds() -> None:
    rig = Rig()
    rig.looks(4, RATE)
    before = rig.memory.work
    seen = PoolSeen(serving=1, clock="d/2", second=3, work=(5.0, 5.0), replicas=(replica(),), tokens_per_s=RATE, ttft_s=2.0)
    _, memory = decide(seen, rig.memory, rig.bounds, serving=1, now_s=rig.now_s + 5, tunables=TUNABLES)
    assert memory.work == (*before, 5.0, 5.0)
    _, again = decide(replace(seen, second=4), memory, rig.bounds, serving=1, now_s=rig.now_s + 6, tunables=TUNABLES)
    assert again.work == (*memory.work, 5.0), "a second is counted once"


@given(st.lists(st.integers(min_value=0, max_value=12), min_size=20, max_size=150), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_whatever_comes_there_is_a_pause_before_a_step_back(loads: list[int], least: int) -> None:
    rig = Rig(serving=max(1, least), least=least, most=15, idle_s=1e9)
    for load in loads:
        rig.look(load * RATE, in_flight=load, waiting=0)
        assert least <= rig.serving <= 15
    assert rig.reversals == 0


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60), st.floats(0.5, 5.0))
@settings(max_examples=60, deadline=None)
def test_more_capacity_is_never_later_and_the_least_is_found(work: list[int], within_s: float) -> None:
    shares = [late_share(work, capacity=count * RATE, within_s=within_s) for count in range(1, 30)]
    assert shares == sorted(shares, reverse=True)
    found = replicas_for(work, rate=RATE, within_s=within_s, late_ratio=0.05, most=29)
    if any(work):
        assert found == next((index + 1 for index, share in enumerate(shares) if share <= 0.05), 29)
    else:
        assert found == 0


def test_a_queue_that_is_never_behind_is_never_late() -> None:
    assert late_share([900.0] * 50, capacity=1000.0, within_s=1.0) == 0.0
    assert late_share([3000.0, 0, 0], capacity=1000.0, within_s=1.0) == pytest.approx(2 / 3)
    assert (quantile([], 0.9), quantile([1.0, 2.0, 3.0], 0.5)) == (0.0, 2.0)

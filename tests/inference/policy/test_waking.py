"""A pool at zero that is woken by those who ask: who waits how long, and who is refused."""

from dataclasses import replace

import pytest

from inference.policy.brain import Brain
from inference.policy.brain_tunables import BrainTunables
from inference.policy.decisions import Ask, Ending, Granted, Queued, Reason, Refused, ReplicaSpec, Tier, Usage
from inference.policy.routing import Router, RoutingTunables
from inference.policy.split import Versions

HOLD_S, START_S = 60.0, 8.0


@pytest.fixture
def brain() -> Brain:
    brain = Brain(BrainTunables(), lambda _model: Router(RoutingTunables()))
    brain.set_pool("m", max_queued=500, targets={}, now_s=0.0)
    brain.set_waking("m", hold_limit_s=HOLD_S, start_s=START_S)
    return brain


def ask(number: int, *, deadline_s: float | None = None, tier: Tier = Tier.STANDARD) -> Ask:
    return Ask(
        id=f"r{number}", model="m", tenant="t", key="k", tier=tier, prompt_tokens=10, max_tokens=10, deadline_s=deadline_s
    )


def ready(brain: Brain, now_s: float, slots: int = 4) -> list[Granted]:
    decisions = brain.set_replicas("m", [ReplicaSpec("a", slots)], now_s)
    return [one for one in decisions if isinstance(one, Granted)]


def test_who_asks_of_a_pool_at_zero_waits_with_a_place_and_an_estimate(brain: Brain) -> None:
    first, second = (brain.submit(ask(number), 1.0)[-1] for number in range(2))
    assert isinstance(first, Queued) and isinstance(second, Queued)
    assert (first.reason, first.position, second.position) == (Reason.WAKING, 1, 2)
    assert first.predicted_wait_s == START_S
    assert [one.predicted_wait_s for one in brain.positions(4.0)] == [START_S - 3.0] * 2
    assert brain.waiting_to_wake() == ["m"]
    brain.check_invariants(4.0)


def test_all_are_served_once_it_is_awake_and_nobody_waits_to_wake_it_then(brain: Brain) -> None:
    for number in range(10):
        brain.submit(ask(number), 1.0)
    granted = ready(brain, 9.0)
    assert len(granted) == 4 and not brain.waiting_to_wake()
    done: list[str] = []
    while granted:
        one = granted.pop(0)
        done.append(one.id)
        granted += [more for more in brain.end(one.id, Ending.WELL, Usage(), 10.0) if isinstance(more, Granted)]
    assert sorted(done) == sorted(f"r{number}" for number in range(10))
    brain.check_invariants(10.0)


def test_beyond_the_limit_they_are_refused_with_a_time_to_come_back(brain: Brain) -> None:
    brain.submit(ask(1), 0.0)
    assert brain.expire(HOLD_S - 0.1) == []
    (refused,) = brain.expire(HOLD_S + 0.1)
    assert isinstance(refused, Refused) and refused.reason is Reason.NO_REPLICA
    assert refused.retry_after_s == BrainTunables().no_replica_retry_after_s
    assert not brain.waiting_to_wake()


def test_a_deadline_that_comes_sooner_holds(brain: Brain) -> None:
    brain.submit(ask(1, deadline_s=5.0), 0.0)
    (refused,) = brain.expire(5.1)
    assert isinstance(refused, Refused)


def test_who_leaves_leaves_the_queue(brain: Brain) -> None:
    brain.submit(ask(1), 0.0)
    brain.cancel("r1", None, 1.0)
    assert brain.snapshot(1.0).queued == 0 and not brain.waiting_to_wake()
    assert ready(brain, 2.0) == []


def test_when_nobody_can_start_anything_all_are_refused_and_so_are_those_who_come(brain: Brain) -> None:
    brain.submit(ask(1), 10.0)
    (refused,) = brain.cannot_wake("m", until_s=15.0, now_s=10.5)
    assert isinstance(refused, Refused) and refused.reason is Reason.NO_REPLICA and refused.retry_after_s
    assert isinstance(brain.submit(ask(2), 12.0)[-1], Refused)
    assert isinstance(brain.submit(ask(3), 15.0)[-1], Queued), "then it is tried again"


def test_after_it_woke_who_waits_for_a_slot_may_wait_as_long_as_ever() -> None:
    brain = Brain(BrainTunables(queue_timeout_s=30.0), lambda _model: Router(RoutingTunables()))
    brain.set_pool("m", max_queued=500, targets={}, now_s=0.0)
    brain.set_waking("m", hold_limit_s=5.0, start_s=3.0)
    for number in range(2):
        brain.submit(ask(number), 0.0)
    assert len(ready(brain, 4.0, slots=1)) == 1
    assert brain.expire(20.0) == []
    assert [type(one) for one in brain.expire(30.1)] == [Refused]


def test_a_pool_that_is_not_woken_refuses_as_ever() -> None:
    brain = Brain(BrainTunables(), lambda _model: Router(RoutingTunables()))
    brain.set_pool("m", max_queued=500, targets={}, now_s=0.0)
    assert isinstance(brain.submit(ask(1), 0.0)[-1], Refused)


def test_a_model_that_is_dropped_while_it_is_woken_refuses_those_who_wait(brain: Brain) -> None:
    brain.submit(ask(1), 0.0)
    (refused,) = brain.drop_pool("m", 1.0)
    assert isinstance(refused, Refused) and not brain.waiting_to_wake()


def test_one_that_is_no_longer_woken_by_requests_refuses_those_who_wait_with_the_next_news(brain: Brain) -> None:
    brain.submit(ask(1), 0.0)
    brain.set_waking("m", hold_limit_s=0.0, start_s=0.0)
    (refused,) = brain.set_replicas("m", [], 1.0)
    assert isinstance(refused, Refused)


def test_the_stable_version_alone_is_woken_and_takes_over_from_a_candidate_without_replicas(brain: Brain) -> None:
    split = Versions("v1", candidate="v2", candidate_share_ppm=1_000_000, salt="s")
    brain.set_replicas("m", [], 0.0, split)
    queued = brain.submit(replace(ask(1), conversation=b"c"), 1.0)[-1]
    assert isinstance(queued, Queued) and queued.reason is Reason.WAKING
    assert brain.waiting_to_wake() == ["m"]
    decisions = brain.set_replicas("m", [ReplicaSpec("a", 4, version="v1")], 2.0, split)
    assert [type(one) for one in decisions] == [Granted]
    brain.check_invariants(2.0)


def test_those_who_wait_for_the_stable_version_wait_on_when_another_becomes_that(brain: Brain) -> None:
    brain.set_replicas("m", [], 0.0, Versions("v1", candidate="v2", salt="s"))
    brain.submit(ask(1), 1.0)
    assert not any(isinstance(one, Refused) for one in brain.set_replicas("m", [], 2.0, Versions("v2")))
    assert brain.waiting_to_wake() == ["m"]
    decisions = brain.set_replicas("m", [ReplicaSpec("a", 4, version="v2")], 3.0, Versions("v2"))
    assert Granted in [type(one) for one in decisions]
    brain.check_invariants(3.0)

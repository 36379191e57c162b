"""A prompt that nobody here can count: its bound is reserved, its likely size is what work and waits are predicted from."""

from hypothesis import given
from hypothesis import strategies as st

from inference.policy.decisions import (
    Granted,
    Limit,
    LimitKind,
    Queued,
    Reason,
    Refused,
    ReplicaSpec,
    Scope,
    ScopeKind,
    TenantTerms,
)
from inference.policy.routing import Router, RoutingTunables
from tests.inference.policy.routing_cast import Desk, spec
from tests.inference.policy.test_brain import Cell

BOUND, LIKELY = 200_000, 4_000


def slow_cell() -> Cell:
    """One slot, taken; a prompt of LIKELY tokens takes 4 s there, one of BOUND tokens 200 s."""
    cell = Cell(ReplicaSpec("a", 1, prefill_tokens_per_s=1_000.0))
    cell.ask()
    return cell


def test_b101_a_big_prompt_is_refused_for_what_it_likely_is_and_not_for_its_bound() -> None:
    cell = slow_cell()
    first = cell.ask(prompt_tokens=BOUND, likely_prompt_tokens=LIKELY)
    second = cell.ask(prompt_tokens=BOUND, likely_prompt_tokens=LIKELY)
    assert isinstance(first, Queued) and isinstance(second, Queued)
    assert 4.0 <= second.predicted_wait_s < 6.0
    counted = slow_cell()
    counted.ask(prompt_tokens=BOUND)
    refused = counted.ask(prompt_tokens=BOUND)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.DEADLINE


def test_what_is_reserved_is_the_bound() -> None:
    limit = Limit(Scope(ScopeKind.TENANT, "acme"), LimitKind.INPUT_TOKENS, BOUND)
    cell = Cell(ReplicaSpec("a", 4))
    cell.brain.set_terms(TenantTerms("acme", limits=(limit,)), 0.0)
    granted = cell.ask(prompt_tokens=BOUND, likely_prompt_tokens=LIKELY)
    refused = cell.ask(prompt_tokens=1, likely_prompt_tokens=1)
    assert isinstance(granted, Granted) and isinstance(refused, Refused)
    assert refused.hit is not None
    assert (refused.hit.reserved, refused.hit.limit) == (BOUND, limit)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60)), min_size=1, max_size=30))
def test_no_estimate_changes_what_limits_decide(asks: list[tuple[int, int]]) -> None:
    limit = Limit(Scope(ScopeKind.TENANT, "acme"), LimitKind.INPUT_TOKENS, 200)
    outcomes = []
    for with_estimate in (False, True):
        cell = Cell(ReplicaSpec("a", 100))
        cell.brain.set_terms(TenantTerms("acme", limits=(limit,)), 0.0)
        for bound, likely in asks:
            cell.ask(prompt_tokens=bound, likely_prompt_tokens=likely if with_estimate else None)
        limits = cell.brain.snapshot(0.0).limits.limits
        outcomes.append(([type(decision) for decision in cell.decisions], [(use.used, use.reserved) for use in limits]))
    assert outcomes[0] == outcomes[1]


def test_nobody_is_refused_for_a_speed_that_is_a_guess() -> None:
    cell = Cell(ReplicaSpec("a", 1))
    cell.ask()
    decisions = [cell.ask(prompt_tokens=10_000_000) for _ in range(3)]
    assert all(isinstance(decision, Queued) for decision in decisions)


def test_first_tokens_that_come_faster_than_is_thought_possible_are_learnt_from() -> None:
    desk = Desk([spec("a")], RoutingTunables(prefill_tokens_per_s=1_000.0))
    before_s = desk.router.predicted_wait_s(100_000, 0, 0.0)
    name, _ = desk.send(tokens=100_000)
    desk.router.first_token(name, 0.005)
    assert desk.router.predicted_wait_s(100_000, 0, 0.005) < before_s / 100


def test_a_first_token_that_says_nothing_of_the_prompt_leaves_the_speed_alone() -> None:
    router = Router(RoutingTunables(prefill_tokens_per_s=1_000.0))
    router.set_replicas([spec("a")], 0.0)
    desk = Desk([spec("a")], RoutingTunables(prefill_tokens_per_s=1_000.0))
    name, _ = desk.send(tokens=10)
    desk.router.first_token(name, 0.03)
    assert desk.router.predicted_wait_s(10_000, 0, 0.03) == router.predicted_wait_s(10_000, 0, 0.03)

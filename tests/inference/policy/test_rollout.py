"""A rollout's gates and steps: simulated candidates, good and bad, with a clock that is an argument."""

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.policy.judging import joined, judge, judge_health, judge_similarity
from inference.policy.rollout import PPM, Decision, Next, Plan, Step, Wanted, next_step, replicas_for, with_pins
from inference.policy.rollout_gates import CandidateHealth, Gates, Outcome, Verdict, Window

GATES = Gates()
SHARES = (10_000, 50_000, 250_000, 500_000)
PLAN = Plan(steps=tuple(Step(share, min_duration_s=300, min_samples=150) for share in SHARES), gates=GATES)
LOOK_EVERY_S = 5.0
REQUESTS_PER_S = 40.0


@dataclass(frozen=True)
class Version:
    """How a version answers."""

    failing: float = 0.005
    ttft_ms: float = 200.0
    inter_token_ms: float = 30.0


@dataclass
class Seen:
    attempts: int = 0
    failed: int = 0

    def __post_init__(self) -> None:
        self.ttft_ms: list[float] = []
        self.inter_token_ms: list[float] = []

    def request(self, version: Version, rng: random.Random) -> None:
        self.attempts += 1
        if rng.random() < version.failing:
            self.failed += 1
            return
        self.ttft_ms.append(version.ttft_ms * rng.lognormvariate(0, 0.6))
        self.inter_token_ms.append(version.inter_token_ms * rng.lognormvariate(0, 0.25))

    def window(self) -> Window:
        """At most the newest 2,000 of each measure, as the service reads them."""
        answered = self.attempts - self.failed
        ttft, inter_token = (tuple(sorted(each[-2000:])) for each in (self.ttft_ms, self.inter_token_ms))
        return Window(answered=answered, failed=self.failed, ttft_ms=ttft, inter_token_ms=inter_token)


def run_step(
    step: Step, stable: Version, candidate: Version, rng: random.Random, *, at_most_s: float
) -> tuple[Next, float, int]:
    """What ended the step, after how many seconds, and how many attempts of the candidate."""
    old, new, now_s = Seen(), Seen(), 0.0
    while now_s < at_most_s:
        now_s += LOOK_EVERY_S
        for _ in range(int(REQUESTS_PER_S * LOOK_EVERY_S)):
            is_candidate = rng.random() * PPM < step.share_ppm
            (new if is_candidate else old).request(candidate if is_candidate else stable, rng)
        verdict = judge(GATES, stable=old.window(), candidate=new.window())
        decision = next_step(step, verdict, elapsed_s=now_s, num_samples=new.attempts)
        if decision.next is not Next.STAY:
            return decision.next, now_s, new.attempts
    return Next.STAY, now_s, new.attempts


def test_a_candidate_that_is_no_worse_is_seldom_rolled_back_and_gets_through() -> None:
    """Each step is looked at every 5 s until it is left. (Of 300 such steps, with other seeds, none was a false alarm.)"""
    rng, ends = random.Random(1), []
    for _ in range(4):
        for step in PLAN.steps[1:]:
            ends.append(run_step(step, Version(), Version(), rng, at_most_s=3600)[0])
    assert ends.count(Next.ROLL_BACK) <= 1
    assert ends.count(Next.GO_ON) >= len(ends) - 1


@pytest.mark.parametrize(
    ("candidate", "at_most"),
    [
        (Version(failing=0.10), 400),
        (Version(failing=1.0), 30),
        (Version(ttft_ms=600), 250),
        (Version(inter_token_ms=90), 60),
    ],
    ids=["failing 10 %", "failing all", "first token 3 times as late", "3 times as slow"],
)
def test_a_bad_candidate_is_rolled_back_within_so_many_of_its_requests(candidate: Version, at_most: int) -> None:
    for seed in range(10):
        end, took_s, attempts = run_step(PLAN.steps[1], Version(), candidate, random.Random(seed), at_most_s=1200)
        assert end is Next.ROLL_BACK
        assert attempts <= at_most, (took_s, attempts)


def test_insufficient_data_is_no_pass_however_long_it_lasts() -> None:
    step = PLAN.steps[0]
    few = Window(answered=step.min_samples - 1, ttft_ms=(1.0,) * 100, inter_token_ms=(1.0,) * 100)
    many = Window(answered=5000, ttft_ms=(1.0,) * 2000, inter_token_ms=(1.0,) * 2000)
    decision = next_step(step, judge(GATES, stable=many, candidate=few), elapsed_s=1e9, num_samples=few.attempts)
    assert decision == Decision(Next.STAY, f"insufficient data: {few.attempts} of 150 requests")
    unmeasured = Window(answered=500)
    verdict = judge(GATES, stable=many, candidate=unmeasured)
    assert verdict.outcome is Outcome.INSUFFICIENT
    assert next_step(step, verdict, elapsed_s=1e9, num_samples=500).next is Next.STAY


def test_without_a_stable_version_in_the_same_window_nothing_passes() -> None:
    alone = Window(answered=5000, ttft_ms=(1.0,) * 2000, inter_token_ms=(1.0,) * 2000)
    assert judge(GATES, stable=Window(), candidate=alone).outcome is Outcome.INSUFFICIENT


def test_a_step_lasts_as_long_as_it_is_to() -> None:
    window = Window(answered=5000, ttft_ms=(1.0,) * 2000, inter_token_ms=(1.0,) * 2000)
    verdict = judge(GATES, stable=window, candidate=window)
    assert verdict.outcome is Outcome.PASS
    assert next_step(PLAN.steps[0], verdict, elapsed_s=299, num_samples=5000).next is Next.STAY
    assert next_step(PLAN.steps[0], verdict, elapsed_s=300, num_samples=5000).next is Next.GO_ON


COUNTS = st.tuples(st.integers(0, 400), st.integers(0, 400))


@given(COUNTS, COUNTS, st.integers(1, 50))
def test_one_more_failure_of_the_candidate_never_makes_the_verdict_better(
    stable: tuple[int, int], candidate: tuple[int, int], more: int
) -> None:
    order = [Outcome.PASS, Outcome.INSUFFICIENT, Outcome.BREACH]
    old = Window(answered=stable[0], failed=stable[1])
    new = Window(answered=candidate[0] + more, failed=candidate[1])
    worse = Window(answered=candidate[0], failed=candidate[1] + more)
    only = Gates(max_length_rise=None, ttft_p50_ratio=None, ttft_p95_ratio=None, inter_token_p50_ratio=None)
    only = replace(only, inter_token_p95_ratio=None)
    before, after = (judge(only, stable=old, candidate=each).outcome for each in (new, worse))
    assert order.index(after) >= order.index(before)


@given(st.lists(st.floats(0, 1e5), max_size=300), st.lists(st.floats(0, 1e5), max_size=300))
def test_a_faster_candidate_is_never_a_breach(stable: list[float], candidate: list[float]) -> None:
    stable.sort()
    faster = tuple(sorted(min(each, stable[0]) if stable else each for each in candidate))
    verdict = judge(GATES, stable=Window(ttft_ms=tuple(stable)), candidate=Window(ttft_ms=faster))
    assert verdict.outcome is not Outcome.BREACH


def test_answers_that_end_by_their_length_more_often_are_a_breach() -> None:
    stable, candidate = Window(answered=1000, too_long=100), Window(answered=300, too_long=200)
    findings = {finding.gate: finding for finding in judge(GATES, stable=stable, candidate=candidate).findings}
    assert findings["too long"].outcome is Outcome.BREACH
    assert findings["errors"].outcome is Outcome.PASS
    assert (findings["too long"].stable_samples, findings["too long"].candidate_samples) == (1000, 300)


def test_a_gate_that_is_off_says_nothing() -> None:
    off = Gates(None, None, None, None, None, None)
    assert judge(off, stable=Window(), candidate=Window(failed=1000)) == Verdict(Outcome.PASS, ())
    assert judge_similarity(off, [0.0] * 100).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("health", "outcome"),
    [
        (CandidateHealth(ready=2, needed=2), Outcome.PASS),
        (CandidateHealth(ready=1, needed=2), Outcome.INSUFFICIENT),
        (CandidateHealth(ready=0, needed=2), Outcome.INSUFFICIENT),
        (CandidateHealth(ready=0, needed=2, has_failed=True), Outcome.BREACH),
        (CandidateHealth(ready=1, needed=2, has_failed=True), Outcome.INSUFFICIENT),
        (CandidateHealth(ready=0, needed=0), Outcome.PASS),
        (CandidateHealth(ready=1, needed=1, failed_starts=2), Outcome.PASS),
        (CandidateHealth(ready=1, needed=1, failed_starts=3), Outcome.BREACH),
        (CandidateHealth(ready=1, needed=1, held="golden prompt 1 differs"), Outcome.BREACH),
        (CandidateHealth(ready=1, needed=2, starting_s=601), Outcome.BREACH),
        (CandidateHealth(ready=1, needed=2, staging_s=7201), Outcome.BREACH),
    ],
)
def test_b130_a_state_follows_the_engines(health: CandidateHealth, outcome: Outcome) -> None:
    assert judge_health(GATES, health).outcome is outcome


def test_a_breach_outweighs_and_insufficient_is_no_pass() -> None:
    ok, few, bad = (Verdict(outcome, judge_health(GATES, CandidateHealth(1, 1)).findings) for outcome in Outcome)
    assert joined().outcome is Outcome.PASS
    breach = joined(few, judge_health(GATES, CandidateHealth(0, 1, has_failed=True)), ok)
    assert breach.outcome is Outcome.BREACH
    assert breach.reasons == ("none of its replicas serves, and requests go there",)
    assert bad.outcome is Outcome.BREACH


@given(st.integers(0, PPM), st.integers(0, 200))
def test_a_candidate_has_replicas_for_its_share(share_ppm: int, desired: int) -> None:
    number = replicas_for(share_ppm, desired)
    assert 1 <= number <= max(1, desired)
    assert number * PPM >= desired * share_ppm


def test_a_pinned_version_keeps_one_that_serves() -> None:
    assert with_pins(Wanted(), is_pinned=True) == Wanted(serving=1)
    assert with_pins(Wanted(warm=2), is_pinned=True) == Wanted(serving=1, warm=1)
    assert with_pins(Wanted(serving=3, warm=1), is_pinned=True) == Wanted(serving=3, warm=1)
    assert with_pins(Wanted(warm=2), is_pinned=False) == Wanted(warm=2)

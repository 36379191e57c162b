"""Bounds of shares, quantiles and means hold as often as they say."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.policy.bounds import MIN_FOR_MEAN, mean, quantile, share, share_rise

HITS = st.integers(0, 300).flatmap(lambda samples: st.tuples(st.integers(0, samples), st.just(samples)))


@given(HITS, st.sampled_from([0.8, 0.95, 0.999]))
def test_a_share_lies_between_its_bounds_and_they_between_none_and_all(of: tuple[int, int], confidence: float) -> None:
    found = share(*of, confidence)
    assert 0 <= found.low <= found.value + 1e-12 or of[1] == 0
    assert found.value - 1e-12 <= found.high <= 1


@given(HITS, HITS)
def test_a_rise_is_the_other_way_round_when_the_versions_are(before: tuple[int, int], after: tuple[int, int]) -> None:
    there, back = share_rise(before, after, 0.95), share_rise(after, before, 0.95)
    assert math.isclose(there.low, -back.high, abs_tol=1e-9)
    assert -1 - 1e-9 <= there.low <= there.high <= 1 + 1e-9


def test_wilson_and_newcombe_agree_with_printed_examples() -> None:
    """Newcombe 1998, table II, example (a): 56 of 70 against 48 of 80, two-sided 95 %: 0.0524 to 0.3339."""
    found = share_rise((48, 80), (56, 70), 0.975)
    assert found.low == pytest.approx(0.0524, abs=5e-4)
    assert found.high == pytest.approx(0.3339, abs=5e-4)
    ten = share(0, 10, 0.975)  # Wilson for 0 of 10: 0 to 0.2775
    assert ten.low == pytest.approx(0, abs=1e-9)
    assert ten.high == pytest.approx(0.2775, abs=5e-4)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=400), st.sampled_from([0.5, 0.95]))
def test_more_confidence_never_makes_the_bounds_of_a_quantile_narrower(values: list[float], at: float) -> None:
    values.sort()
    sure, surer = quantile(values, at, 0.95), quantile(values, at, 0.999)
    assert surer.low <= sure.low <= sure.high <= surer.high


def test_too_few_samples_say_nothing_of_a_high_quantile() -> None:
    assert quantile([1.0] * 58, 0.95, 0.95).high == math.inf  # 0.95 ** 58 > 0.05
    assert quantile([1.0] * 59, 0.95, 0.95).high == 1.0


@pytest.mark.parametrize("at", [0.5, 0.95])
def test_the_bounds_of_a_quantile_miss_it_no_more_often_than_they_say(at: float) -> None:
    rng, rounds, beyond = random.Random(7), 1500, [0, 0]
    truth = math.exp(math.log(200) + 0.6 * {0.5: 0.0, 0.95: 1.6449}[at])
    for _ in range(rounds):
        found = quantile(sorted(rng.lognormvariate(math.log(200), 0.6) for _ in range(150)), at, 0.95)
        beyond[0] += found.low > truth
        beyond[1] += found.high < truth
    assert max(beyond) <= rounds * 0.05 + 3 * math.sqrt(rounds * 0.05 * 0.95)
    assert max(beyond) > 0  # or the bounds would be so wide that they say nothing


def test_means_of_few_have_no_bounds_and_of_many_have_them() -> None:
    assert mean([0.5] * (MIN_FOR_MEAN - 1), 0.95).high == math.inf
    assert mean([0.0, 1.0] * 50, 0.95).high == pytest.approx(0.583, abs=0.002)

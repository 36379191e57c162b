"""Intervals and tests against values that others have published, or that follow from the definitions."""

from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.evals.scores import (
    Bound,
    Paired,
    Verdict,
    judge_drop,
    judge_score,
    mcnemar,
    paired_difference,
    wilson,
    worst,
    z_of,
)


@pytest.mark.parametrize(
    ("passed", "cases", "low", "high"),
    # Newcombe, Two-sided confidence intervals for the single proportion (1998), table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0000, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_against_the_published_table(passed: int, cases: int, low: float, high: float) -> None:
    found = wilson(passed, cases)
    assert [found.low, found.high] == pytest.approx([low, high], abs=5e-5)


def test_the_paired_difference_against_the_published_table() -> None:
    """Newcombe, Improved confidence intervals for the difference ... paired data (1998), table III, method 10."""
    found = paired_difference(Paired(both=36, only_new=12, only_old=2, neither=0))
    assert [found.value, found.low, found.high] == pytest.approx([0.2, 0.0569, 0.3404], abs=5e-5)


def test_of_no_cases_nothing_is_known() -> None:
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    nothing = paired_difference(Paired(0, 0, 0, 0))
    assert (nothing.low, nothing.high) == (-1.0, 1.0)
    assert judge_score(Bound(min_score=0.01), passed=0, cases=0).verdict is Verdict.INSUFFICIENT
    assert judge_drop(Bound(max_drop=0.5), Paired(0, 0, 0, 0)).verdict is Verdict.INSUFFICIENT


counts = st.integers(0, 60)


@given(both=counts, only_new=counts, only_old=counts, neither=counts)
def test_a_difference_turned_round_is_its_own_mirror(both: int, only_new: int, only_old: int, neither: int) -> None:
    one = paired_difference(Paired(both, only_new, only_old, neither))
    other = paired_difference(Paired(both, only_old, only_new, neither))
    assert one.low - 1e-12 <= one.value <= one.high + 1e-12
    assert -1 <= one.low <= one.high <= 1
    assert [one.value, one.low, one.high] == pytest.approx([-other.value, -other.high, -other.low])


@given(only_new=counts, only_old=counts)
def test_mcnemar_is_the_two_sided_binomial(only_new: int, only_old: int) -> None:
    differ, fewer = only_new + only_old, min(only_new, only_old)
    exact = sum(Fraction(comb(differ, each), 2**differ) for each in range(differ + 1) if min(each, differ - each) <= fewer)
    assert mcnemar(Paired(5, only_new, only_old, 5)) == pytest.approx(float(min(1, exact)))


def test_mcnemar_of_a_known_table() -> None:
    assert mcnemar(Paired(0, 10, 2, 0)) == pytest.approx(0.0386, abs=5e-5)
    assert mcnemar(Paired(10, 0, 0, 10)) == 1.0


def test_a_confidence_is_of_one_side_or_of_both() -> None:
    assert z_of(0.95) == pytest.approx(1.959964)
    assert z_of(0.95, is_two_sided=False) == pytest.approx(1.644854)


def test_a_least_score_is_held_broken_or_not_known() -> None:
    bound = Bound(min_score=0.5)
    assert judge_score(bound, passed=80, cases=100).verdict is Verdict.PASS
    assert judge_score(bound, passed=20, cases=100).verdict is Verdict.BREACH
    few = judge_score(bound, passed=5, cases=10)
    assert few.verdict is Verdict.INSUFFICIENT
    assert "score 50.0 %" in few.reasons[0]
    assert "least 50.0 %" in few.reasons[0]
    assert judge_score(Bound(), passed=0, cases=10).verdict is Verdict.PASS


def test_a_drop_is_held_broken_or_not_known() -> None:
    bound = Bound(max_drop=0.05)
    assert judge_drop(bound, Paired(500, 10, 12, 478)).verdict is Verdict.PASS
    assert judge_drop(bound, Paired(300, 0, 200, 500)).verdict is Verdict.BREACH
    assert judge_drop(bound, Paired(5, 0, 0, 5)).verdict is Verdict.INSUFFICIENT, "ten cases say little"
    assert judge_drop(Bound(), Paired(0, 0, 10, 0)).verdict is Verdict.PASS


def test_the_worst_verdict_decides() -> None:
    assert worst([]) is Verdict.PASS
    assert worst([Verdict.PASS, Verdict.INSUFFICIENT]) is Verdict.INSUFFICIENT
    assert worst([Verdict.INSUFFICIENT, Verdict.BREACH, Verdict.PASS]) is Verdict.BREACH

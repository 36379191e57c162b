from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.services.rounding import (
    NANOS,
    USD_RATE_NANOS,
    half_away,
    minor_to_picos,
    picos_to_minor,
    share_of,
)
from headway.money import PICOS_A_USD

CENT = PICOS_A_USD // 100


def usd(amount_picos: int) -> int:
    return picos_to_minor(amount_picos, minor_digits=2, rate_nanos=USD_RATE_NANOS)


@pytest.mark.parametrize(
    ("amount_picos", "cents"),
    [
        (0, 0),
        (1, 0),
        (CENT // 2 - 1, 0),
        (CENT // 2, 1),
        (CENT // 2 + 1, 1),
        (CENT, 1),
        (CENT * 3 // 2, 2),
        (CENT * 5 // 2, 3),  # away from zero, not to the even
        (-1, 0),
        (-(CENT // 2) + 1, 0),
        (-(CENT // 2), -1),
        (-(CENT * 3 // 2), -2),
        (-(CENT * 5 // 2), -3),
        (10**27 + CENT // 2, 10**17 + 1),  # far beyond what a float or 64 bits hold
    ],
)
def test_half_a_cent_goes_away_from_zero(amount_picos: int, cents: int) -> None:
    assert usd(amount_picos) == cents


@pytest.mark.parametrize(
    ("digits", "rate", "minor"),
    [(2, "0.92", 92), (0, "150.5", 151), (0, "150.499999999", 150), (2, "0.925", 93), (2, "0.924999999", 92)],
)
def test_a_dollar_is_rounded_once_in_the_other_currency(digits: int, rate: str, minor: int) -> None:
    rate_nanos = int(Fraction(rate) * NANOS)
    assert picos_to_minor(PICOS_A_USD, minor_digits=digits, rate_nanos=rate_nanos) == minor
    assert picos_to_minor(-PICOS_A_USD, minor_digits=digits, rate_nanos=rate_nanos) == -minor


def test_x11_a_million_calls_at_a_millionth_and_a_half_are_a_dollar_fifty() -> None:
    assert usd(1_000_000 * 1_500_000) == 150
    assert usd(1_500_000) == 0, "each by itself is nothing: what is rounded is the sum"


@given(numerator=st.integers(), denominator=st.integers(min_value=1, max_value=10**30))
def test_rounding_is_never_off_by_more_than_half_and_the_same_on_both_sides(numerator: int, denominator: int) -> None:
    rounded = half_away(numerator, denominator)
    assert abs(Fraction(numerator, denominator) - rounded) <= Fraction(1, 2)
    assert half_away(-numerator, denominator) == -rounded


@given(minor=st.integers(-(10**15), 10**15), rate_nanos=st.integers(10**6, 10**15), digits=st.sampled_from([0, 2]))
def test_what_is_carried_over_comes_back_the_same_at_the_same_rate(minor: int, rate_nanos: int, digits: int) -> None:
    picos = minor_to_picos(minor, minor_digits=digits, rate_nanos=rate_nanos)
    assert picos_to_minor(picos, minor_digits=digits, rate_nanos=rate_nanos) == minor


@pytest.mark.parametrize(
    ("amount_minor", "basis_points", "tax_minor"),
    [(10_000, 1900, 1900), (50, 1900, 10), (3, 1900, 1), (2, 1900, 0), (250, 200, 5), (25, 200, 1), (-25, 200, -1), (1, 0, 0)],
)
def test_tax_is_rounded_as_a_line_is(amount_minor: int, basis_points: int, tax_minor: int) -> None:
    assert share_of(amount_minor, basis_points) == tax_minor

"""The one rounding of money: once for each line of an invoice, half away from zero. Whole numbers only. Pure."""

from headway.money import PICOS_A_USD

NANOS = 10**9
"""An exchange rate is in billionths of the currency's unit for one US dollar."""
USD_RATE_NANOS = NANOS


def half_away(numerator: int, denominator: int) -> int:
    """The nearest whole number; what lies in the middle goes away from zero (0.5 to 1, -0.5 to -1)."""
    assert denominator > 0
    whole = (2 * abs(numerator) + denominator) // (2 * denominator)
    return -whole if numerator < 0 else whole


def picos_to_minor(amount_picos: int, *, minor_digits: int, rate_nanos: int) -> int:
    """An exact amount of US dollars in minor units of a currency."""
    return half_away(amount_picos * rate_nanos * 10**minor_digits, PICOS_A_USD * NANOS)


def minor_to_picos(amount_minor: int, *, minor_digits: int, rate_nanos: int) -> int:
    """What is carried from one month into the next, in US dollars: exact for USD, else to the nearest pico-dollar."""
    return half_away(amount_minor * PICOS_A_USD * NANOS, rate_nanos * 10**minor_digits)


def share_of(amount_minor: int, basis_points: int) -> int:
    """A tax on an amount: hundredths of a percent of it, rounded as a line is."""
    return half_away(amount_minor * basis_points, 10_000)

"""US dollars as people write them; micro-dollars, as what is agreed on is kept, and pico-dollars, as what is spent is."""

from decimal import Decimal, DecimalException

from headway.errors import InvalidInput

MICROS_A_USD = 1_000_000
PICOS_A_MICRO = 1_000_000
PICOS_A_USD = MICROS_A_USD * PICOS_A_MICRO
"""What is spent is counted in pico-dollars: a price of a micro-dollar per million tokens is one of them a token."""
MAX_DIGITS = 60
"""Of an amount that somebody writes: more say nothing."""


def usd_to_micros(text: str, *, param: str, max_usd: int) -> int:
    """Raises InvalidInput for what is no decimal number, is below zero, above `max_usd` or finer than a micro-dollar."""
    try:
        usd = Decimal(text)
    except DecimalException:
        raise InvalidInput(f"{param} must be US dollars as a decimal number, such as 2.50: {text!r}", param=param) from None
    if not usd.is_finite() or not 0 <= usd <= max_usd:
        raise InvalidInput(f"{param} must be from 0 to {max_usd} US dollars: {text!r}", param=param)
    micros = in_units(usd, decimals=6)
    if micros is None:
        raise InvalidInput(f"{param} must have at most six decimals (a micro-dollar): {text!r}", param=param)
    return micros


def usd_to_picos(text: str, *, param: str, max_usd: int) -> int:
    """Below zero too, and to the pico-dollar. Raises InvalidInput."""
    try:
        usd = Decimal(text)
    except DecimalException:
        raise InvalidInput(
            f"{param} must be US dollars as a decimal number, such as -2.50: {text[:50]!r}", param=param
        ) from None
    if not usd.is_finite() or not -max_usd <= usd <= max_usd:
        raise InvalidInput(f"{param} must be at most {max_usd} US dollars: {text[:50]!r}", param=param)
    picos = in_units(usd, decimals=12)
    if picos is None:
        raise InvalidInput(f"{param} must have at most twelve decimals (a pico-dollar): {text[:50]!r}", param=param)
    return picos


def in_units(number: Decimal, *, decimals: int) -> int | None:
    """A bounded number in units of 10^-decimals, exactly: no context of Decimal rounds it. None: it is finer than that."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "it is finite"
    if not any(digits):
        return 0
    shift = exponent + decimals
    if len(digits) > MAX_DIGITS or -shift > len(digits):
        return None
    value = int("".join(map(str, digits)))
    whole: int = value * 10**shift if shift >= 0 else value // 10**-shift
    if shift < 0 and whole * 10**-shift != value:
        return None
    return -whole if sign else whole


def micros_to_usd(micros: int) -> str:
    """At least two decimals, no more than are needed: 1_500_000 is "1.50", 50 is "0.00005"."""
    sign, whole, rest = "-" if micros < 0 else "", *divmod(abs(micros), MICROS_A_USD)
    return f"{sign}{whole}.{f'{rest:06d}'.rstrip('0').ljust(2, '0')}"


def micros_up(picos: int) -> int:
    """In whole micro-dollars, rounded up: for what is compared with what was agreed on, and shown beside it."""
    return -(-picos // PICOS_A_MICRO)


def picos_to_usd(picos: int) -> str:
    """Exactly, without zeros at the end: 1_500_000 is "0.0000015", 2_000_000_000_000 is "2"."""
    sign, whole, rest = "-" if picos < 0 else "", *divmod(abs(picos), PICOS_A_USD)
    return f"{sign}{whole}.{rest:012d}".rstrip("0").rstrip(".")


class Usd(int):
    """Pico-dollars that a file shows as exact dollars: a number, below zero too, and no text that is made harmless."""

    def __str__(self) -> str:
        return picos_to_usd(int(self))

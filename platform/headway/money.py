"""US dollars as people write them, micro-dollars as we keep them."""

from decimal import Decimal, InvalidOperation

from headway.errors import InvalidInput

MICROS_A_USD = 1_000_000


def usd_to_micros(text: str, *, param: str, max_usd: int) -> int:
    """Raises InvalidInput for what is no decimal number, is below zero, above `max_usd` or finer than a micro-dollar."""
    try:
        micros = Decimal(text) * MICROS_A_USD
    except InvalidOperation:
        raise InvalidInput(f"{param} must be US dollars as a decimal number, such as 2.50: {text!r}", param=param) from None
    if not micros.is_finite() or not 0 <= micros <= max_usd * MICROS_A_USD:
        raise InvalidInput(f"{param} must be from 0 to {max_usd} US dollars: {text!r}", param=param)
    if micros != micros.to_integral_value():
        raise InvalidInput(f"{param} must have at most six decimals (a micro-dollar): {text!r}", param=param)
    return int(micros)


def micros_to_usd(micros: int) -> str:
    """At least two decimals, no more than are needed: 1_500_000 is "1.50", 50 is "0.00005"."""
    sign, whole, rest = "-" if micros < 0 else "", *divmod(abs(micros), MICROS_A_USD)
    return f"{sign}{whole}.{f'{rest:06d}'.rstrip('0').ljust(2, '0')}"

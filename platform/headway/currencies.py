"""Currencies of invoices by their ISO 4217 code, with the digits of their minor unit. Pure."""

from contextlib import suppress
from decimal import Decimal, DecimalException

from headway.errors import InvalidInput
from headway.money import in_units

USD = "USD"
MAX_AMOUNT = 10**13
"""More than any invoice comes to."""

_TWO = (
    "AED ALL AMD ARS AUD AZN BAM BBD BDT BGN BMD BND BOB BRL BSD BWP BZD CAD CHF CNY COP CRC CVE CZK DKK DOP DZD EGP ETB EUR "
    "FJD GBP GEL GHS GTQ HKD HNL HUF IDR ILS INR JMD KES KHR KZT LKR MAD MDL MKD MMK MUR MXN MYR MZN NAD NGN NIO NOK NPR NZD "
    "PAB PEN PGK PHP PKR PLN QAR RON RSD SAR SEK SGD THB TRY TTD TWD TZS UAH USD UYU UZS ZAR ZMW"
)
_NONE = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"

MINOR_DIGITS = dict.fromkeys(_TWO.split(), 2) | dict.fromkeys(_NONE.split(), 0)


def minor_to_text(amount_minor: int, currency: str) -> str:
    """ "1234.50" of 123450 in USD, "1235" of 1235 in JPY: plain, for programs."""
    digits = MINOR_DIGITS[currency]
    sign, value = "-" if amount_minor < 0 else "", abs(amount_minor)
    return f"{sign}{value // 10**digits}" + (f".{value % 10**digits:0{digits}d}" if digits else "")


def text_to_minor(text: str, currency: str, *, param: str) -> int:
    """123450 of "1234.5" in USD. Raises InvalidInput for what is no amount above zero in that currency's digits."""
    digits, minor = MINOR_DIGITS[currency], None
    with suppress(DecimalException):
        amount = Decimal(text)
        minor = in_units(amount, decimals=digits) if amount.is_finite() and 0 < amount < MAX_AMOUNT else None
    if minor is None:
        raise InvalidInput(
            f"{param} is an amount above 0 in {currency} with at most {digits} decimals: {text[:50]!r}", param=param
        )
    return minor


def minor_to_print(amount_minor: int, currency: str) -> str:
    """ "1,234.50", with a real minus sign: for people."""
    whole, dot, rest = minor_to_text(abs(amount_minor), currency).partition(".")
    return f"{'−' if amount_minor < 0 else ''}{int(whole):,}{dot}{rest}"

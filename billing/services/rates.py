"""Tax and exchange rates: append-only, each from a day on."""

import re
from datetime import date
from decimal import Decimal

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from billing.account_models import ExchangeRate, TaxRate
from billing.errors import RateMissing
from billing.services.rounding import NANOS, USD_RATE_NANOS
from headway.countries import COUNTRIES
from headway.currencies import MINOR_DIGITS, USD
from headway.errors import Conflict, InvalidInput
from tenants.services.audit import record_audit

MAX_UNITS_A_USD = 10**6
PLAIN = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")


def check_tax_rate(*, country: str, name: str, percent: str, effective_from: date) -> TaxRate:
    """What `set_tax_rate` would add, not stored. Raises as it does."""
    country, name = country.strip().upper(), " ".join(name.split())
    if country not in COUNTRIES:
        raise InvalidInput(f"country must be a two-letter code of ISO 3166, such as DE: {country!r}", param="country")
    if not 1 <= len(name) <= 32 or not name.isprintable():
        raise InvalidInput("a tax has a name of 1 to 32 characters, such as VAT", param="name")
    basis_points = _whole(percent, scale=100, at_most=10_000, param="percent", what="a percentage with at most two decimals")
    if TaxRate.objects.filter(country=country, effective_from=effective_from).exists():
        raise _is_set(country, effective_from)
    return TaxRate(country=country, name=name, basis_points=basis_points, effective_from=effective_from)


def set_tax_rate(*, country: str, name: str, percent: str, effective_from: date, actor: str) -> TaxRate:
    """`percent` as a decimal number with at most two places. Raises InvalidInput; Conflict where that day has one."""
    rate = check_tax_rate(country=country, name=name, percent=percent, effective_from=effective_from)
    try:
        with transaction.atomic():
            rate.save(force_insert=True)
            after = {"basis_points": rate.basis_points, "effective_from": effective_from.isoformat()}
            record_audit(actor=actor, action="tax_rate.set", target=f"{rate.country} {rate.name}", after=after)
    except IntegrityError:
        raise _is_set(rate.country, effective_from) from None
    return rate


def check_exchange_rate(*, currency: str, units_per_usd: str, effective_from: date) -> ExchangeRate:
    """What `set_exchange_rate` would add, not stored. Raises as it does."""
    currency = currency.strip().upper()
    if currency not in MINOR_DIGITS or currency == USD:
        raise InvalidInput(f"currency must be a code of ISO 4217 other than USD: {currency!r}", param="currency")
    rate_nanos = _whole(
        units_per_usd, scale=NANOS, at_most=MAX_UNITS_A_USD * NANOS, param="rate", what="a number with at most nine decimals"
    )
    if rate_nanos == 0:
        raise InvalidInput("a US dollar is worth something in any currency", param="rate")
    if ExchangeRate.objects.filter(currency=currency, effective_from=effective_from).exists():
        raise _is_set(currency, effective_from)
    return ExchangeRate(currency=currency, rate_nanos=rate_nanos, effective_from=effective_from)


def set_exchange_rate(*, currency: str, units_per_usd: str, effective_from: date, actor: str) -> ExchangeRate:
    """What a US dollar is worth, with at most nine decimals. Raises InvalidInput; Conflict where that day has one."""
    rate = check_exchange_rate(currency=currency, units_per_usd=units_per_usd, effective_from=effective_from)
    try:
        with transaction.atomic():
            rate.save(force_insert=True)
            after = {"rate_nanos": rate.rate_nanos, "effective_from": effective_from.isoformat()}
            record_audit(actor=actor, action="exchange_rate.set", target=rate.currency, after=after)
    except IntegrityError:
        raise _is_set(rate.currency, effective_from) from None
    return rate


def _is_set(whose: str, day: date) -> Conflict:
    return Conflict(f"{whose} has a rate from {day} on already; rates are never changed", param="effective_from")


def tax_rates(country: str = "") -> QuerySet[TaxRate]:
    """Blank: of all countries."""
    return TaxRate.objects.filter(country=country.strip().upper()) if country else TaxRate.objects.all()


def exchange_rates(currency: str = "") -> QuerySet[ExchangeRate]:
    """Blank: of all currencies."""
    return ExchangeRate.objects.filter(currency=currency.strip().upper()) if currency else ExchangeRate.objects.all()


def tax_rate_on(country: str, day: date) -> TaxRate | None:
    """The newest that holds on that day."""
    return TaxRate.objects.filter(country=country, effective_from__lte=day).order_by("-effective_from").first()


def exchange_rate_on(currency: str, day: date) -> int:
    """Billionths of the currency's unit for a US dollar. Raises RateMissing."""
    if currency == USD:
        return USD_RATE_NANOS
    rows = ExchangeRate.objects.filter(currency=currency, effective_from__lte=day)
    rate = rows.order_by("-effective_from").first()
    if rate is None:
        raise RateMissing(
            f"there is no exchange rate of {currency} for {day}: set it with manage.py set_exchange_rate {currency} RATE",
            currency=currency,
            day=day.isoformat(),
        )
    return rate.rate_nanos


def _whole(text: str, *, scale: int, at_most: int, param: str, what: str) -> int:
    text = text.strip()
    value = Decimal(text) * scale if PLAIN.fullmatch(text) else Decimal(-1)
    if not 0 <= value <= at_most or value != value.to_integral_value():
        raise InvalidInput(f"{param} must be {what}: {text[:50]!r}", param=param)
    return int(value)

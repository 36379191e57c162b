from datetime import date

import pytest

from billing.errors import RateMissing
from billing.services.rates import exchange_rate_on, set_exchange_rate, set_tax_rate, tax_rate_on
from billing.services.rounding import NANOS
from billing.services.tax import OUTSIDE_NOTE, REVERSE_CHARGE_NOTE, Treatment, tax_of, treatment_of
from billing.services.tax_ids import EU, tidy_tax_id
from headway.countries import COUNTRIES
from headway.errors import Conflict, InvalidInput
from tenants.models import AuditEntry

DAY = date(2026, 11, 30)


@pytest.mark.parametrize(
    ("seller", "country", "tax_id", "treatment"),
    [
        ("DE", "DE", "", Treatment.DOMESTIC),
        ("DE", "DE", "DE123456789", Treatment.DOMESTIC),
        ("DE", "", "", Treatment.DOMESTIC),
        ("DE", "FR", "FR12345678901", Treatment.REVERSE_CHARGE),
        ("DE", "FR", "", Treatment.EU_CONSUMER),
        ("DE", "US", "", Treatment.OUTSIDE),
        ("DE", "GB", "GB123456789", Treatment.OUTSIDE),
        ("US", "DE", "DE123456789", Treatment.OUTSIDE),
        ("JP", "JP", "", Treatment.DOMESTIC),
        ("", "DE", "", Treatment.NONE),
        ("", "", "", Treatment.NONE),
    ],
)
def test_the_tax_follows_from_both_countries_and_the_number(
    seller: str, country: str, tax_id: str, treatment: Treatment
) -> None:
    assert treatment_of(seller_country=seller, country=country, tax_id=tax_id) is treatment


@pytest.mark.django_db
def test_rates_hold_from_their_day_on_and_are_never_changed() -> None:
    set_tax_rate(country="de", name="MwSt", percent="19", effective_from=date(2026, 1, 1), actor="test")
    set_tax_rate(country="DE", name="MwSt", percent="20.5", effective_from=date(2026, 12, 1), actor="test")
    rates = [tax_rate_on("DE", day) for day in (date(2025, 12, 31), DAY, date(2026, 12, 1))]
    assert [rate and rate.basis_points for rate in rates] == [None, 1900, 2050]
    with pytest.raises(Conflict):
        set_tax_rate(country="DE", name="MwSt", percent="7", effective_from=date(2026, 1, 1), actor="test")
    assert AuditEntry.objects.filter(action="tax_rate.set").count() == 2


@pytest.mark.django_db
def test_each_treatment_has_its_rate_and_its_note() -> None:
    for country, percent in (("DE", "19"), ("FR", "20")):
        set_tax_rate(country=country, name="VAT", percent=percent, effective_from=date(2026, 1, 1), actor="test")

    def tax(country: str, tax_id: str = "") -> tuple[int, str, str]:
        made = tax_of(seller_country="DE", country=country, tax_id=tax_id, on=DAY)
        return made.basis_points, made.label, made.note

    assert tax("DE") == (1900, "VAT 19 %", "")
    assert tax("FR") == (2000, "VAT 20 %", "")
    assert tax("IT") == (1900, "VAT 19 %", ""), "no rate of Italy's is set: ours"
    assert tax("FR", "FR12345678901") == (0, "", REVERSE_CHARGE_NOTE)
    assert tax("US") == (0, "", OUTSIDE_NOTE)


@pytest.mark.django_db
@pytest.mark.parametrize("percent", ["-1", "100.01", "7.777", "NaN", "many", "1e5"])
def test_a_percentage_out_of_bounds_is_refused(percent: str) -> None:
    with pytest.raises(InvalidInput):
        set_tax_rate(country="DE", name="VAT", percent=percent, effective_from=DAY, actor="test")
    assert tax_rate_on("DE", DAY) is None


@pytest.mark.django_db
def test_exchange_rates_hold_from_their_day_on_and_a_missing_one_is_named() -> None:
    assert exchange_rate_on("USD", DAY) == NANOS
    set_exchange_rate(currency="EUR", units_per_usd="0.925", effective_from=date(2026, 11, 1), actor="test")
    set_exchange_rate(currency="EUR", units_per_usd="0.9", effective_from=date(2026, 12, 1), actor="test")
    assert exchange_rate_on("EUR", DAY) == 925_000_000
    with pytest.raises(RateMissing, match="set_exchange_rate JPY"):
        exchange_rate_on("JPY", DAY)
    with pytest.raises(RateMissing):
        exchange_rate_on("EUR", date(2026, 10, 31))
    for currency, rate in (("USD", "1"), ("XXX", "1"), ("EUR", "0"), ("EUR", "0.0000000001"), ("EUR", "-1"), ("EUR", "inf")):
        with pytest.raises(InvalidInput):
            set_exchange_rate(currency=currency, units_per_usd=rate, effective_from=DAY, actor="test")


@pytest.mark.parametrize(
    ("country", "text", "tidy"),
    [
        ("DE", "de 123 456 789", "DE123456789"),
        ("AT", "ATU12345678", "ATU12345678"),
        ("GR", "EL123456789", "EL123456789"),
        ("NL", "NL123456789B01", "NL123456789B01"),
        ("IE", "IE1234567WA", "IE1234567WA"),
        ("FR", "FRXX123456789", "FRXX123456789"),
        ("CH", "CHE-123.456.789 MWST", "CHE123456789MWST"),
        ("US", "12-3456789", "123456789"),
        ("JP", "T1234567890123", "T1234567890123"),
        ("DE", "", ""),
    ],
)
def test_tax_numbers_are_tidied(country: str, text: str, tidy: str) -> None:
    assert tidy_tax_id(text, country=country) == tidy


@pytest.mark.parametrize(
    ("country", "text"),
    [("DE", "123456789"), ("DE", "DE12345678"), ("DE", "FR12345678901"), ("GR", "GR123456789"), ("US", "x" * 31), ("US", "%")],
)
def test_tax_numbers_of_another_form_are_refused(country: str, text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        tidy_tax_id(text, country=country)
    assert refused.value.param == "tax_id"


def test_the_union_has_27_countries_and_all_have_names() -> None:
    assert len(EU) == 27
    assert COUNTRIES.keys() >= EU

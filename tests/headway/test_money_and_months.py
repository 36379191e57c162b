from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.currencies import text_to_minor
from headway.errors import InvalidInput
from headway.money import micros_to_usd, micros_up, picos_to_usd, usd_to_micros, usd_to_picos
from headway.months import (
    day_start,
    midnight,
    month_named,
    month_of,
    next_month_name,
    previous_month_name,
    zone_named,
    zone_names,
)


@given(st.integers(0, 10**15))
def test_dollars_and_micros_are_the_same_money(micros: int) -> None:
    assert usd_to_micros(micros_to_usd(micros), param="x", max_usd=10**9) == micros


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "inf", "1e99", "0.0000001", "1000001", "1,5"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        usd_to_micros(text, param="x", max_usd=1_000_000)


def test_a_month_begins_and_ends_at_midnight_of_its_zone() -> None:
    month = month_of(datetime(2026, 12, 31, 15, tzinfo=UTC), "Asia/Tokyo")
    assert month.name == "2027-01"
    assert month.starts_s == datetime(2026, 12, 31, 15, tzinfo=UTC).timestamp()
    assert month.ends_s == datetime(2027, 1, 31, 15, tzinfo=UTC).timestamp()
    assert month_named("2027-01", "Asia/Tokyo") == month
    summer = month_of(datetime(2026, 3, 15, tzinfo=UTC), "Europe/Berlin")
    assert summer.ends_s - summer.starts_s == 31 * 86_400 - 3600, "clocks went forward"


@pytest.mark.parametrize("name", ["localtime", "Factory", "posixrules", "posix/Europe/Berlin", "right/UTC", "europe/berlin"])
def test_n15_a_zone_has_a_name_of_ianas(name: str) -> None:
    assert zone_named(name) is None
    assert name not in zone_names()


def test_n15_every_name_of_the_list_is_a_zone() -> None:
    assert {"UTC", "Europe/Berlin", "Asia/Kolkata", "America/Argentina/Buenos_Aires"} <= zone_names()
    assert all(zone_named(name) is not None for name in zone_names())


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "/etc/passwd", "x" * 1000, "a\0b"])
def test_an_unknown_zone_counts_as_utc(name: str) -> None:
    assert zone_named(name) is None
    assert month_of(datetime(2026, 11, 30, 23, tzinfo=UTC), name).ends_s == datetime(2026, 12, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("day", [(2026, 1, 31), (2028, 2, 29), (2026, 2, 28), (2026, 3, 31), (2026, 12, 31)])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"])
def test_b66_months_follow_one_another_from_whatever_day(day: tuple[int, int, int], zone: str) -> None:
    at = midnight(date(*day), zone)
    month = month_of(at, zone)
    for _ in range(14):
        following = month_of(datetime.fromtimestamp(month.ends_s, UTC), zone)
        assert following.starts_s == month.ends_s, "no gap and no overlap"
        assert (following.name, previous_month_name(following.name)) == (next_month_name(month.name), month.name)
        assert datetime.fromtimestamp(month.ends_s, zone_named(zone)).day == 1
        month = following


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", date(2026, 3, 29), 23),
        ("Europe/Berlin", date(2026, 10, 25), 25),
        ("America/Havana", date(2026, 3, 8), 23),  # there is no midnight
        ("America/Havana", date(2026, 11, 1), 25),  # there are two
        ("Australia/Lord_Howe", date(2026, 10, 4), 23.5),
    ],
)
def test_b65_a_day_is_as_long_as_it_is_there(zone: str, day: date, hours: float) -> None:
    start, end = midnight(day, zone), midnight(day + timedelta(days=1), zone)
    assert (end - start).total_seconds() == hours * 3600
    assert day_start(start, zone) == day_start(end - timedelta(microseconds=1), zone) == start
    assert day_start(end, zone) == end


@pytest.mark.parametrize(
    ("picos", "usd"),
    [
        (0, "0"),
        (1, "0.000000000001"),
        (1_500_000, "0.0000015"),
        (10**12, "1"),
        (-25 * 10**11, "-2.5"),
        (10**25, "10000000000000"),
    ],
)
def test_pico_dollars_are_shown_exactly(picos: int, usd: str) -> None:
    assert picos_to_usd(picos) == usd


@pytest.mark.parametrize(("picos", "micros"), [(0, 0), (1, 1), (1_000_000, 1), (1_000_001, 2), (-1, 0), (-1_000_000, -1)])
def test_micros_are_rounded_up(picos: int, micros: int) -> None:
    assert micros_up(picos) == micros


@pytest.mark.parametrize(
    ("text", "picos"),
    [("-0.000000000001", -1), ("2.5", 25 * 10**11), ("0", 0), ("1e-12", 1), ("1000", 10**15), ("0e999999999", 0)],
)
def test_dollars_are_pico_dollars_exactly_below_zero_too(text: str, picos: int) -> None:
    assert usd_to_picos(text, param="amount", max_usd=1000) == picos


@pytest.mark.parametrize(
    "text", ["", "ten", "0.0000000000001", "1000.01", "-1001", "nan", "-inf", "1e999999999", "1e-999999999"]
)
def test_what_is_no_number_of_pico_dollars_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match="amount must ") as refused:
        usd_to_picos(text, param="amount", max_usd=1000)
    assert refused.value.param == "amount"


@pytest.mark.parametrize(
    "text", ["1e999999999", "-1e999999999", "1e-999999999", "1.0000001", "0.000001" + "0" * 30 + "1", "1" * 5000]
)
def test_a_number_beyond_all_bounds_is_refused_as_an_amount_of_micro_dollars(text: str) -> None:
    with pytest.raises(InvalidInput):
        usd_to_micros(text, param="amount", max_usd=1000)


@pytest.mark.parametrize(("text", "currency", "minor"), [("12.3", "USD", 1230), ("0.01", "EUR", 1), ("1235", "JPY", 1235)])
def test_an_amount_of_a_currency_is_its_minor_units(text: str, currency: str, minor: int) -> None:
    assert text_to_minor(text, currency, param="amount") == minor


@pytest.mark.parametrize("text", ["", "0", "-1", "1.005", "x", "nan", "inf", "1e999999999", "1e-999999999", str(10**13)])
def test_what_is_no_amount_of_a_currency_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match="amount is an amount above 0 in USD"):
        text_to_minor(text, "USD", param="amount")
    with pytest.raises(InvalidInput):
        text_to_minor("12.5", "JPY", param="amount")

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import InvalidInput
from headway.money import micros_to_usd, usd_to_micros
from headway.months import month_named, month_of, zone_named, zone_names


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

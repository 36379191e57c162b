"""Calendar months in a time zone: what budgets and statements are counted by. Pure."""

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, tzinfo
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

UTC_NAME = "UTC"
MONTH = re.compile(r"2\d{3}-(0[1-9]|1[0-2])", re.ASCII)
"""A month that something is asked of: the calendar's edges, where a zone's month has no beginning or no end, are left out."""
_NO_PLACES = {"localtime", "Factory", "posixrules"}


@dataclass(frozen=True, slots=True)
class Month:
    name: str
    """ "2026-11"."""
    starts_s: float
    """Unix seconds."""
    ends_s: float
    """Unix seconds; the first instant that is not of it."""


def month_of(at: datetime, time_zone: str) -> Month:
    """The month `at` (aware) lies in there. A zone this machine does not know counts as UTC."""
    local = at.astimezone(zone_named(time_zone) or UTC)
    return _month(local.year, local.month, time_zone)


def month_named(name: str, time_zone: str) -> Month:
    """ "2026-11" in that zone. Raises ValueError."""
    year, _, month = name.partition("-")
    return _month(int(year), int(month), time_zone)


def next_month_name(name: str) -> str:
    """ "2026-12" after "2026-11"."""
    year, _, month = name.partition("-")
    return f"{int(year) + int(month) // 12:04d}-{int(month) % 12 + 1:02d}"


def previous_month_name(name: str) -> str:
    """ "2026-11" before "2026-12"."""
    year, _, month = name.partition("-")
    return f"{int(year) - (month == '01'):04d}-{(int(month) - 2) % 12 + 1:02d}"


def whole_months(first: date, end: date) -> list[str]:
    """Those all of whose days lie in [first, end)."""
    name = f"{first:%Y-%m}" if first.day == 1 else next_month_name(f"{first:%Y-%m}")
    found = []
    while date.fromisoformat(f"{next_month_name(name)}-01") <= end:
        found.append(name)
        name = next_month_name(name)
    return found


def _month(year: int, month: int, time_zone: str) -> Month:
    zone = zone_named(time_zone) or UTC
    start = datetime(year, month, 1, tzinfo=zone)
    end = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=zone)
    return Month(name=f"{year:04d}-{month:02d}", starts_s=start.timestamp(), ends_s=end.timestamp())


def midnight(day: date, time_zone: str) -> datetime:
    """When that day begins there, in UTC. Where clocks skip midnight it is the instant of the change."""
    return datetime.combine(day, time(), zone_named(time_zone) or UTC).astimezone(UTC)


def day_start(at: datetime, time_zone: str) -> datetime:
    """When the day there began in which `at` (aware) lies, in UTC."""
    return midnight(at.astimezone(zone_named(time_zone) or UTC).date(), time_zone)


@cache
def zone_names() -> frozenset[str]:
    """The names of IANA's database that this machine knows: no local time of its own, no copies in other folders."""
    return frozenset(available_timezones() - _NO_PLACES | {UTC_NAME})


def zone_named(name: str) -> tzinfo | None:
    """None when there is no such zone on this machine."""
    if name == UTC_NAME:
        return UTC  # also where no zone files are installed
    return ZoneInfo(name) if name in zone_names() else None

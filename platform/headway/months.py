"""Calendar months in a time zone: what budgets and statements are counted by. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

UTC_NAME = "UTC"


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
    zone = zone_named(time_zone) or UTC
    local = at.astimezone(zone)
    start = datetime(local.year, local.month, 1, tzinfo=zone)
    end = datetime(local.year + local.month // 12, local.month % 12 + 1, 1, tzinfo=zone)
    return Month(name=f"{local.year:04d}-{local.month:02d}", starts_s=start.timestamp(), ends_s=end.timestamp())


def zone_named(name: str) -> tzinfo | None:
    """None when there is no such zone on this machine."""
    if name == UTC_NAME:
        return UTC  # also where no zone files are installed
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None

"""What a usage page is asked for, all of it in its address: range, granularity, metric, grouping, filters."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from headway.months import month_of, next_month_name, whole_months, zone_named

RANGES = (("today", "Today"), ("7d", "Last 7 days"), ("30d", "Last 30 days"), ("month", "Month to date"), ("custom", "Custom"))
METRICS = (
    ("requests", "Requests", ""),
    ("input_tokens", "Input tokens", ""),
    ("cached_tokens", "Cached tokens", ""),
    ("output_tokens", "Output tokens", ""),
    ("errors", "Errors", ""),
    ("ttft_ms", "Time to first token, mean", "ms"),
    ("spend", "Spend", "usd"),
)
MEAN = "ttft_ms"
GROUPS = (("model", "Model"), ("key", "Key"), ("member", "Member"), ("tier", "Tier"), ("none", "Nothing"))
STEPS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
MAX_BUCKETS = 1440
MAX_DAYS = 400
FIRST_DAY, LAST_DAY = date(2000, 1, 1), date(2999, 12, 31)
"""Of a custom range: far from the ends of the calendar, where time zones reach beyond it."""


@dataclass(frozen=True)
class UsageQuery:
    range: str
    start: datetime
    end: datetime
    """The first instant that is not shown: ranges are half-open."""
    granularity: str
    metric: str
    group: str
    model: str
    key: str
    zone_name: str
    problem: str = ""
    is_cumulative: bool = False
    """Each bucket with all before it; of means there is no such thing."""

    @property
    def zone(self) -> tzinfo:
        return zone_named(self.zone_name) or UTC

    @property
    def metric_label(self) -> str:
        return next(label for name, label, _ in METRICS if name == self.metric)

    @property
    def unit(self) -> str:
        return next(unit for name, _, unit in METRICS if name == self.metric)


def usage_query(asked: Mapping[str, str], zone_name: str, now: datetime) -> UsageQuery:
    """What cannot be read is as if it was not asked, but for dates: `problem` says so."""
    zone = zone_named(zone_name) or UTC
    wanted = _one_of(asked.get("range", ""), [name for name, _ in RANGES], "7d")
    start, end, problem = _bounds(wanted, asked, zone, zone_name, now)
    granularity = _granularity(asked.get("granularity", ""), end - start)
    metric = _one_of(asked.get("metric", ""), [name for name, _, _ in METRICS], "requests")
    return UsageQuery(
        range=wanted,
        start=start,
        end=end,
        granularity=granularity,
        metric=metric,
        group=_one_of(asked.get("group", ""), [name for name, _ in GROUPS], "model"),
        model=asked.get("model", "")[:200],
        key=asked.get("key", "")[:16],
        zone_name=zone_name,
        problem=problem,
        is_cumulative=asked.get("cumulative") == "1" and metric != MEAN,
    )


def bucket_starts(query: UsageQuery) -> list[datetime]:
    """Of every bucket, in the zone. A day is as long as it is there: 23 or 25 hours where clocks change."""
    if query.granularity == "day":
        first, last = (
            query.start.astimezone(query.zone).date(),
            (query.end - timedelta(seconds=1)).astimezone(query.zone).date(),
        )
        return [_midnight(first + timedelta(days=n), query.zone) for n in range((last - first).days + 1)]
    step = STEPS[query.granularity]
    at = query.start.astimezone(UTC)
    starts = []
    while at < query.end:
        starts.append(at.astimezone(query.zone))
        at += step
    return starts


def whole_months_of(query: UsageQuery, now: datetime) -> list[str]:
    """ "2026-11": those whose days all lie in the range; of the month that runs, all so far."""
    today, first, end = (at.astimezone(query.zone).date() for at in (now, query.start, query.end))
    running = f"{today:%Y-%m}"
    if end > today:
        end = date.fromisoformat(f"{next_month_name(running)}-01")
    return whole_months(first, end) if first < end else []


def _bounds(
    wanted: str, asked: Mapping[str, str], zone: tzinfo, zone_name: str, now: datetime
) -> tuple[datetime, datetime, str]:
    today = now.astimezone(zone).date()
    tomorrow = _midnight(today + timedelta(days=1), zone)
    match wanted:
        case "today":
            return _midnight(today, zone), tomorrow, ""
        case "30d":
            return _midnight(today - timedelta(days=29), zone), tomorrow, ""
        case "month":
            return datetime.fromtimestamp(month_of(now, zone_name).starts_s, zone), tomorrow, ""
        case "custom":
            try:
                first, last = date.fromisoformat(asked.get("from", "")), date.fromisoformat(asked.get("to", ""))
            except ValueError:
                return _midnight(today - timedelta(days=6), zone), tomorrow, "Give both days of the range."
            if not timedelta(0) <= last - first <= timedelta(days=MAX_DAYS):
                problem = f"The last day must not lie before the first, and at most {MAX_DAYS} days after it."
                return _midnight(today - timedelta(days=6), zone), tomorrow, problem
            if first < FIRST_DAY or last > LAST_DAY:
                problem = f"Days lie between {FIRST_DAY} and {LAST_DAY}."
                return _midnight(today - timedelta(days=6), zone), tomorrow, problem
            return _midnight(first, zone), _midnight(last + timedelta(days=1), zone), ""
    return _midnight(today - timedelta(days=6), zone), tomorrow, ""


def _granularity(asked: str, length: timedelta) -> str:
    """As asked where that gives no more buckets than can be drawn, else the finest that does not."""
    usual = "hour" if length <= timedelta(days=2, hours=1) else "day"
    wanted = asked if asked in STEPS else usual
    while length / STEPS[wanted] > MAX_BUCKETS:
        wanted = "hour" if wanted == "minute" else "day"
    return wanted


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time(), zone)


def _one_of(value: str, allowed: list[str], otherwise: str) -> str:
    return value if value in allowed else otherwise

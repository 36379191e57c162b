"""Usage over time, for charts: sums of buckets in a time zone, grouped or not, exactly what the ledger holds.

Ranges are half-open [from, to) and begin and end with a bucket: hours are of real time, days of the zone's calendar (23 or
25 hours long where clocks change). Minutes are read from the ledger, hours and days from its quarters.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import Count, DateTimeField, F, Func, IntegerField, Q, QuerySet, Sum, Value
from django.db.models.functions import TruncDate

from billing.models import TTFT_BOUNDS_MS, TTFT_BUCKETS, UsageHour, UsageQuarter, UsageRecord
from billing.services.usage_slots import HOUR_S, QUARTER_S, SUCCESSES, SUMS
from headway.errors import InvalidInput
from headway.months import zone_named

GRANULARITIES = {"minute": 60, "hour": 3600, "day": 86400}
MAX_BUCKETS = {"minute": 24 * 60, "hour": 24 * 93, "day": 800}
GROUPS = {"model": "model", "key": "key_id", "member": "member_id", "tier": "tier"}


@dataclass(frozen=True)
class UsageQuery:
    starts_at: datetime
    ends_at: datetime
    time_zone: str
    granularity: str
    group_by: str = ""
    """One of GROUPS; blank: one sum a bucket."""
    filters: tuple[tuple[str, str], ...] = ()
    """Pairs of one of GROUPS and what it is."""


@dataclass(frozen=True)
class UsageBucket:
    starts_at: datetime
    group: str
    """Blank without grouping; of members their id, "0" for nobody's."""
    sums: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        shown = {name: self.sums[name] for name in SUMS if name not in {*TTFT_BUCKETS, "ttft_ms_sum"}}
        return {"starts_at": self.starts_at, "group": self.group, **shown, **ttft_of(self.sums)}


@dataclass(frozen=True)
class UsageSeries:
    query: UsageQuery
    buckets: list[UsageBucket]
    """Those in which something happened, by time and group."""

    def totals(self) -> dict[str, Any]:
        sums = {name: sum(bucket.sums[name] for bucket in self.buckets) for name in SUMS}
        return UsageBucket(self.query.starts_at, "", sums).as_dict()


def usage_series(tenant_id: UUID, query: UsageQuery) -> UsageSeries:
    """`query` as `aligned` returned it."""
    if query.granularity == "minute":
        return UsageSeries(query, _minutes(tenant_id, query))
    model = UsageHour if _has_whole_hours(query) else UsageQuarter
    rows = model._default_manager.filter(tenant_id=tenant_id, starts_at__gte=query.starts_at, starts_at__lt=query.ends_at)
    sums = {name: _Total(name) for name in SUMS}
    return UsageSeries(query, list(_grouped(rows, "starts_at", sums, query)))


def aligned(query: UsageQuery) -> UsageQuery:
    """The same, widened to whole buckets. Raises InvalidInput for an unknown word, an empty or an overlong range."""
    zone = zone_named(query.time_zone)
    if zone is None:
        raise InvalidInput(f"{query.time_zone!r} is not a time zone, such as Europe/Berlin", param="time_zone")
    if query.granularity not in GRANULARITIES:
        raise InvalidInput(f"a granularity is one of {', '.join(GRANULARITIES)}", param="granularity")
    if query.group_by and query.group_by not in GROUPS:
        raise InvalidInput(f"usage is grouped by one of {', '.join(GROUPS)}", param="group_by")
    if query.starts_at >= query.ends_at:
        raise InvalidInput("a range ends after it begins", param="to")
    try:
        start, end = _floor(query.starts_at, query), _floor(query.ends_at, query)
        if end < query.ends_at:
            end = _next(end, query)
    except OverflowError:
        raise InvalidInput("this range lies outside of the calendar", param="from") from None
    most = MAX_BUCKETS[query.granularity]
    if (end - start).total_seconds() > (most + 1) * GRANULARITIES[query.granularity]:
        raise InvalidInput(f"a range has at most {most} {query.granularity}s; choose a coarser granularity", param="to")
    return UsageQuery(start, end, query.time_zone, query.granularity, query.group_by, query.filters)


def ttft_of(sums: dict[str, int]) -> dict[str, float | None]:
    """Mean, and the bounds (milliseconds) under which half and 95 % of first tokens came, straight within a bucket."""
    count = sums["ttft_count"]
    mean = round(sums["ttft_ms_sum"] / count, 1) if count else None
    return {"ttft_ms_mean": mean, "ttft_ms_p50": _quantile(sums, 0.5), "ttft_ms_p95": _quantile(sums, 0.95)}


def _quantile(sums: dict[str, int], share: float) -> float | None:
    wanted, seen, lower = sums["ttft_count"] * share, 0, 0.0
    if not wanted:
        return None
    for name, upper in zip(TTFT_BUCKETS, (*TTFT_BOUNDS_MS, 2 * TTFT_BOUNDS_MS[-1]), strict=True):
        inside = sums[name]
        if inside and seen + inside >= wanted:
            return round(lower + (upper - lower) * (wanted - seen) / inside, 1)
        seen, lower = seen + inside, float(upper)
    return float(TTFT_BOUNDS_MS[-1])


def _minutes(tenant_id: UUID, query: UsageQuery) -> list[UsageBucket]:
    rows = UsageRecord.objects.filter(tenant_id=tenant_id, ended_at__gte=query.starts_at, ended_at__lt=query.ends_at)
    sums: dict[str, Any] = {name: Sum(name) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")}
    sums |= {"amount_micros": Sum("amount_micros"), "ttft_count": Count("ttft_ms"), "ttft_ms_sum": Sum("ttft_ms")}
    sums |= {"requests": Count("id"), "errors": Count("id", filter=~Q(end_state__in=list(SUCCESSES)))}
    bounds = (-1, *TTFT_BOUNDS_MS)
    for name, lower, upper in zip(TTFT_BUCKETS, bounds, (*TTFT_BOUNDS_MS, None), strict=True):
        inside = Q(ttft_ms__gt=lower) & (Q(ttft_ms__lte=upper) if upper is not None else Q())
        sums[name] = Count("id", filter=inside)
    return list(_grouped(rows, "ended_at", sums, query))


def _grouped(rows: QuerySet[Any], at: str, sums: dict[str, Any], query: UsageQuery) -> Iterable[UsageBucket]:
    for group, value in query.filters:
        rows = rows.filter(**_filter(group, value, is_ledger=at == "ended_at"))
    # The sums' names are those of columns that the database would rather sum: ours carry a prefix.
    named = {f"sum_{name}": sums[name] for name in SUMS}
    keys = ["bucket", GROUPS[query.group_by]] if query.group_by else ["bucket"]
    found = rows.annotate(bucket=_bucket(at, query)).values(*keys).annotate(**named).order_by(*keys)
    for bucket, *rest in found.values_list(*keys, *named):
        group = "" if not query.group_by else "0" if rest[0] is None else str(rest[0])
        numbers = [number or 0 for number in rest[len(keys) - 1 :]]
        yield UsageBucket(_start_of(bucket, query), group, dict(zip(SUMS, numbers, strict=True)))


class _Total(Sum):
    """A sum as the database's own whole number: Django's conversion of each value costs more than adding them up."""

    template = "CAST(%(function)s(%(distinct)s%(expressions)s) AS bigint)"

    def get_db_converters(self, connection: Any) -> list[Any]:
        return []


def _filter(group: str, value: str, *, is_ledger: bool) -> dict[str, Any]:
    if group != "member":
        return {GROUPS[group]: value}
    member = int(value)
    return {"member_id__isnull": True} if is_ledger and member == 0 else {"member_id": member}


def _bucket(at: str, query: UsageQuery) -> Any:
    """Days by their date in the zone; hours and minutes by how many there were since the range began."""
    if query.granularity == "day":
        return TruncDate(at, tzinfo=zone_named(query.time_zone))
    if query.granularity == "hour" and at == "starts_at" and _has_whole_hours(query):
        return F(at)  # the table's rows are those hours
    seconds, start = GRANULARITIES[query.granularity], int(query.starts_at.timestamp())
    if connection.vendor == "postgresql":
        return Func(
            Value(timedelta(seconds=seconds)), F(at), Value(query.starts_at), function="date_bin", output_field=DateTimeField()
        )
    whole = Func(F(at), template="CAST(strftime('%%%%s', %(expressions)s) AS INTEGER)", output_field=IntegerField())
    return Func(whole - Value(start), template=f"(%(expressions)s) / {seconds}", output_field=IntegerField())


def _has_whole_hours(query: UsageQuery) -> bool:
    """Do all buckets of the range begin with an hour of UTC? Clocks change a few times a year: every day is looked at."""
    if query.granularity == "hour":
        return query.starts_at.timestamp() % HOUR_S == 0
    at = query.starts_at
    while at < query.ends_at:
        if at.timestamp() % HOUR_S:
            return False
        at = _next(at, query)
    return query.ends_at.timestamp() % HOUR_S == 0


def _start_of(bucket: int | datetime | date, query: UsageQuery) -> datetime:
    if isinstance(bucket, datetime):
        return bucket
    if isinstance(bucket, int):
        return query.starts_at + timedelta(seconds=bucket * GRANULARITIES[query.granularity])
    return _midnight(bucket, query)


def _floor(at: datetime, query: UsageQuery) -> datetime:
    """The start of the bucket `at` lies in, in UTC."""
    if query.granularity == "day":
        return _midnight(at.astimezone(zone_named(query.time_zone)).date(), query)
    local = at.astimezone(zone_named(query.time_zone))
    offset_s = int((local.utcoffset() or timedelta()).total_seconds())
    # Of odd offsets (before time was standard) what is left is less than a quarter.
    offset_s = offset_s // QUARTER_S * QUARTER_S if query.granularity == "hour" else 0
    seconds = GRANULARITIES[query.granularity]
    start_s = (int(at.timestamp() // 1) + offset_s) // seconds * seconds - offset_s
    return datetime.fromtimestamp(start_s, UTC)


def _next(start: datetime, query: UsageQuery) -> datetime:
    if query.granularity == "day":
        return _midnight(start.astimezone(zone_named(query.time_zone)).date() + timedelta(days=1), query)
    return start + timedelta(seconds=GRANULARITIES[query.granularity])


def _midnight(day: date, query: UsageQuery) -> datetime:
    zone = zone_named(query.time_zone) or ZoneInfo("UTC")
    return datetime.combine(day, time(), zone).astimezone(UTC)

"""Usage over time, for charts: sums of buckets in a time zone, grouped or not, exactly what the ledger holds.

Ranges are half-open [from, to) and begin and end with a bucket: hours are of real time, days of the zone's calendar (23 or
25 hours long where clocks change). Minutes are read from the ledger, hours and days
from its sums: of days where they are of the tenant's own zone, else of hours, or of quarters.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import Count, DateTimeField, F, Func, IntegerField, Q, QuerySet, Sum, Value
from django.db.models.functions import TruncDate

from billing.models import TTFT_BOUNDS_MS, TTFT_BUCKETS, Adjustment, UsageDay, UsageHour, UsageQuarter, UsageRecord, UsageSlot
from billing.services.usage_slots import GAP_TARGET_MS, HOUR_S, ON_TARGET, QUARTER_S, SUCCESSES, SUMS, TTFT_TARGET_MS
from headway.errors import InvalidInput
from headway.months import UTC_NAME, day_start, midnight, zone_named
from tenants.selectors import time_zones

GRANULARITIES = {"minute": 60, "hour": 3600, "day": 86400}
MAX_BUCKETS = {"minute": 24 * 60, "hour": 24 * 93, "day": 800}
GROUPS = {"model": "model", "key": "key_id", "member": "member_id", "version": "version", "tier": "tier"}


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
        shown = {name: self.sums[name] for name in SUMS if name not in {*TTFT_BUCKETS, *ON_TARGET, "ttft_ms_sum"}}
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
    model, is_bucket = _table_of(tenant_id, query)
    rows = model._default_manager.filter(tenant_id=tenant_id, starts_at__gte=query.starts_at, starts_at__lt=query.ends_at)
    sums = {name: _BigTotal(name) if name == "amount_picos" else _Total(name) for name in SUMS}
    return UsageSeries(query, list(_grouped(rows, F("starts_at") if is_bucket else _bucket("starts_at", query), sums, query)))


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
    sums |= {"amount_picos": Sum("amount_picos"), "ttft_count": Count("ttft_ms"), "ttft_ms_sum": Sum("ttft_ms")}
    sums |= {"requests": Count("id"), "errors": Count("id", filter=~Q(end_state__in=list(SUCCESSES)))}
    bounds = (-1, *TTFT_BOUNDS_MS)
    for name, lower, upper in zip(TTFT_BUCKETS, bounds, (*TTFT_BOUNDS_MS, None), strict=True):
        inside = Q(ttft_ms__gt=lower) & (Q(ttft_ms__lte=upper) if upper is not None else Q())
        sums[name] = Count("id", filter=inside)
    has_gap = Q(ttft_ms__isnull=False, completion_tokens__gt=1)
    is_met = Q(total_ms__lt=F("ttft_ms") + (F("completion_tokens") - 1) * GAP_TARGET_MS)
    sums["ttft_on_target"] = Count("id", filter=Q(ttft_ms__lte=TTFT_TARGET_MS))
    sums |= {"gap_count": Count("id", filter=has_gap), "gap_on_target": Count("id", filter=has_gap & is_met)}
    adjusted = Adjustment.objects.filter(tenant_id=tenant_id, usage_at__gte=query.starts_at, usage_at__lt=query.ends_at)
    amounts = {"amount_picos": Sum("amount_picos")}
    return _together(
        _grouped(rows, _bucket("ended_at", query), sums, query), _grouped(adjusted, _bucket("usage_at", query), amounts, query)
    )


def _together(some: Iterable[UsageBucket], others: Iterable[UsageBucket]) -> list[UsageBucket]:
    """By time and group, those of one bucket added up."""
    found = {(bucket.starts_at, bucket.group): bucket for bucket in some}
    for bucket in others:
        into = found.setdefault((bucket.starts_at, bucket.group), replace(bucket, sums=dict.fromkeys(SUMS, 0)))
        for name, number in bucket.sums.items():
            into.sums[name] += number
    return [found[key] for key in sorted(found)]


def _table_of(tenant_id: UUID, query: UsageQuery) -> tuple[type[UsageSlot], bool]:
    """The table with the fewest rows that has this range, and whether its rows are the buckets asked for."""
    if query.granularity == "day" and time_zones([tenant_id]).get(tenant_id, UTC_NAME) == query.time_zone:
        return UsageDay, True
    if _has_whole_hours(query):
        return UsageHour, query.granularity == "hour"
    return UsageQuarter, False


def _grouped(rows: QuerySet[Any], bucket: Any, sums: dict[str, Any], query: UsageQuery) -> Iterable[UsageBucket]:
    for group, value in query.filters:
        rows = rows.filter(**_filter(group, value, is_ledger=rows.model in (UsageRecord, Adjustment)))
    # The sums' names are those of columns that the database would rather sum: ours carry a prefix.
    named = {f"sum_{name}": total for name, total in sums.items()}
    keys = ["bucket", GROUPS[query.group_by]] if query.group_by else ["bucket"]
    found = rows.annotate(bucket=bucket).values(*keys).annotate(**named).order_by(*keys)
    for start, *rest in found.values_list(*keys, *named):
        group = "" if not query.group_by else "0" if rest[0] is None else str(rest[0])
        found_sums = dict(zip(sums, [number or 0 for number in rest[len(keys) - 1 :]], strict=True))
        found_sums["amount_picos"] = int(found_sums["amount_picos"])
        yield UsageBucket(_start_of(start, query), group, found_sums)


class _Total(Sum):
    """A sum as the database's own whole number: Django's conversion of each value costs more than adding them up."""

    template = "CAST(%(function)s(%(distinct)s%(expressions)s) AS bigint)"

    def get_db_converters(self, connection: Any) -> list[Any]:
        return []


class _BigTotal(_Total):
    """Of pico-dollars: 64 bits hold nine million dollars. PostgreSQL's are Decimals of whole numbers then."""

    template = "%(function)s(%(distinct)s%(expressions)s)"


def _filter(group: str, value: str, *, is_ledger: bool) -> dict[str, Any]:
    if group != "member":
        return {GROUPS[group]: value}
    member = int(value)
    return {"member_id__isnull": True} if is_ledger and member == 0 else {"member_id": member}


def _bucket(at: str, query: UsageQuery) -> Any:
    """Days by their date in the zone; hours and minutes by how many there were since the range began."""
    if query.granularity == "day":
        return TruncDate(at, tzinfo=zone_named(query.time_zone))
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
    return midnight(bucket, query.time_zone)


def _floor(at: datetime, query: UsageQuery) -> datetime:
    """The start of the bucket `at` lies in, in UTC."""
    if query.granularity == "day":
        return day_start(at, query.time_zone)
    local = at.astimezone(zone_named(query.time_zone))
    offset_s = int((local.utcoffset() or timedelta()).total_seconds())
    # Of odd offsets (before time was standard) what is left is less than a quarter.
    offset_s = offset_s // QUARTER_S * QUARTER_S if query.granularity == "hour" else 0
    seconds = GRANULARITIES[query.granularity]
    start_s = (int(at.timestamp() // 1) + offset_s) // seconds * seconds - offset_s
    return datetime.fromtimestamp(start_s, UTC)


def _next(start: datetime, query: UsageQuery) -> datetime:
    if query.granularity == "day":
        return midnight(start.astimezone(zone_named(query.time_zone)).date() + timedelta(days=1), query.time_zone)
    return start + timedelta(seconds=GRANULARITIES[query.granularity])

"""Usage and revenue of all tenants over days or months: for finance and operators. Sums of the ledger, never its records.

A range is of whole days, half-open, in a stated time zone; or in OWN, each tenant's own calendar, whose months are those of
its statements. Revenue is what records and adjustments come to, less discounts, before credits and tax.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import Sum
from django.db.models.functions import TruncDate

from billing.credit_models import GrantReturn, GrantUse
from billing.models import UsageDay, UsageHour, UsageQuarter, UsageSlot
from billing.services.usage_slots import HOUR_S, ON_TARGET
from headway.errors import InvalidInput
from headway.months import UTC_NAME, midnight, zone_named
from tenants.selectors import time_zones

OWN = "own"
GRANULARITIES = ("day", "month")
DIMENSIONS = {"tenant": "tenant_id", "model": "model", "version": "version", "tier": "tier"}
SUMS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens", "amount_picos", "ttft_count", *ON_TARGET)
MAX_DAYS = 800
_Key = TypeVar("_Key", bound=Hashable)
_FARTHEST = timedelta(hours=15)
"""No calendar is further from UTC's."""


@dataclass(frozen=True)
class ReportQuery:
    first: date
    end: date
    """The first day that is not in it."""
    time_zone: str = UTC_NAME
    """Or OWN."""
    granularity: str = "day"
    group_by: tuple[str, ...] = ()
    """Of DIMENSIONS."""
    model: str = ""
    tenant_id: UUID | None = None


@dataclass(frozen=True)
class ReportRow:
    bucket: date
    """The day, or the first of the month."""
    group: tuple[str, ...]
    """In the order of `group_by`; of tenants their id."""
    sums: Counter[str]


@dataclass(frozen=True)
class Report:
    query: ReportQuery
    rows: list[ReportRow]
    """By bucket and group; those in which something happened."""

    def total(self) -> Counter[str]:
        return self.regrouped(()).by_group().get((), Counter())

    def regrouped(self, group_by: tuple[str, ...]) -> "Report":
        """The same by fewer of the dimensions it is grouped by."""
        places = [self.query.group_by.index(name) for name in group_by]
        sums: dict[tuple[date, tuple[str, ...]], Counter[str]] = {}
        for row in self.rows:
            _add(sums, (row.bucket, tuple(row.group[place] for place in places)), row.sums)
        return Report(replace(self.query, group_by=group_by), [ReportRow(*key, sums[key]) for key in sorted(sums)])

    def by_group(self) -> dict[tuple[str, ...], Counter[str]]:
        found: dict[tuple[str, ...], Counter[str]] = {}
        for row in self.rows:
            _add(found, row.group, row.sums)
        return found


def checked(query: ReportQuery) -> ReportQuery:
    """Raises InvalidInput for an unknown word, an empty or an overlong range."""
    if query.time_zone != OWN and zone_named(query.time_zone) is None:
        raise InvalidInput(f"{query.time_zone!r} is not a time zone, such as Europe/Berlin, nor {OWN!r}", param="zone")
    if query.granularity not in GRANULARITIES:
        raise InvalidInput(f"a granularity is one of {', '.join(GRANULARITIES)}", param="granularity")
    if not set(query.group_by) <= set(DIMENSIONS) or len(set(query.group_by)) < len(query.group_by):
        raise InvalidInput(f"a report is grouped by some of {', '.join(DIMENSIONS)}", param="group")
    if not timedelta(0) < query.end - query.first <= timedelta(days=MAX_DAYS):
        raise InvalidInput(f"a range has at least one day and at most {MAX_DAYS}", param="to")
    if query.first.year < 2000 or query.end.year > 2999:
        raise InvalidInput("days lie between 2000 and 2999", param="from")
    return query


def report(query: ReportQuery) -> Report:
    """Raises InvalidInput. One query, and one more for the zones of OWN."""
    query = checked(query)
    sums: dict[tuple[date, tuple[str, ...]], Counter[str]] = {}
    for day, group, numbers in _own_days(query) if query.time_zone == OWN else _days(query):
        bucket = day if query.granularity == "day" else day.replace(day=1)
        _add(sums, (bucket, group), numbers)
    return Report(query, [ReportRow(*key, sums[key]) for key in sorted(sums)])


def bounds(query: ReportQuery) -> tuple[datetime, datetime]:
    """As instants; of OWN those of UTC's calendar."""
    zone = UTC_NAME if query.time_zone == OWN else query.time_zone
    return midnight(query.first, zone), midnight(query.end, zone)


def credits_of_months(months: Iterable[str]) -> dict[UUID, int]:
    """Pico-dollars that grants paid on the statements of these months, less what they got back, by tenant."""
    months, sums = list(months), Counter[UUID]()
    for table, sign in ((GrantUse, 1), (GrantReturn, -1)):
        rows = table._default_manager.filter(billing_month__in=months).values_list("grant__tenant_id")
        for tenant_id, picos in rows.annotate(sum=Sum("amount_picos")).order_by():
            sums[tenant_id] += sign * int(picos)
    return {tenant_id: picos for tenant_id, picos in sums.items() if picos}


def _days(query: ReportQuery) -> Iterator[tuple[date, tuple[str, ...], dict[str, int]]]:
    starts_at, ends_at = bounds(query)
    table: type[UsageSlot] = UsageHour if _has_whole_hours(query) else UsageQuarter
    rows = table._default_manager.filter(starts_at__gte=starts_at, starts_at__lt=ends_at)
    zone = zone_named(query.time_zone) or UTC
    fields = [DIMENSIONS[name] for name in query.group_by]
    named = _filtered(rows.annotate(day=TruncDate("starts_at", tzinfo=zone)), query).values("day", *fields)
    for row in named.annotate(**{f"sum_{name}": Sum(name) for name in SUMS}).order_by():
        yield row["day"], tuple(str(row[field]) for field in fields), _numbers(row)


def _own_days(query: ReportQuery) -> Iterator[tuple[date, tuple[str, ...], dict[str, int]]]:
    starts_at, ends_at = bounds(query)
    rows = UsageDay.objects.filter(starts_at__gte=starts_at - _FARTHEST, starts_at__lt=ends_at + _FARTHEST)
    fields = [DIMENSIONS[name] for name in query.group_by]
    named = _filtered(rows, query).values("tenant_id", "starts_at", *(field for field in fields if field != "tenant_id"))
    found = list(named.annotate(**{f"sum_{name}": Sum(name) for name in SUMS}).order_by())
    zones = {tenant_id: zone_named(name) for tenant_id, name in time_zones({row["tenant_id"] for row in found}).items()}
    for row in found:
        day = row["starts_at"].astimezone(zones.get(row["tenant_id"]) or UTC).date()
        if query.first <= day < query.end:
            yield day, tuple(str(row[field]) for field in fields), _numbers(row)


def _filtered(rows: Any, query: ReportQuery) -> Any:
    if query.model:
        rows = rows.filter(model=query.model)
    return rows if query.tenant_id is None else rows.filter(tenant_id=query.tenant_id)


def _has_whole_hours(query: ReportQuery) -> bool:
    """Does each of its days begin with an hour of UTC? Hours are a quarter of the rows."""
    days = (query.end - query.first).days
    return all(
        midnight(query.first + timedelta(days=count), query.time_zone).timestamp() % HOUR_S == 0 for count in range(days + 1)
    )


def _numbers(row: dict[str, Any]) -> dict[str, int]:
    return {name: int(row[f"sum_{name}"] or 0) for name in SUMS}


def _add(sums: dict[_Key, Counter[str]], key: _Key, numbers: Mapping[str, int]) -> None:
    into = sums.get(key)
    if into is None:
        sums[key] = Counter(numbers)
        return
    for name, number in numbers.items():
        into[name] += number

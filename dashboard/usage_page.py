"""Usage of a tenant as its page draws it and its file lists it: the same numbers in chart, table and CSV."""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

from billing.selectors import newest_use
from billing.services.billed_months import BilledMonth, billed_months
from billing.services.usage_series import UsageBucket, aligned, usage_series
from billing.services.usage_series import UsageQuery as SeriesQuery
from dashboard.request_file import too_many
from dashboard.request_log import MAX_LISTED_KEYS, names_of_keys
from dashboard.usage_query import GROUPS, MEAN, METRICS, RANGES, UsageQuery, bucket_starts, usage_query, whole_months_of
from headway.money import PICOS_A_MICRO, picos_to_usd
from headway.streaming import as_text
from inference.selectors import model_ids
from tenants.selectors import keys_of_tenant, members_of_tenant

MAX_SERIES = 6
MAX_TABLE_ROWS = 100
OTHER = "Other"
_COLUMNS = {
    "requests": "requests",
    "errors": "errors",
    "input_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "output_tokens": "completion_tokens",
    "spend": "amount_picos",
}
CSV_COLUMNS = ("requests", "errors", "input_tokens", "cached_tokens", "output_tokens", "ttft_ms_mean", "amount_usd")


@dataclass(frozen=True)
class Series:
    name: str
    values: list[float | None]
    total: float | None


@dataclass(frozen=True)
class TableRow:
    label: str
    values: list[float | None]


@dataclass(frozen=True)
class UsagePage:
    query: UsageQuery
    starts: list[datetime]
    series: list[Series]
    totals: dict[str, float | None]
    models: list[str]
    keys: list[Any]
    as_of: datetime
    newest: datetime | None
    ranges: Any = RANGES
    metrics: Any = METRICS
    groups: Any = GROUPS
    granularities: Any = ("minute", "hour", "day")

    @property
    def is_empty(self) -> bool:
        return not self.totals["requests"]

    @property
    def chart(self) -> dict[str, Any]:
        """For charts.js."""
        step_s = {"minute": 60, "hour": 3600, "day": 86400}[self.query.granularity]
        return {
            "times": [int(start.timestamp()) for start in self.starts],
            "series": [{"name": each.name, "values": each.values} for each in self.series],
            "unit": self.query.unit,
            "stack": self.query.metric != MEAN,
            "zone": self.query.zone_name,
            "step_s": step_s,
        }

    @property
    def table_rows(self) -> list["TableRow"]:
        """Newest first; buckets without anything are left out, and what is beyond a page is in the file."""
        form = "%Y-%m-%d" if self.query.granularity == "day" else "%Y-%m-%d %H:%M"
        rows: list[TableRow] = []
        for at in reversed(range(len(self.starts))):
            values = [each.values[at] for each in self.series]
            if any(values):
                rows.append(TableRow(self.starts[at].strftime(form), values))
            if len(rows) == MAX_TABLE_ROWS:
                break
        return rows

    @property
    def lead(self) -> str:
        return f"Time zone {self.query.zone_name}. Numbers come from the ledger that bills, about a second behind."

    @property
    def num_requests(self) -> int:
        return int(self.totals["requests"] or 0)

    @property
    def too_many(self) -> str:
        return too_many(self.num_requests)

    @property
    def chart_title(self) -> str:
        return f"{self.query.metric_label} {'up to each' if self.query.is_cumulative else 'per'} {self.query.granularity}"

    @property
    def as_of_text(self) -> str:
        return self.as_of.astimezone(self.query.zone).strftime("%H:%M:%S")

    @property
    def from_day(self) -> str:
        return self.query.start.astimezone(self.query.zone).date().isoformat()

    @property
    def to_day(self) -> str:
        return (self.query.end - timedelta(seconds=1)).astimezone(self.query.zone).date().isoformat()

    @property
    def newest_day(self) -> str:
        return "" if self.newest is None else self.newest.astimezone(self.query.zone).date().isoformat()


def usage_page(tenant: Any, asked: Mapping[str, str], now: datetime) -> UsagePage:
    query = usage_query(asked, tenant.time_zone, now)
    buckets, keys = _buckets(tenant, query), list(keys_of_tenant(tenant)[:MAX_LISTED_KEYS])
    starts = bucket_starts(query)
    return UsagePage(
        query=query,
        starts=starts,
        series=_series(buckets, starts, query, _namer(tenant, query, keys), now),
        totals={name: _value(buckets, name) for name, _, _ in METRICS},
        models=model_ids(),
        keys=keys,
        as_of=now,
        newest=newest_use(tenant.id) if not buckets else None,
    )


def billed_in(tenant: Any, query: UsageQuery, now: datetime) -> list[BilledMonth]:
    """The months that lie wholly in the range, the one that runs among them, newest first; none of a single model or key."""
    return [] if query.model or query.key else billed_months(tenant.id, whole_months_of(query, now)[::-1])


def usage_csv(tenant: Any, asked: Mapping[str, str], now: datetime) -> str:
    """A line a bucket and group; times with their offset, and the zone's name in the head."""
    query = usage_query(asked, tenant.time_zone, now)
    name_of = _namer(tenant, query, list(keys_of_tenant(tenant)[:MAX_LISTED_KEYS]))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([f"{query.granularity} ({query.zone_name})", query.group, *CSV_COLUMNS])
    for bucket in _buckets(tenant, query):
        sums = bucket.sums
        ttft = round(sums["ttft_ms_sum"] / sums["ttft_count"], 1) if sums["ttft_count"] else ""
        at, numbers = bucket.starts_at.astimezone(query.zone).isoformat(), [sums[_COLUMNS[name]] for name in CSV_COLUMNS[:5]]
        writer.writerow([at, as_text(name_of(bucket.group)), *numbers, ttft, picos_to_usd(sums["amount_picos"])])
    return text.getvalue()


def _buckets(tenant: Any, query: UsageQuery) -> list[UsageBucket]:
    filters = tuple((name, value) for name, value in (("model", query.model), ("key", query.key)) if value)
    group = "" if query.group == "none" else query.group
    asked = SeriesQuery(query.start, query.end, query.zone_name, query.granularity, group, filters)
    return usage_series(tenant.id, aligned(asked)).buckets


def _namer(tenant: Any, query: UsageQuery, keys: list[Any]) -> Callable[[str], str]:
    names: dict[str, str] = {}
    if query.group == "key":
        names = names_of_keys(keys) | {key.id: f"{key.name} (revoked)" for key in keys if key.revoked_at}
    elif query.group == "member":
        names = {str(member.user_id): str(member.user) for member in members_of_tenant(tenant)[:MAX_LISTED_KEYS]}
    names["0"] = "no member" if query.group == "member" else "0"
    none = {"none": "All", "member": "no member", "key": "no key"}.get(query.group, "none")
    return lambda group: names.get(group, group or none)


def _series(
    buckets: list[UsageBucket], starts: list[datetime], query: UsageQuery, name_of: Callable[[str], str], now: datetime
) -> list[Series]:
    """The largest groups, and what the others come to as one more."""
    by_group: dict[str, list[UsageBucket]] = defaultdict(list)
    for bucket in buckets:
        by_group[bucket.group].append(bucket)
    ranked = sorted(by_group, key=lambda group: (-(_value(by_group[group], query.metric) or 0), group))
    named = [(name_of(group), by_group[group]) for group in ranked[:MAX_SERIES]]
    rest = [bucket for group in ranked[MAX_SERIES:] for bucket in by_group[group]]
    named += [(OTHER, rest)] if rest else []
    found = []
    for name, mine in named:
        at: dict[float, list[UsageBucket]] = defaultdict(list)
        for bucket in mine:
            at[bucket.starts_at.timestamp()].append(bucket)
        values = [_value(at.get(start.timestamp(), []), query.metric) for start in starts]
        if query.is_cumulative:
            values = _summed_up(values, sum(start <= now for start in starts))
        found.append(Series(name=name, values=values, total=_value(mine, query.metric)))
    return found


def _summed_up(values: list[float | None], num_begun: int) -> list[float | None]:
    """Each with all before it; nothing is known of buckets that have not begun."""
    sums: list[float | None] = list(accumulate(value or 0 for value in values[:num_begun]))
    return sums + [None] * (len(values) - num_begun)


def _value(buckets: list[UsageBucket], metric: str) -> float | None:
    """A sum; of spend in micro-dollars, as charts take it; of times to the first token the mean, None where there was none."""
    if metric == MEAN:
        count = sum(bucket.sums["ttft_count"] for bucket in buckets)
        return round(sum(bucket.sums["ttft_ms_sum"] for bucket in buckets) / count, 1) if count else None
    total = sum(bucket.sums[_COLUMNS[metric]] for bucket in buckets)
    return total / PICOS_A_MICRO if metric == "spend" else total

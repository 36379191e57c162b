"""Reports as operators' pages draw them and their files list them: the same numbers in chart, tables, CSV and PDF."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from billing.services.margins import Margins, margins
from billing.services.reports import OWN, Report, ReportQuery, credits_of_months, report, whole_months
from dashboard.report_query import GRANULARITIES, GROUPS, METRICS, RANGES, ReportAsked, report_asked
from dashboard.usage_page import MAX_SERIES, OTHER, Series
from headway.money import PICOS_A_MICRO, picos_to_usd
from headway.months import UTC_NAME, midnight
from inference.selectors import model_ids
from tenants.selectors import names_of_tenants

MAX_ROWS = 200
"""Of a table on a page; files have all."""
DAY_S = 86_400
HOUR_S = 3600
CSV_SUMS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens")
CSV_HEAD = ("requests", "errors", "input_tokens", "cached_tokens", "output_tokens", "revenue_usd")
CSV_TARGETS = {
    "ttft_count": "with_first_token",
    "ttft_on_target": "ttft_within_500_ms",
    "gap_count": "with_two_tokens",
    "gap_on_target": "gap_under_50_ms",
}
MARGIN_HEAD = ("of", "name", "revenue_usd", "cost_usd", "margin_usd", "replica_hours", "hours_without_cost")


class Usd(int):
    """Pico-dollars that a file shows as exact dollars: a number, below zero too, and no text that is made harmless."""

    def __str__(self) -> str:
        return picos_to_usd(int(self))


@dataclass(frozen=True)
class ReportLine:
    name: str
    sums: Counter[str]
    credit_picos: int | None = None
    """None: not by tenant, or no whole month."""


@dataclass(frozen=True)
class MarginLine:
    name: str
    revenue_picos: int
    cost_picos: int
    margin_picos: int
    replica_hours: float | None = None
    uncosted_hours: float = 0.0


@dataclass(frozen=True)
class ReportPage:
    asked: ReportAsked
    total: Counter[str]
    lines: list[ReportLine]
    tenants: list[ReportLine]
    series: list[Series]
    buckets: list[date]
    models_margin: list[MarginLine]
    tenants_margin: list[MarginLine]
    idle_picos: int
    uncosted_hours: float
    credit_months: list[str]
    credit_picos: int
    models: list[str]
    as_of: datetime
    ranges: Any = RANGES
    metrics: Any = METRICS
    granularities: Any = GRANULARITIES

    @property
    def groups(self) -> list[tuple[str, str]]:
        return [(name, label) for name, (label, _) in GROUPS.items()]

    @property
    def group_label(self) -> str:
        return GROUPS[self.asked.group][0] if self.asked.group != "none" else "All"

    @property
    def is_empty(self) -> bool:
        return not self.lines and not self.models_margin

    @property
    def cost_picos(self) -> int:
        return sum(line.cost_picos for line in self.models_margin)

    @property
    def chart(self) -> dict[str, Any]:
        """For charts.js."""
        zone = UTC_NAME if self.asked.query.time_zone == OWN else self.asked.query.time_zone
        step_s = DAY_S if self.asked.query.granularity == "day" else 30 * DAY_S
        return {
            "times": [midnight(bucket, zone).timestamp() for bucket in self.buckets],
            "series": [{"name": each.name, "values": each.values} for each in self.series],
            "unit": self.asked.unit,
            "stack": True,
            "zone": zone,
            "step_s": step_s,
        }

    @property
    def bucket_rows(self) -> list[tuple[str, list[float | None]]]:
        """Newest first; those without anything are left out."""
        rows = [
            (_label(bucket, self.asked), [each.values[at] for each in self.series]) for at, bucket in enumerate(self.buckets)
        ]
        return [row for row in reversed(rows) if any(row[1])][:MAX_ROWS]


def report_page(asked: Mapping[str, str], now: datetime) -> ReportPage:
    wanted = report_asked(asked, now)
    query = wanted.query
    found, by_tenant, kept = report(query), _by_tenant(query), margins(query, now=now)
    names = _names(by_tenant, kept)
    months = [] if query.model else whole_months(query)
    credit = credits_of_months(months) if months else {}
    if query.tenant_id:
        credit = {query.tenant_id: credit.get(query.tenant_id, 0)}
    groups = found.by_group()
    of_tenant = {str(tenant_id): picos for tenant_id, picos in credit.items()} if months else None
    is_by_tenant = wanted.group == "tenant" and of_tenant is not None
    lines = [
        ReportLine(
            _group_name(query, group, names), sums, (of_tenant or {}).get(group[0], 0) if is_by_tenant and group else None
        )
        for group, sums in groups.items()
    ]
    buckets = _buckets(query)
    return ReportPage(
        asked=wanted,
        total=found.total(),
        lines=_ranked(lines, wanted.metric)[:MAX_ROWS],
        tenants=_ranked([ReportLine(names(group[0]), sums) for group, sums in by_tenant.by_group().items()], "requests")[
            :MAX_ROWS
        ],
        series=_series(found, buckets, wanted, names),
        buckets=buckets,
        **_margin_lines(kept, names),
        credit_months=months,
        credit_picos=sum(credit.values()),
        models=model_ids(),
        as_of=now,
    )


def report_rows(asked: Mapping[str, str], now: datetime) -> tuple[list[str], Iterator[list[Any]]]:
    """Head and rows of the CSV: a row a bucket and group, amounts exact."""
    wanted = report_asked(asked, now)
    found = report(wanted.query)
    names = _names(_by_tenant(wanted.query), None)
    head = [f"{wanted.query.granularity} ({wanted.zone_text})", *wanted.query.group_by, *CSV_HEAD, *CSV_TARGETS.values()]
    return head, (
        [
            _label(row.bucket, wanted),
            *(names(text) if name == "tenant" else text for name, text in zip(wanted.query.group_by, row.group, strict=True)),
            *(row.sums[name] for name in CSV_SUMS),
            Usd(row.sums["amount_picos"]),
            *(row.sums[name] for name in CSV_TARGETS),
        ]
        for row in found.rows
    )


def margin_rows(asked: Mapping[str, str], now: datetime) -> Iterator[list[Any]]:
    """Of the margins' CSV (MARGIN_HEAD): models, tenants, what is idle."""
    wanted = report_asked(asked, now)
    kept = margins(wanted.query, now=now)
    lines = _margin_lines(kept, _names(_by_tenant(wanted.query), kept))
    for of, its in (("model", lines["models_margin"]), ("tenant", lines["tenants_margin"])):
        for line in its:
            hours = [line.replica_hours, line.uncosted_hours] if line.replica_hours is not None else ["", ""]
            yield [of, line.name, *map(Usd, (line.revenue_picos, line.cost_picos, line.margin_picos)), *hours]
    yield ["idle", "", 0, *map(Usd, (kept.idle_picos, -kept.idle_picos)), "", ""]


def _by_tenant(query: ReportQuery) -> Report:
    return report(ReportQuery(query.first, query.end, query.time_zone, "month", ("tenant",), query.model, query.tenant_id))


def _names(by_tenant: Report, kept: Margins | None) -> Callable[[str], str]:
    """Of tenants, by their ids as text."""
    ids = {group[0] for group in by_tenant.by_group()} | {line.name for line in (kept.tenants if kept else [])}
    found = {str(tenant_id): name for tenant_id, name in names_of_tenants(UUID(each) for each in ids).items()}
    return lambda tenant_id: found.get(tenant_id, tenant_id)


def _group_name(query: ReportQuery, group: tuple[str, ...], names: Callable[[str], str]) -> str:
    if not group:
        return "All"
    shown = [names(text) if name == "tenant" else text or "(unknown)" for name, text in zip(query.group_by, group, strict=True)]
    return " · ".join(shown)


def _margin_lines(kept: Margins, names: Callable[[str], str]) -> dict[str, Any]:
    models = [
        MarginLine(
            line.name or "(unknown)",
            line.revenue_picos,
            line.cost_picos,
            line.margin_picos,
            round(line.time.replica_s / HOUR_S, 2),
            round(line.time.uncosted_s / HOUR_S, 2),
        )
        for line in kept.models
        if line.revenue_picos or line.time.replica_s
    ]
    tenants = [
        MarginLine(names(line.name), line.revenue_picos, line.cost_picos, line.margin_picos)
        for line in kept.tenants
        if line.revenue_picos or line.cost_picos
    ]
    return {
        "models_margin": sorted(models, key=lambda line: line.margin_picos),
        "tenants_margin": sorted(tenants, key=lambda line: line.margin_picos)[:MAX_ROWS],
        "idle_picos": kept.idle_picos,
        "uncosted_hours": round(kept.uncosted_s / HOUR_S, 2),
    }


def _ranked(lines: list[ReportLine], metric: str) -> list[ReportLine]:
    return sorted(lines, key=lambda line: (-line.sums[metric], line.name))


def _buckets(query: ReportQuery) -> list[date]:
    days = [query.first + timedelta(days=count) for count in range((query.end - query.first).days)]
    return days if query.granularity == "day" else sorted({day.replace(day=1) for day in days})


def _label(bucket: date, asked: ReportAsked) -> str:
    return bucket.isoformat() if asked.query.granularity == "day" else f"{bucket:%Y-%m}"


def _series(found: Report, buckets: list[date], asked: ReportAsked, names: Callable[[str], str]) -> list[Series]:
    """The largest groups, and what the others come to as one more."""
    totals = {group: sums[asked.metric] for group, sums in found.by_group().items()}
    ranked = sorted(totals, key=lambda group: (-totals[group], group))
    shown = {group: _group_name(asked.query, group, names) for group in ranked[:MAX_SERIES]}
    sums: dict[str, Counter[date]] = defaultdict(Counter)
    for row in found.rows:
        sums[shown.get(row.group, OTHER)][row.bucket] += row.sums[asked.metric]
    ordered = [*shown.values(), *([OTHER] if len(ranked) > MAX_SERIES else [])]
    scale = PICOS_A_MICRO if asked.unit == "usd" else 1
    return [
        Series(name, [sums[name][bucket] / scale for bucket in buckets], sum(sums[name].values()) / scale) for name in ordered
    ]

"""Reports as operators' pages draw them and their files list them: the same numbers in chart, tables, CSV and PDF."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID

from billing.services.billed_months import carried_over
from billing.services.margins import Margins, margins
from billing.services.report_files import (
    Names,
    bucket_text,
    hours_of,
    margin_rows,
    models_shown,
    names_in,
    report_rows,
    tenants_shown,
)
from billing.services.reports import OWN, Report, ReportQuery, credits_of_months, report
from dashboard.report_query import GRANULARITIES, GROUPS, METRICS, RANGES, ReportAsked, report_asked
from dashboard.usage_page import MAX_SERIES, OTHER, Series
from headway.money import PICOS_A_MICRO
from headway.months import UTC_NAME, midnight, whole_months
from inference.selectors import model_ids

MAX_ROWS = 200
"""Of a table on a page; files have all."""
DAY_S = 86_400


@dataclass(frozen=True)
class ReportLine:
    name: str
    sums: Counter[str]
    credit_picos: int | None = None
    """None: not by tenant, or no whole month."""
    carried_picos: int | None = None
    """What statements of the months keep for later ones, less what they took over."""


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
    carried_picos: int
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
            (bucket_text(bucket, self.asked.query), [each.values[at] for each in self.series])
            for at, bucket in enumerate(self.buckets)
        ]
        return [row for row in reversed(rows) if any(row[1])][:MAX_ROWS]


def report_page(asked: Mapping[str, str], now: datetime) -> ReportPage:
    wanted = report_asked(asked, now)
    query = wanted.query
    # Once from the database, by all that is shown; what is shown is added up from it.
    finest = tuple(dict.fromkeys((*query.group_by, "tenant", "model")))
    every = report(replace(query, group_by=finest))
    found, by_tenant, kept = every.regrouped(query.group_by), every.regrouped(("tenant",)), margins(query, now=now, used=every)
    names = names_in(by_tenant, kept)
    months = [] if query.model else whole_months(query.first, query.end)
    credit, carried = (_of_tenants(amounts, query) for amounts in (credits_of_months(months), carried_over(months)))
    is_by_tenant = bool(months) and wanted.group == "tenant"
    lines = [_line(query, group, sums, names, credit, carried, is_by_tenant) for group, sums in found.by_group().items()]
    buckets = _buckets(query)
    return ReportPage(
        asked=wanted,
        total=found.total(),
        lines=_ranked(lines, wanted.metric)[:MAX_ROWS],
        tenants=_ranked([ReportLine(names[group[0]], sums) for group, sums in by_tenant.by_group().items()], "requests")[
            :MAX_ROWS
        ],
        series=_series(found, buckets, wanted, names),
        buckets=buckets,
        **_margin_lines(kept, names),
        credit_months=months,
        credit_picos=sum(credit.values()),
        carried_picos=sum(carried.values()),
        models=model_ids(),
        as_of=now,
    )


def asked_report_rows(asked: Mapping[str, str], now: datetime) -> tuple[list[str], Iterator[list[Any]]]:
    """Head and rows of the CSV."""
    return report_rows(report_asked(asked, now).query)


def asked_margin_rows(asked: Mapping[str, str], now: datetime) -> Iterator[list[Any]]:
    """Of the margins' CSV (MARGIN_HEAD)."""
    return margin_rows(report_asked(asked, now).query, now=now)


def _of_tenants(amounts: Mapping[UUID, int], query: ReportQuery) -> dict[str, int]:
    """By ids as text; of the one that is asked for, or of all."""
    return {str(each): picos for each, picos in amounts.items() if query.tenant_id in (None, each)}


def _line(
    query: ReportQuery,
    group: tuple[str, ...],
    sums: Counter[str],
    names: Names,
    credit: Mapping[str, int],
    carried: Mapping[str, int],
    is_by_tenant: bool,
) -> ReportLine:
    name = _group_name(query, group, names)
    return ReportLine(name, sums, credit.get(group[0], 0), carried.get(group[0], 0)) if is_by_tenant else ReportLine(name, sums)


def _group_name(query: ReportQuery, group: tuple[str, ...], names: Names) -> str:
    if not group:
        return "All"
    shown = [names[text] if name == "tenant" else text or "(unknown)" for name, text in zip(query.group_by, group, strict=True)]
    return " · ".join(shown)


def _margin_lines(kept: Margins, names: Names) -> dict[str, Any]:
    models = [
        MarginLine(
            line.name,
            line.revenue_picos,
            line.cost_picos,
            line.margin_picos,
            hours_of(line.time.replica_s),
            hours_of(line.time.uncosted_s),
        )
        for line in models_shown(kept)
    ]
    tenants = [
        MarginLine(names[line.name], line.revenue_picos, line.cost_picos, line.margin_picos) for line in tenants_shown(kept)
    ]
    return {
        "models_margin": models,
        "tenants_margin": tenants[:MAX_ROWS],
        "idle_picos": kept.idle_picos,
        "uncosted_hours": hours_of(kept.uncosted_s),
    }


def _ranked(lines: list[ReportLine], metric: str) -> list[ReportLine]:
    return sorted(lines, key=lambda line: (-line.sums[metric], line.name))


def _buckets(query: ReportQuery) -> list[date]:
    days = [query.first + timedelta(days=count) for count in range((query.end - query.first).days)]
    return days if query.granularity == "day" else sorted({day.replace(day=1) for day in days})


def _series(found: Report, buckets: list[date], asked: ReportAsked, names: Names) -> list[Series]:
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

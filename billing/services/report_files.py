"""Reports as rows of a file: for operators' pages and the API, the same."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime
from typing import Any
from uuid import UUID

from billing.services.margins import Margin, Margins, margins
from billing.services.reports import OWN, Report, ReportQuery, report
from headway.money import Usd
from tenants.selectors import names_of_tenants

HOUR_S = 3600
SUMS = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens")
HEAD = ("requests", "errors", "input_tokens", "cached_tokens", "output_tokens", "revenue_usd")
TARGETS = {
    "ttft_count": "with_first_token",
    "ttft_on_target": "ttft_within_500_ms",
    "gap_count": "with_two_tokens",
    "gap_on_target": "gap_under_50_ms",
}
MARGIN_HEAD = ("of", "name", "revenue_usd", "cost_usd", "margin_usd", "replica_hours", "hours_without_cost")


class Names(dict[str, str]):
    """Of tenants, by their ids as text; those that are gone keep their ids."""

    def __missing__(self, tenant_id: str) -> str:
        return tenant_id


def names_in(found: Report | None, kept: Margins | None = None) -> Names:
    """`found`: grouped by tenant, among others."""
    place = found.query.group_by.index("tenant") if found is not None and "tenant" in found.query.group_by else None
    ids = {row.group[place] for row in found.rows} if found is not None and place is not None else set()
    ids |= {line.name for line in kept.tenants} if kept is not None else set()
    return Names({str(tenant_id): name for tenant_id, name in names_of_tenants(UUID(each) for each in ids).items()})


def zone_text(query: ReportQuery) -> str:
    return "each tenant's own calendar" if query.time_zone == OWN else f"time zone {query.time_zone}"


def bucket_text(bucket: date, query: ReportQuery) -> str:
    """ "2026-11-30", or "2026-11"."""
    return bucket.isoformat() if query.granularity == "day" else f"{bucket:%Y-%m}"


def report_rows(query: ReportQuery) -> tuple[list[str], Iterator[list[Any]]]:
    """Head and rows: a row a bucket and group, amounts exact. Raises InvalidInput."""
    found = report(query)
    names = names_in(found)
    head = [f"{query.granularity} ({zone_text(query)})", *query.group_by, *HEAD, *TARGETS.values()]
    return head, (
        [
            bucket_text(row.bucket, query),
            *(names[text] if name == "tenant" else text for name, text in zip(query.group_by, row.group, strict=True)),
            *(row.sums[name] for name in SUMS),
            Usd(row.sums["amount_picos"]),
            *(row.sums[name] for name in TARGETS),
        ]
        for row in found.rows
    )


def margin_rows(query: ReportQuery, *, now: datetime) -> Iterator[list[Any]]:
    """Under MARGIN_HEAD: models, tenants, what is idle; those that lose most first. Raises InvalidInput."""
    kept = margins(query, now=now)
    names = names_in(None, kept)
    for model in models_shown(kept):
        hours = [hours_of(model.time.replica_s), hours_of(model.time.uncosted_s)]
        yield ["model", model.name, *_amounts(model), *hours]
    for tenant in tenants_shown(kept):
        yield ["tenant", names[tenant.name], *_amounts(tenant), "", ""]
    yield ["idle", "", 0, *map(Usd, (kept.idle_picos, -kept.idle_picos)), "", ""]


def models_shown(kept: Margins) -> list[Any]:
    """With revenue or replicas; those that lose most first."""
    shown = [line for line in kept.models if line.revenue_picos or line.time.replica_s]
    return sorted((replace(line, name=line.name or "(unknown)") for line in shown), key=lambda line: line.margin_picos)


def tenants_shown(kept: Margins) -> list[Margin]:
    shown = [line for line in kept.tenants if line.revenue_picos or line.cost_picos]
    return sorted(shown, key=lambda line: line.margin_picos)


def hours_of(seconds: float) -> float:
    return round(seconds / HOUR_S, 2)


def _amounts(line: Margin) -> list[Usd]:
    return [Usd(line.revenue_picos), Usd(line.cost_picos), Usd(line.margin_picos)]

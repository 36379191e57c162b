"""A report as a PDF: what the page shows, in tables."""

from typing import Any

from django.conf import settings

from billing.services.report_pdf import report_pdf
from dashboard.operator_reports import MarginLine, ReportLine, ReportPage
from dashboard.templatetags.dashboard import percent, thousands, usd_of_picos

USAGE = ["Requests", "Errors", "Input tokens", "Cached", "Output tokens", "Revenue"]
TARGETS = ["Tenant", "First tokens", "TTFT within 500 ms", "Answers with gaps", "Gap under 50 ms"]
MARGIN = ["Revenue", "Cost", "Margin", "Of revenue"]


def report_document(page: ReportPage) -> bytes:
    """Raises DocumentFailed."""
    asked = page.asked
    data = {
        "title": "Usage and revenue",
        "number": f"{asked.query.first} to {asked.last}, {asked.zone_text}",
        "author": settings.COMPANY_NAME or "Headway",
        "date": {"year": page.as_of.year, "month": page.as_of.month, "day": page.as_of.day},
        "footer": f"As of {page.as_of:%Y-%m-%d %H:%M:%S} UTC, from the ledger that bills",
        "facts": _facts(page),
        "tables": [_usage(page), *_margins(page), _targets(page.tenants)],
    }
    return report_pdf(data, at=page.as_of)


def _facts(page: ReportPage) -> list[list[str]]:
    asked = page.asked
    facts = [
        ["Revenue", f"{usd_of_picos(page.total['amount_picos'])} after discounts, before credits and tax"],
        ["Machines", f"{usd_of_picos(page.cost_picos)}, {usd_of_picos(page.idle_picos)} of it for models nobody used"],
    ]
    if page.credit_months:
        months = ", ".join(page.credit_months)
        facts.append(["Credits used", f"{usd_of_picos(page.credit_picos)} in {months}"])
        facts.append(["Carried over", f"{usd_of_picos(page.carried_picos)} to later statements, less what was taken over"])
    filters = [f"{name} {value}" for name, value in (("tenant", asked.tenant), ("model", asked.query.model)) if value]
    return [*facts, *([["Only", ", ".join(filters)]] if filters else [])]


def _usage(page: ReportPage) -> dict[str, Any]:
    rows = [[line.name, *_numbers(line)] for line in page.lines]
    total = ["All", *_numbers(ReportLine("All", page.total))]
    title = f"By {page.group_label.lower()}" if page.asked.group != "none" else "All"
    return _table(title, [page.group_label, *USAGE], [*rows, *([total] if len(rows) > 1 else [])])


def _numbers(line: ReportLine) -> list[str]:
    sums = line.sums
    cached = percent(sums["cached_tokens"], sums["prompt_tokens"])
    tokens = [thousands(sums["prompt_tokens"]), cached, thousands(sums["completion_tokens"])]
    return [thousands(sums["requests"]), thousands(sums["errors"]), *tokens, usd_of_picos(sums["amount_picos"])]


def _margins(page: ReportPage) -> list[dict[str, Any]]:
    lacking = f"{page.uncosted_hours:g} replica-hours have no cost set, and are missing in it." if page.uncosted_hours else ""
    models = [[*_margin(line), f"{line.replica_hours:g}"] for line in page.models_margin]
    return [
        _table("Margin by model", ["Model", *MARGIN, "Replica-hours"], models, note=lacking),
        _table("Margin by tenant", ["Tenant", *MARGIN], [_margin(line) for line in page.tenants_margin]),
    ]


def _margin(line: MarginLine) -> list[str]:
    amounts = [usd_of_picos(picos) for picos in (line.revenue_picos, line.cost_picos, line.margin_picos)]
    return [line.name, *amounts, percent(line.margin_picos, line.revenue_picos)]


def _targets(lines: list[ReportLine]) -> dict[str, Any]:
    rows = [
        [
            line.name,
            thousands(line.sums["ttft_count"]),
            percent(line.sums["ttft_on_target"], line.sums["ttft_count"]),
            thousands(line.sums["gap_count"]),
            percent(line.sums["gap_on_target"], line.sums["gap_count"]),
        ]
        for line in lines
        if line.sums["ttft_count"]
    ]
    return _table("Targets met", TARGETS, rows)


def _table(title: str, columns: list[str], rows: list[list[str]], *, note: str = "") -> dict[str, Any]:
    return {"title": title, "columns": columns, "rows": rows, "note": note, "nothing": "Nothing in this range."}

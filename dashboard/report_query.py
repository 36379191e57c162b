"""What a report is asked for, all of it in its address: range, zone, granularity, metric, grouping, filters."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from billing.services.report_files import zone_text
from billing.services.reports import OWN, ReportQuery, checked
from headway.errors import InvalidInput
from headway.months import UTC_NAME, zone_named
from tenants.errors import UnknownTenant
from tenants.services.tenants import tenant_named

RANGES = (("month", "Month to date"), ("last_month", "Last month"), ("30d", "Last 30 days"), ("custom", "Custom"))
METRICS = (
    ("amount_picos", "Revenue", "usd"),
    ("requests", "Requests", ""),
    ("prompt_tokens", "Input tokens", ""),
    ("cached_tokens", "Cached tokens", ""),
    ("completion_tokens", "Output tokens", ""),
    ("errors", "Errors", ""),
)
GROUPS = {
    "tenant": ("Tenant", ("tenant",)),
    "model": ("Model", ("model",)),
    "version": ("Version", ("model", "version")),
    "tier": ("Tier", ("tier",)),
    "tenant_model": ("Tenant and model", ("tenant", "model")),
    "none": ("Nothing", ()),
}
GRANULARITIES = ("day", "month")


@dataclass(frozen=True)
class ReportAsked:
    range: str
    query: ReportQuery
    group: str
    metric: str
    tenant: str
    problem: str = ""

    @property
    def zone_text(self) -> str:
        return zone_text(self.query)

    @property
    def last(self) -> date:
        return self.query.end - timedelta(days=1)

    @property
    def metric_label(self) -> str:
        return next(label for name, label, _ in METRICS if name == self.metric)

    @property
    def unit(self) -> str:
        return next(unit for name, _, unit in METRICS if name == self.metric)


def report_asked(asked: Mapping[str, str], now: datetime) -> ReportAsked:
    """What cannot be read is as if it was not asked; of zones, days and tenants `problem` says so."""
    zone, problem = asked.get("zone", "") or UTC_NAME, ""
    if zone != OWN and zone_named(zone) is None:
        zone, problem = UTC_NAME, f"{zone[:50]!r} is not a time zone, such as Europe/Berlin: this is UTC."
    wanted = _one_of(asked.get("range", ""), [name for name, _ in RANGES], "month")
    today = now.astimezone(zone_named(zone) or UTC).date()
    first, end, of_days = _days(wanted, asked, today)
    group, tenant = _one_of(asked.get("group", ""), list(GROUPS), "tenant"), asked.get("tenant", "").strip()[:100]
    tenant_id, of_tenant = _tenant(tenant)
    query = ReportQuery(
        first=first,
        end=end,
        time_zone=zone,
        granularity=_one_of(asked.get("granularity", ""), list(GRANULARITIES), "day"),
        group_by=GROUPS[group][1],
        model=asked.get("model", "")[:200],
        tenant_id=tenant_id,
    )
    metric = _one_of(asked.get("metric", ""), [name for name, _, _ in METRICS], "amount_picos")
    return ReportAsked(wanted, query, group, metric, tenant if tenant_id else "", problem or of_days or of_tenant)


def _days(wanted: str, asked: Mapping[str, str], today: date) -> tuple[date, date, str]:
    tomorrow, month = today + timedelta(days=1), today.replace(day=1)
    if wanted == "last_month":
        return (month - timedelta(days=1)).replace(day=1), month, ""
    if wanted == "30d":
        return today - timedelta(days=29), tomorrow, ""
    if wanted == "custom":
        try:
            first = date.fromisoformat(asked.get("from", ""))
            query = ReportQuery(first, date.fromisoformat(asked.get("to", "")) + timedelta(days=1))
            return first, checked(query).end, ""
        except (ValueError, OverflowError):
            return month, tomorrow, "Give both days of the range."
        except InvalidInput as error:
            return month, tomorrow, f"{error.message[:1].upper()}{error.message[1:]}."
    return month, tomorrow, ""


def _tenant(name: str) -> tuple[Any, str]:
    if not name:
        return None, ""
    try:
        return tenant_named(name).id, ""
    except UnknownTenant:
        return None, f"There is no tenant {name!r}: these are all."


def _one_of(value: str, allowed: list[str], otherwise: str) -> str:
    return value if value in allowed else otherwise

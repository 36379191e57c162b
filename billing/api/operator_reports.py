"""Operators: revenue, tokens, targets met and margins of all tenants, as JSON and as CSV."""

from collections import Counter
from datetime import date, timedelta
from typing import Any

from django.http import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api import operator_shapes as o
from billing.api.days import named_as_asked
from billing.services.margins import Margin, margins
from billing.services.report_files import (
    HEAD,
    MARGIN_HEAD,
    SUMS,
    TARGETS,
    bucket_text,
    hours_of,
    margin_rows,
    models_shown,
    names_in,
    report_rows,
    tenants_shown,
)
from billing.services.reports import OWN, ReportQuery, checked, report
from headway.errors import InvalidInput
from headway.money import picos_to_usd
from headway.months import zone_named
from headway.streaming import csv_file
from tenants.api.base import AsItIs, OperatorView
from tenants.services.tenants import tenant_named

CSV = {(200, "text/csv"): OpenApiTypes.STR}


class UsageReport(OperatorView):
    @extend_schema(operation_id="operator_reports_usage", parameters=[o.ReportAsked], responses=o.ReportShape)
    def get(self, _request: Request) -> Response:
        """Sums of the ledger by day or month; where nothing happened there is no row."""
        found = report(query_of(self.read_query(o.ReportAsked)))
        query, names = found.query, names_in(found)
        rows = []
        for row in found.rows:
            group = dict(zip(query.group_by, row.group, strict=True))
            if "tenant" in group:
                group["tenant"] = names[group["tenant"]]
            rows.append({"bucket": bucket_text(row.bucket, query), "group": group, **sums_values(row.sums)})
        values = {**range_values(query), "granularity": query.granularity, "total": sums_values(found.total()), "rows": rows}
        return Response(o.ReportShape(values).data)


class UsageReportCsv(OperatorView):
    content_negotiation_class = AsItIs

    @extend_schema(operation_id="operator_reports_usage_csv", parameters=[o.ReportAsked], responses=CSV)
    def get(self, request: Request) -> HttpResponseBase:
        """The same as a file."""
        head, rows = report_rows(query_of(self.read_query(o.ReportAsked)))
        return csv_file(request._request, name="headway-report.csv", head=head, rows=rows)


class MarginReport(OperatorView):
    @extend_schema(operation_id="operator_reports_margins", parameters=[o.MarginAsked], responses=o.MarginsShape)
    def get(self, _request: Request) -> Response:
        """Revenue less what machines cost, by model and by tenant; those that lose most first."""
        query = query_of(self.read_query(o.MarginAsked))
        kept = margins(query, now=timezone.now())
        names = names_in(None, kept)
        models = [
            margin_values(line)
            | {"replica_hours": hours_of(line.time.replica_s), "hours_without_cost": hours_of(line.time.uncosted_s)}
            for line in models_shown(kept)
        ]
        tenants = [margin_values(line) | {"name": names[line.name]} for line in tenants_shown(kept)]
        values = {**range_values(query), "models": models, "tenants": tenants, "idle_usd": picos_to_usd(kept.idle_picos)}
        return Response(o.MarginsShape(values).data)


class MarginReportCsv(OperatorView):
    content_negotiation_class = AsItIs

    @extend_schema(operation_id="operator_reports_margins_csv", parameters=[o.MarginAsked], responses=CSV)
    def get(self, request: Request) -> HttpResponseBase:
        """The same as a file."""
        rows = margin_rows(query_of(self.read_query(o.MarginAsked)), now=timezone.now())
        return csv_file(request._request, name="headway-margins.csv", head=MARGIN_HEAD, rows=rows)


def query_of(asked: dict[str, Any]) -> ReportQuery:
    """Raises InvalidInput, UnknownTenant."""
    zone = zone_named("UTC" if asked["zone"] == OWN else asked["zone"])
    if zone is None:
        raise InvalidInput(f"{asked['zone']!r} is not a time zone, such as Europe/Berlin, nor {OWN!r}", param="zone")
    today: date = timezone.now().astimezone(zone).date()
    last = asked.get("last", today)
    query = ReportQuery(
        first=asked.get("first", last.replace(day=1)),
        end=last + timedelta(days=1) if last < date.max else last,
        time_zone=asked["zone"],
        granularity=asked.get("granularity", "month"),
        group_by=tuple(name for name in asked.get("group_by", "").split(",") if name),
        model=asked["model"],
        tenant_id=tenant_named(asked["tenant"]).id if "tenant" in asked else None,
    )
    with named_as_asked():
        return checked(query)


def range_values(query: ReportQuery) -> dict[str, Any]:
    return {"first": query.first, "last": query.end - timedelta(days=1), "zone": query.time_zone}


def sums_values(sums: Counter[str]) -> dict[str, Any]:
    counted = {name: sums[field] for field, name in zip(SUMS, HEAD, strict=False)}
    return (
        counted | {"revenue_usd": picos_to_usd(sums["amount_picos"])} | {name: sums[field] for field, name in TARGETS.items()}
    )


def margin_values(line: Margin) -> dict[str, Any]:
    amounts = {"revenue_usd": line.revenue_picos, "cost_usd": line.cost_picos, "margin_usd": line.margin_picos}
    return {"name": line.name, **{name: picos_to_usd(picos) for name, picos in amounts.items()}}

"""Operators: usage and revenue of all tenants, margins, targets met; the same as files."""

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from billing.services.report_files import MARGIN_HEAD
from dashboard.operator_area import operators_only
from dashboard.operator_reports import asked_margin_rows, asked_report_rows, report_page
from dashboard.report_document import report_document
from headway.streaming import csv_file


@require_GET
@operators_only
def reports(request: HttpRequest) -> HttpResponse:
    return render(request, "operator/reports.html", {"report": report_page(request.GET, timezone.now())})


@require_GET
@operators_only
def usage_csv(request: HttpRequest) -> HttpResponseBase:
    head, rows = asked_report_rows(request.GET, timezone.now())
    return csv_file(request, name="headway-report.csv", head=head, rows=rows)


@require_GET
@operators_only
def margins_csv(request: HttpRequest) -> HttpResponseBase:
    rows = asked_margin_rows(request.GET, timezone.now())
    return csv_file(request, name="headway-margins.csv", head=MARGIN_HEAD, rows=rows)


@require_GET
@operators_only
def pdf(request: HttpRequest) -> HttpResponse:
    content = report_document(report_page(request.GET, timezone.now()))
    headers = {"content-disposition": 'attachment; filename="headway-report.pdf"', "cache-control": "no-store"}
    return HttpResponse(content, content_type="application/pdf", headers=headers)

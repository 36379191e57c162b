"""Operators: the report of usage, revenue and margins as a PDF, the same as on its page."""

from typing import Any

from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request

from dashboard.operator_reports import report_page
from dashboard.report_document import report_document
from dashboard.report_query import GROUPS, report_asked
from headway.errors import InvalidInput
from tenants.api.base import AsItIs, OperatorView
from tenants.services.tenants import tenant_named


class PdfAsked(s.Serializer):
    first = s.DateField(required=False, help_text="with `last`; the month to date unless told")
    last = s.DateField(required=False, help_text="it is in the range")
    zone = s.CharField(required=False, max_length=64, default="UTC", help_text='or "own": each tenant\'s calendar')
    group = s.ChoiceField([(name, label) for name, (label, _) in GROUPS.items()], required=False, default="tenant")
    model = s.CharField(required=False, max_length=200, default="")
    tenant = s.CharField(required=False, max_length=63, help_text="its name")


class ReportPdf(OperatorView):
    content_negotiation_class = AsItIs

    @extend_schema(
        operation_id="operator_reports_pdf",
        parameters=[PdfAsked],
        responses={(200, "application/pdf"): OpenApiTypes.BINARY},
    )
    def get(self, _request: Request) -> HttpResponse:
        """Usage and revenue, margins, and targets met, in tables. It is made when it is asked for, and not kept."""
        now, asked = timezone.now(), page_query(self.read_query(PdfAsked))
        if problem := report_asked(asked, now).problem:
            raise InvalidInput(problem[:1].lower() + problem[1:].rstrip("."))
        headers = {"content-disposition": 'attachment; filename="headway-report.pdf"'}
        return HttpResponse(report_document(report_page(asked, now)), content_type="application/pdf", headers=headers)


def page_query(asked: dict[str, Any]) -> dict[str, str]:
    """As the page's address has it. Raises InvalidInput, UnknownTenant."""
    if ("first" in asked) != ("last" in asked):
        raise InvalidInput("a range has a first and a last day", param="last" if "first" in asked else "first")
    if "tenant" in asked:
        tenant_named(asked["tenant"])
    query: dict[str, str] = {name: str(asked[name]) for name in ("zone", "group", "model", "tenant") if name in asked}
    if "first" in asked:
        query |= {"range": "custom", "from": str(asked["first"]), "to": str(asked["last"])}
    return query

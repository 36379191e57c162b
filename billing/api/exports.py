"""Files that a worker makes: the requests of a tenant, and for operators the ledger of a month."""

from typing import Any
from uuid import UUID

from django.http import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api.days import named_as_asked
from billing.api.export_shapes import ExportShape, NewLedgerExport, NewRequestsExport
from billing.export_models import Export
from billing.services.exports import (
    cancel_export,
    export_ledger,
    export_requests,
    exports_of,
    finished_export,
    name_of,
    one_export,
    pieces_of,
)
from headway.errors import NotFound
from headway.streaming import file_of_pieces
from tenants.access import Action
from tenants.api.base import AsItIs, OperatorView, TenantView

CSV = {(200, "text/csv"): OpenApiTypes.STR}
ORDER = ("-created_at", "id")


class Exports(TenantView):
    actions = {"GET": Action.VIEW_REQUESTS, "POST": Action.VIEW_REQUESTS}

    @extend_schema(operation_id="exports_list", responses=ExportShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        """Files that were asked for, newest first."""
        return self.page(exports_of(self.standing.tenant.id), ExportShape, ordering=ORDER, prepare=export_values)

    @extend_schema(operation_id="exports_create", request=NewRequestsExport, responses={202: ExportShape})
    def post(self, _request: Request, tenant: str) -> Response:
        """Requests of whole days as a CSV file. A worker makes it: look at it until it is ready. Three at a time."""
        person, asked = self.standing.user, self.read(NewRequestsExport)
        email = person.email if person is not None and self.standing.key is None else ""
        with named_as_asked():
            export = export_requests(tenant=self.standing.tenant, actor=self.standing.actor, email=email, **asked)
        return Response(ExportShape(export_values(export)).data, status=202)


class OneExport(TenantView):
    actions = {"GET": Action.VIEW_REQUESTS}

    @extend_schema(operation_id="exports_read", responses=ExportShape)
    def get(self, _request: Request, tenant: str, export_id: UUID) -> Response:
        return Response(ExportShape(export_values(one_export(export_id, tenant_id=self.standing.tenant.id))).data)


class CancelExport(TenantView):
    actions = {"POST": Action.VIEW_REQUESTS}

    @extend_schema(operation_id="exports_cancel", request=None, responses=ExportShape)
    def post(self, _request: Request, tenant: str, export_id: UUID) -> Response:
        """Make it no further: there is room for another one. One that is over is not cancelled (409)."""
        export = cancel_export(export_id, tenant_id=self.standing.tenant.id, actor=self.standing.actor)
        return Response(ExportShape(export_values(export)).data)


class ExportFile(TenantView):
    actions = {"GET": Action.VIEW_REQUESTS}
    content_negotiation_class = AsItIs

    @extend_schema(operation_id="exports_file", responses=CSV)
    def get(self, request: Request, tenant: str, export_id: UUID) -> HttpResponseBase:
        """Once it is ready, for a week."""
        return file_of(request, finished_export(export_id, tenant_id=self.standing.tenant.id))


class LedgerExports(OperatorView):
    @extend_schema(operation_id="operator_exports_list", responses=ExportShape(many=True))
    def get(self, _request: Request) -> Response:
        return self.page(exports_of(None), ExportShape, ordering=ORDER, prepare=export_values)

    @extend_schema(operation_id="operator_exports_create", request=NewLedgerExport, responses={202: ExportShape})
    def post(self, _request: Request) -> Response:
        """The ledger of a billing month, of all tenants, as a CSV file that a worker makes."""
        month = self.read(NewLedgerExport)["month"]
        export = export_ledger(month=month, actor=self.actor, email=self.operator.email)
        return Response(ExportShape(export_values(export)).data, status=202)


class OneLedgerExport(OperatorView):
    @extend_schema(operation_id="operator_exports_read", responses=ExportShape)
    def get(self, _request: Request, export_id: UUID) -> Response:
        return Response(ExportShape(export_values(one_export(export_id, tenant_id=None))).data)


class CancelLedgerExport(OperatorView):
    @extend_schema(operation_id="operator_exports_cancel", request=None, responses=ExportShape)
    def post(self, _request: Request, export_id: UUID) -> Response:
        """Make it no further: there is room for another one."""
        export = cancel_export(export_id, tenant_id=None, actor=self.actor)
        return Response(ExportShape(export_values(export)).data)


class LedgerExportFile(OperatorView):
    content_negotiation_class = AsItIs

    @extend_schema(operation_id="operator_exports_file", responses=CSV)
    def get(self, request: Request, export_id: UUID) -> HttpResponseBase:
        return file_of(request, finished_export(export_id, tenant_id=None))


def file_of(request: Request, export: Export) -> HttpResponseBase:
    """Raises NotFound for one that was removed in this moment."""
    try:
        pieces = pieces_of(export)
    except FileNotFoundError:
        raise NotFound("there is no such file any more") from None
    return file_of_pieces(request._request, name=name_of(export), content_type="text/csv; charset=utf-8", pieces=pieces)


def export_values(export: Export) -> dict[str, Any]:
    names = ("id", "kind", "state", "reason", "asked_by", "rows_done", "rows_total", "created_at", "ended_at", "expires_at")
    return {"name": name_of(export), **{name: getattr(export, name) for name in names}}

"""Operators: months of all tenants, and the runs that close them."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api import operator_shapes as o
from billing.services.closing_runs import ask_to_close, closing_run, closing_runs
from billing.services.month_overview import TenantMonth, month_overview
from headway.money import picos_to_usd
from tenants.api.base import OperatorView


class OneMonth(OperatorView):
    @extend_schema(operation_id="operator_months_read", responses=o.MonthShape)
    def get(self, _request: Request, month: str) -> Response:
        """Who used something in it, what is closed, and what an invoice would lack; open ones first."""
        found = month_overview(month)
        values = {
            "month": found.month,
            "missing": found.missing,
            "can_close": found.can_close,
            "tenants": [tenant_month_values(row) for row in found.rows],
        }
        return Response(o.MonthShape(values).data)


class Closings(OperatorView):
    @extend_schema(operation_id="operator_closings_list", responses=o.ClosingShape(many=True))
    def get(self, _request: Request) -> Response:
        """Newest first."""
        return self.page(closing_runs(), o.ClosingShape, ordering=("-id",))

    @extend_schema(operation_id="operator_closings_create", request=o.NewClosing, responses={202: o.ClosingShape})
    def post(self, _request: Request) -> Response:
        """Close a month of every tenant in whose time zone it is over. A worker does it: look at the run until it is done.

        While one closes that month, it is the run that is given back.
        """
        run = ask_to_close(month=self.read(o.NewClosing)["month"], actor=self.actor)
        return Response(o.ClosingShape(run).data, status=202)


class OneClosing(OperatorView):
    @extend_schema(operation_id="operator_closings_read", responses=o.ClosingShape)
    def get(self, _request: Request, run_id: int) -> Response:
        return Response(o.ClosingShape(closing_run(run_id)).data)


def tenant_month_values(row: TenantMonth) -> dict[str, Any]:
    return {
        "tenant": row.name,
        "spent_usd": picos_to_usd(row.spent_picos),
        "is_over": row.is_over,
        "is_closed": row.is_closed,
        "invoice": row.invoice.number if row.invoice is not None else None,
        "missing": row.missing,
    }

"""Operators: does the ledger agree with the engines, and what was corrected of it."""

from collections.abc import Iterable
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api import operator_shapes as o
from billing.models import Adjustment, Reconciliation
from billing.services.adjustment_reads import every_adjustment
from billing.services.adjustments import MAX_PICOS, adjust_usage
from billing.services.reconcile_runs import ask_for_reconciliation
from billing.services.reconciliation_reads import findings_of, one_reconciliation, reconciliations
from headway.money import PICOS_A_USD, picos_to_usd, usd_to_picos
from tenants.api.base import OperatorView
from tenants.selectors import names_of_tenants
from tenants.services.tenants import tenant_named


class Reconciliations(OperatorView):
    @extend_schema(operation_id="operator_reconciliations_list", responses=o.ReconciliationShape(many=True))
    def get(self, _request: Request) -> Response:
        """Newest first."""
        return self.page(reconciliations(), o.ReconciliationShape, ordering=("-id",), prepare=run_values)

    @extend_schema(operation_id="operator_reconciliations_create", request=None, responses={202: o.ReconciliationShape})
    def post(self, _request: Request) -> Response:
        """Compare ledger and engines now. A worker does it, within half a minute; while one is under way it is given back."""
        return Response(o.ReconciliationShape(run_values(ask_for_reconciliation(actor=self.actor))).data, status=202)


class OneReconciliation(OperatorView):
    @extend_schema(operation_id="operator_reconciliations_read", responses=o.OneReconciliationShape)
    def get(self, _request: Request, run_id: int) -> Response:
        """With each start of each engine: what it counted, what explains it, and what nothing does; those with drift first."""
        run = one_reconciliation(run_id)
        return Response(o.OneReconciliationShape({**run_values(run), "findings": findings_of(run)}).data)


class Adjustments(OperatorView):
    @extend_schema(
        operation_id="operator_adjustments_list", parameters=[o.AdjustmentsAsked], responses=o.AdjustmentShape(many=True)
    )
    def get(self, _request: Request) -> Response:
        """Of all tenants, newest first."""
        asked = self.read_query(o.AdjustmentsAsked, is_paged=True)
        tenant_id = tenant_named(asked.pop("tenant")).id if "tenant" in asked else None
        rows = every_adjustment(tenant_id=tenant_id, **asked)
        return self.page(rows, o.AdjustmentShape, ordering=("-id",), prepare_all=adjustments_values)

    @extend_schema(operation_id="operator_adjustments_create", request=o.NewAdjustment, responses={201: o.AdjustmentShape})
    def post(self, _request: Request) -> Response:
        """Add to what a request costs, or take off: a further line of the ledger. With a reference that was given before, and
        the same wish, it is the one that was made then; without a reference each post makes one.
        """
        asked = self.read(o.NewAdjustment)
        amount_picos = usd_to_picos(asked.pop("amount_usd"), param="amount_usd", max_usd=MAX_PICOS // PICOS_A_USD)
        tenant_id = tenant_named(asked.pop("tenant")).id
        made = adjust_usage(tenant_id=tenant_id, amount_picos=amount_picos, actor=self.actor, **asked)
        (values,) = adjustments_values([made])
        return Response(o.AdjustmentShape(values).data, status=201)


def run_values(run: Reconciliation) -> dict[str, Any]:
    names = ("id", "day", "asked_by", "started_at", "finished_at", "incarnations", "not_counted", "inconsistent_requests")
    drift = ("unexplained_prompt_tokens", "unexplained_completion_tokens")
    return {
        **{name: getattr(run, name) for name in (*names, *drift)},
        "is_clean": run.is_clean if run.finished_at is not None else None,
    }


def adjustments_values(adjustments: Iterable[Adjustment]) -> list[dict[str, Any]]:
    found = list(adjustments)
    tenants = names_of_tenants({each.tenant_id for each in found})
    names = ("id", "request_id", "kind", "billing_month", "model", "reason", "reference", "actor", "created_at")
    return [
        {
            **{name: getattr(each, name) for name in names},
            "tenant": tenants.get(each.tenant_id, str(each.tenant_id)),
            "amount_usd": picos_to_usd(each.amount_picos),
        }
        for each in found
    ]

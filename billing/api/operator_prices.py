"""Operators: prices. A new one can be tried on a month before it is set."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api import operator_shapes as o
from billing.api.shapes import PriceShape
from billing.api.values import price_values
from billing.models import Price
from billing.selectors import prices_of_models
from billing.services.price_dry_run import DryRun, dry_run_price
from billing.services.prices import MAX_MICROS, ids_in_force, set_price
from headway.money import MICROS_A_USD, picos_to_usd, usd_to_micros
from headway.months import UTC_NAME, month_of, previous_month_name
from tenants.api.base import OperatorView
from tenants.selectors import names_of_tenants

KINDS = {"input": "input_micros", "cached_input": "cached_micros", "output": "output_micros"}


class Prices(OperatorView):
    @extend_schema(operation_id="operator_prices_list", parameters=[o.PricesAsked], responses=PriceShape(many=True))
    def get(self, _request: Request) -> Response:
        """Every version, newest first."""
        model = self.read_query(o.PricesAsked, is_paged=True).get("model")
        return self.page(prices_of_models([model] if model else None), PriceShape, ordering=("-id",), prepare_all=prices_values)

    @extend_schema(operation_id="operator_prices_set", request=o.NewPrice, responses={201: PriceShape})
    def post(self, _request: Request) -> Response:
        """A version that holds from now on, or from a time that lies ahead. What was used before keeps its price."""
        price = set_price(actor=self.actor, **amounts_read(self.read(o.NewPrice)))
        (values,) = prices_values([price])
        return Response(PriceShape(values).data, status=201)


class PriceDryRun(OperatorView):
    @extend_schema(operation_id="operator_prices_dry_run", request=o.DryRunAsked, responses=o.DryRunShape)
    def post(self, _request: Request) -> Response:
        """What a month's requests would have cost by that price, beside what they did. Nothing is changed."""
        asked = amounts_read(self.read(o.DryRunAsked))
        last = previous_month_name(month_of(timezone.now(), UTC_NAME).name)
        return Response(o.DryRunShape(dry_run_values(dry_run_price(**{"month": last, **asked}))).data)


def amounts_read(asked: dict[str, Any]) -> dict[str, Any]:
    """With micro-dollars in place of text. Raises InvalidInput."""
    for kind, name in KINDS.items():
        param = f"{kind}_usd_per_million"
        text = asked.pop(param)
        asked[name] = None if text is None else usd_to_micros(text, param=param, max_usd=MAX_MICROS // MICROS_A_USD)
    return asked


def prices_values(prices: Any) -> list[dict[str, Any]]:
    found: list[Price] = list(prices)
    holds = ids_in_force({price.model for price in found}, now=timezone.now())
    return [price_values(price, is_in_force=price.id in holds) for price in found]


def dry_run_values(run: DryRun) -> dict[str, Any]:
    names, (requests, was, would) = names_of_tenants({row.tenant_id for row in run.rows}), run.total()
    rows = [
        {
            "tenant": names.get(row.tenant_id, str(row.tenant_id)),
            "tier": row.tier,
            "requests": row.requests,
            "was_usd": picos_to_usd(row.was_picos),
            "would_be_usd": picos_to_usd(row.would_picos),
        }
        for row in run.rows
    ]
    sums = {"requests": requests, "was_usd": picos_to_usd(was), "would_be_usd": picos_to_usd(would)}
    return {"model": run.model, "month": run.month, **sums, "rows": rows}

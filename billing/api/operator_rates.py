"""Operators: tax and exchange rates, what machines cost, and requests that are rated again by another price."""

from collections.abc import Iterable
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.account_models import ExchangeRate, TaxRate
from billing.api import rate_shapes as r
from billing.gpu_cost_models import GpuCost
from billing.re_rating_models import ReRating
from billing.services.gpu_costs import MAX_COST_MICROS, every_gpu_cost, set_gpu_cost
from billing.services.rates import exchange_rates, set_exchange_rate, set_tax_rate, tax_rates
from billing.services.re_rating import Span
from billing.services.re_rating_dry_run import dry_run_re_rating
from billing.services.re_rating_runs import one_re_rating, re_rate_or_ask, re_ratings
from headway.money import MICROS_A_USD, picos_to_usd, usd_to_micros
from tenants.api.base import OperatorView
from tenants.selectors import names_of_tenants
from tenants.services.tenants import tenant_named


class TaxRates(OperatorView):
    @extend_schema(operation_id="operator_tax_rates_list", parameters=[r.TaxRatesAsked], responses=r.TaxRateShape(many=True))
    def get(self, _request: Request) -> Response:
        """Of all countries or one, newest first: the one with the latest day up to a month's last holds for it."""
        rows = tax_rates(**self.read_query(r.TaxRatesAsked, is_paged=True))
        return self.page(rows, r.TaxRateShape, ordering=("-id",), prepare=tax_rate_values)

    @extend_schema(operation_id="operator_tax_rates_set", request=r.NewTaxRate, responses={201: r.TaxRateShape})
    def post(self, _request: Request) -> Response:
        """From a day on. A country has one a day: a second is refused (409)."""
        made = set_tax_rate(actor=self.actor, **self.read(r.NewTaxRate))
        return Response(r.TaxRateShape(tax_rate_values(made)).data, status=201)


class ExchangeRates(OperatorView):
    @extend_schema(
        operation_id="operator_exchange_rates_list",
        parameters=[r.ExchangeRatesAsked],
        responses=r.ExchangeRateShape(many=True),
    )
    def get(self, _request: Request) -> Response:
        """Of all currencies or one, newest first."""
        rows = exchange_rates(**self.read_query(r.ExchangeRatesAsked, is_paged=True))
        return self.page(rows, r.ExchangeRateShape, ordering=("-id",), prepare=exchange_rate_values)

    @extend_schema(operation_id="operator_exchange_rates_set", request=r.NewExchangeRate, responses={201: r.ExchangeRateShape})
    def post(self, _request: Request) -> Response:
        """From a day on. A currency has one a day: a second is refused (409)."""
        asked = self.read(r.NewExchangeRate)
        made = set_exchange_rate(units_per_usd=asked.pop("rate"), actor=self.actor, **asked)
        return Response(r.ExchangeRateShape(exchange_rate_values(made)).data, status=201)


class GpuCosts(OperatorView):
    @extend_schema(operation_id="operator_gpu_costs_list", responses=r.GpuCostShape(many=True))
    def get(self, _request: Request) -> Response:
        """Of all kinds of machines and models, newest first."""
        return self.page(every_gpu_cost(), r.GpuCostShape, ordering=("-id",), prepare=gpu_cost_values)

    @extend_schema(operation_id="operator_gpu_costs_set", request=r.NewGpuCost, responses={201: r.GpuCostShape})
    def post(self, _request: Request) -> Response:
        """What an hour of one replica costs, for margins; of a kind of machine or of a model, from an instant on."""
        asked = self.read(r.NewGpuCost)
        text = asked.pop("usd_an_hour")
        micros = usd_to_micros(text, param="usd_an_hour", max_usd=MAX_COST_MICROS // MICROS_A_USD)
        since = asked.pop("effective_from") or timezone.now()
        made = set_gpu_cost(cost_micros=micros, effective_from=since, actor=self.actor, **asked)
        return Response(r.GpuCostShape(gpu_cost_values(made)).data, status=201)


class ReRatings(OperatorView):
    @extend_schema(operation_id="operator_re_ratings_list", responses=r.ReRatingShape(many=True))
    def get(self, _request: Request) -> Response:
        """Newest first: those that pages and commands asked for, too."""
        return self.page(re_ratings(), r.ReRatingShape, ordering=("-id",), prepare_all=re_ratings_values)

    @extend_schema(operation_id="operator_re_ratings_create", request=r.NewReRating, responses={201: r.ReRatingShape})
    def post(self, _request: Request) -> Response:
        """Rate a span of a model's requests again: by adjustments, and the second time by none. Up to 20,000 requests are
        done with the answer; a worker does more: look at it until `ended_at` says when that was. With a reference that was
        given before, and the same wish, it is the one that was made then.
        """
        asked = self.read(r.NewReRating)
        run = re_rate_or_ask(reason=asked.pop("reason"), reference=asked.pop("reference"), span=_span(asked), actor=self.actor)
        return _shown(run, status=201)


class ReRatingDryRun(OperatorView):
    @extend_schema(operation_id="operator_re_ratings_dry_run", request=r.ReRatingTried, responses={200: r.ReRatingDryRunShape})
    def post(self, _request: Request) -> Response:
        """What it would change, by tenant. Nothing is changed."""
        rows = dry_run_re_rating(_span(self.read(r.ReRatingTried)))
        names = names_of_tenants({row.tenant_id for row in rows})
        lines = [
            {"tenant": names.get(row.tenant_id, str(row.tenant_id)), **_tried(row.requests, row.was_picos, row.would_picos)}
            for row in rows
        ]
        sums = (sum(getattr(row, name) for row in rows) for name in ("requests", "was_picos", "would_picos"))
        return Response(r.ReRatingDryRunShape({"rows": lines, "total": _tried(*sums)}).data)


class OneReRating(OperatorView):
    @extend_schema(operation_id="operator_re_ratings_read", responses=r.ReRatingShape)
    def get(self, _request: Request, run_id: int) -> Response:
        return _shown(one_re_rating(run_id))


def tax_rate_values(rate: TaxRate) -> dict[str, Any]:
    named = {name: getattr(rate, name) for name in ("id", "country", "name", "effective_from", "created_at")}
    return {**named, "percent": rate.percent}


def exchange_rate_values(rate: ExchangeRate) -> dict[str, Any]:
    named = {name: getattr(rate, name) for name in ("id", "currency", "effective_from", "created_at")}
    return {**named, "rate": rate.units_per_usd}


def gpu_cost_values(cost: GpuCost) -> dict[str, Any]:
    named = {name: getattr(cost, name) for name in ("id", "machine_kind", "model", "effective_from", "created_at")}
    return {**named, "usd_an_hour": cost.usd_an_hour}


def re_ratings_values(runs: Iterable[ReRating]) -> list[dict[str, Any]]:
    found = list(runs)
    names = names_of_tenants({run.tenant_id for run in found if run.tenant_id is not None})
    wish = ("id", "model", "price_version", "starts_at", "ends_at", "reason", "reference", "actor")
    own = (*wish, "requests_total", "requests", "adjusted", "created_at", "moved_at", "ended_at")
    return [
        {
            **{name: getattr(run, name) for name in own},
            "tenant": names.get(run.tenant_id, str(run.tenant_id)) if run.tenant_id is not None else None,
            "amount_usd": picos_to_usd(run.amount_picos),
        }
        for run in found
    ]


def _span(asked: dict[str, Any]) -> Span:
    """Raises UnknownTenant."""
    tenant = asked.pop("tenant")
    return Span(**asked, tenant_id=tenant_named(tenant).id if tenant is not None else None)


def _tried(requests: int, was_picos: int, would_picos: int) -> dict[str, Any]:
    amounts = {"was_usd": was_picos, "would_usd": would_picos, "more_usd": would_picos - was_picos}
    return {"requests": requests, **{name: picos_to_usd(picos) for name, picos in amounts.items()}}


def _shown(run: ReRating, *, status: int = 200) -> Response:
    (values,) = re_ratings_values([run])
    return Response(r.ReRatingShape(values).data, status=status)

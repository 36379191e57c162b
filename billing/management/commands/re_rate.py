from typing import Any

from django.core.management.base import CommandParser

from billing.management.commands.set_price import time_of
from billing.services.re_rating import Span
from billing.services.re_rating_runs import re_rate
from headway.command import HeadwayCommand, actor
from headway.money import picos_to_usd
from tenants.services.tenants import tenant_named


class Command(HeadwayCommand):
    help = "Rate a span of a model's requests again by one of its prices. What was recorded stays: adjustments are added."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="the model's public id")
        parser.add_argument("--price-version", type=int, required=True, metavar="N", help="of the price they are to have")
        parser.add_argument("--from", dest="starts_at", required=True, metavar="TIME", help="ISO 8601, in UTC")
        parser.add_argument("--to", dest="ends_at", required=True, metavar="TIME", help="the first instant that is not of it")
        parser.add_argument("--tenant", help="of one tenant only: its name or id")
        parser.add_argument("--reason", required=True, help="shown beside the amounts")
        parser.add_argument(
            "--reference", default="", help="given again it is the same one: done once, carried on where it was cut off"
        )

    def handle(self, *, model: str, price_version: int, tenant: str | None, json: bool, **options: Any) -> None:
        span = Span(
            model=model,
            price_version=price_version,
            starts_at=time_of(options["starts_at"], "--from"),
            ends_at=time_of(options["ends_at"], "--to"),
            tenant_id=tenant_named(tenant).id if tenant else None,
        )
        done = re_rate(span=span, reason=options["reason"], reference=options["reference"], actor=actor())
        amount_usd = picos_to_usd(done.amount_picos)
        data = {"requests": done.requests, "adjusted": done.adjusted, "amount_usd": amount_usd}
        self.print_result(
            f"{done.adjusted} of {done.requests} requests adjusted, by {amount_usd} US dollars", data, as_json=json
        )

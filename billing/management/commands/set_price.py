from typing import Any

from django.core.management.base import CommandParser

from billing.selectors import prices_in_force
from billing.services.prices import MAX_MICROS, TIERS, set_price
from headway.command import HeadwayCommand, actor
from headway.money import MICROS_A_USD, micros_to_usd, usd_to_micros
from headway.tables import table

COLUMNS = ["tier", "version", "input_usd", "cached_usd", "output_usd", "from"]


class Command(HeadwayCommand):
    help = "Set what a model's tokens cost from now on, in US dollars per million. Prints the prices that hold."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="the model's public id")
        parser.add_argument("--input-usd", required=True, metavar="USD", help="per million prompt tokens")
        parser.add_argument("--cached-usd", metavar="USD", help="per million prompt tokens from the cache (as --input-usd)")
        parser.add_argument("--output-usd", required=True, metavar="USD", help="per million completion tokens")
        parser.add_argument("--tier", default="", help=f"for one tier only: {', '.join(TIERS)}")

    def handle(
        self, *, model: str, input_usd: str, cached_usd: str | None, output_usd: str, tier: str, json: bool, **_options: Any
    ) -> None:
        set_price(
            model=model,
            tier=tier,
            input_micros=_micros(input_usd, "--input-usd"),
            cached_micros=_micros(cached_usd, "--cached-usd") if cached_usd is not None else None,
            output_micros=_micros(output_usd, "--output-usd"),
            actor=actor(),
        )
        rows = [
            [
                price.tier or "all",
                price.version,
                *(micros_to_usd(micros) for micros in (price.input_micros, price.cached_micros, price.output_micros)),
                f"{price.effective_from:%Y-%m-%d %H:%M:%S} UTC",
            ]
            for price in prices_in_force(model)
        ]
        data = {"model": model, "prices": [dict(zip(COLUMNS, row, strict=True)) for row in rows]}
        self.print_result(f"{model}, US dollars per million tokens\n{table(COLUMNS, rows)}", data, as_json=json)


def _micros(text: str, option: str) -> int:
    return usd_to_micros(text, param=option, max_usd=MAX_MICROS // MICROS_A_USD)

from typing import Any

from django.core.management.base import CommandParser

from billing.services.rates import set_exchange_rate
from headway.command import HeadwayCommand, actor
from headway.dates import day_named


class Command(HeadwayCommand):
    help = "Set what a US dollar is in another currency, from a day on. Rates are never changed: a new one takes over."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("currency", help="three letters of ISO 4217")
        parser.add_argument("rate", help="units of it for one US dollar, such as 0.92")
        parser.add_argument("--from", dest="day", required=True, metavar="YYYY-MM-DD", help="the first day it holds")

    def handle(self, *, currency: str, rate: str, day: str, json: bool, **_options: Any) -> None:
        on = day_named(day, param="--from")
        made = set_exchange_rate(currency=currency, units_per_usd=rate, effective_from=on, actor=actor())
        data = {"currency": made.currency, "rate_nanos": made.rate_nanos, "from": day}
        self.print_result(f"USD 1 = {made.currency} {rate} from {day} on", data, as_json=json)

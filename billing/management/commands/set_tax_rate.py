from typing import Any

from django.core.management.base import CommandParser

from billing.services.rates import set_tax_rate
from headway.command import HeadwayCommand, actor
from headway.dates import day_named


class Command(HeadwayCommand):
    help = "Set what a country taxes our service with, from a day on. Rates are never changed: a new one takes over."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("country", help="two letters of ISO 3166")
        parser.add_argument("percent", help="such as 19 or 7.7")
        parser.add_argument("--name", default="VAT", help="as invoices print it (VAT)")
        parser.add_argument("--from", dest="day", required=True, metavar="YYYY-MM-DD", help="the first day it holds")

    def handle(self, *, country: str, percent: str, name: str, day: str, json: bool, **_options: Any) -> None:
        on = day_named(day, param="--from")
        rate = set_tax_rate(country=country, name=name, percent=percent, effective_from=on, actor=actor())
        data = {"country": rate.country, "name": name, "basis_points": rate.basis_points, "from": day}
        self.print_result(f"{rate.country}: {name} {percent} % from {day} on", data, as_json=json)

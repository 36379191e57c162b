from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from billing.selectors import prices_in_force
from billing.services.price_dry_run import DryRun, dry_run_price
from billing.services.prices import MAX_MICROS, TIERS, UNIT, set_price
from headway.command import HeadwayCommand, actor
from headway.errors import InvalidInput
from headway.money import MICROS_A_USD, micros_to_usd, picos_to_usd, usd_to_micros
from headway.months import month_of, previous_month_name
from headway.tables import table
from tenants.selectors import names_of_tenants

COLUMNS = ["tier", "version", "input_usd", "cached_usd", "output_usd", "from"]
DRY_COLUMNS = ["tier", "tenant", "requests", "was_usd", "would_usd"]


class Command(HeadwayCommand):
    help = "Set what a model's tokens cost from now on, in US dollars per million. Prints the prices that hold."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="the model's public id")
        parser.add_argument("--input-usd", required=True, metavar="USD", help="per million prompt tokens")
        parser.add_argument("--cached-usd", metavar="USD", help="per million prompt tokens from the cache (as --input-usd)")
        parser.add_argument("--output-usd", required=True, metavar="USD", help="per million completion tokens")
        parser.add_argument("--unit", default=UNIT, help=f"{UNIT}, the only one there is")
        parser.add_argument("--tier", default="", help=f"for one tier only: {', '.join(TIERS)}")
        parser.add_argument("--from", dest="effective_from", metavar="TIME", help="ISO 8601, in UTC; now")
        parser.add_argument("--yes", action="store_true", help="also a price a hundred times what holds, or a hundredth")
        parser.add_argument("--dry-run", action="store_true", help="change nothing: what a month would have cost")
        parser.add_argument("--month", metavar="YYYY-MM", help="of --dry-run; the last one")

    def handle(self, *, json: bool, dry_run: bool, month: str | None, **options: Any) -> None:
        model = options["model"]
        asked = {
            "model": model,
            "tier": options["tier"],
            "unit": options["unit"],
            "input_micros": _micros(options["input_usd"], "--input-usd"),
            "cached_micros": None if options["cached_usd"] is None else _micros(options["cached_usd"], "--cached-usd"),
            "output_micros": _micros(options["output_usd"], "--output-usd"),
        }
        if dry_run:
            self._show(dry_run_price(**asked, month=month or previous_month_name(month_of(timezone.now(), "UTC").name)), json)
            return
        effective_from = time_of(options["effective_from"], "--from") if options["effective_from"] else None
        set_price(**asked, effective_from=effective_from, is_confirmed=options["yes"], actor=actor())
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

    def _show(self, found: DryRun, as_json: bool) -> None:
        names = names_of_tenants(row.tenant_id for row in found.rows)
        rows = [
            [
                row.tier,
                names.get(row.tenant_id, str(row.tenant_id)),
                row.requests,
                *map(picos_to_usd, (row.was_picos, row.would_picos)),
            ]
            for row in found.rows
        ]
        requests, was, would = found.total()
        total = ["all", "all", requests, picos_to_usd(was), picos_to_usd(would)]
        lines = [dict(zip(DRY_COLUMNS, row, strict=True)) for row in (*rows, total)]
        data = {"model": found.model, "month": found.month, "rows": lines[:-1], "total": lines[-1]}
        text = f"{found.model} in {found.month}, US dollars; nothing is changed\n{table(DRY_COLUMNS, [*rows, total])}"
        self.print_result(text, data, as_json=as_json)


def _micros(text: str, option: str) -> int:
    return usd_to_micros(text, param=option, max_usd=MAX_MICROS // MICROS_A_USD)


def time_of(text: str, option: str) -> datetime:
    """In UTC where it has no offset. Raises InvalidInput."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} is a time in ISO 8601, such as 2026-12-01T00:00: {text!r}", param=option) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)

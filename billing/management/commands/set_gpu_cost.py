from datetime import UTC, datetime, time
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from billing.services.gpu_costs import MAX_COST_MICROS, gpu_costs, set_gpu_cost
from headway.command import HeadwayCommand, actor
from headway.dates import day_named
from headway.money import MICROS_A_USD, micros_to_usd, usd_to_micros
from headway.tables import table

COLUMNS = ["of", "name", "usd_an_hour", "from"]


class Command(HeadwayCommand):
    help = "Set what an hour of one replica costs us, for reports' margin. Costs are never changed: a new one takes over."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("usd", help="US dollars an hour that one replica exists")
        scope = parser.add_mutually_exclusive_group(required=True)
        scope.add_argument("--machine-kind", default="", help='as `status` names it; "external" of replicas by URL')
        scope.add_argument("--model", default="", help="public id: stands before its machines' cost")
        parser.add_argument("--from", dest="day", metavar="YYYY-MM-DD", help="from that day on, in UTC (from now on)")

    def handle(self, *, usd: str, machine_kind: str, model: str, day: str | None, json: bool, **_options: Any) -> None:
        since = datetime.combine(day_named(day, param="--from"), time(), UTC) if day else timezone.now()
        micros = usd_to_micros(usd, param="usd", max_usd=MAX_COST_MICROS // MICROS_A_USD)
        set_gpu_cost(cost_micros=micros, effective_from=since, actor=actor(), machine_kind=machine_kind, model=model)
        rows = [
            [
                "model" if row.model else "machine",
                row.model or row.machine_kind,
                micros_to_usd(row.cost_micros),
                f"{row.effective_from:%Y-%m-%d %H:%M:%S} UTC",
            ]
            for row in gpu_costs()
        ]
        data = {"costs": [dict(zip(COLUMNS, row, strict=True)) for row in rows]}
        self.print_result(table(COLUMNS, rows), data, as_json=json)

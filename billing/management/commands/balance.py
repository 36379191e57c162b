from typing import Any

from django.core.management.base import CommandParser

from billing.services.balance_reads import balance_of, grants_of, open_holds
from headway.command import HeadwayCommand
from headway.money import micros_to_usd, picos_to_usd
from headway.tables import table
from tenants.services.tenants import tenant_named

COLUMNS = ["grant", "kind", "amount_usd", "left_usd", "held_usd", "expires", "reason"]


class Command(HeadwayCommand):
    help = "What a tenant has left of its credit, grant by grant."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")

    def handle(self, *, tenant: str, json: bool, **_options: Any) -> None:
        found = tenant_named(tenant)
        view = balance_of(found.id)
        rows = [
            [
                str(grant.id),
                grant.kind,
                micros_to_usd(grant.amount_micros),
                picos_to_usd(grant.left_picos),
                picos_to_usd(grant.held_picos),
                f"{grant.expires_at:%Y-%m-%d %H:%M:%S} UTC" if grant.expires_at else "",
                grant.reason,
            ]
            for grant in grants_of(found.id)
        ]
        data = {
            "tenant": found.name,
            "is_prepaid": view.is_prepaid,
            "left_usd": picos_to_usd(view.left_picos),
            "held_usd": picos_to_usd(view.held_picos),
            "overdrawn_usd": picos_to_usd(view.overdrawn_picos),
            "grants": [dict(zip(COLUMNS, row, strict=True)) for row in rows],
            "holds": [str(hold.id) for hold in open_holds(found.id)],
        }
        pays = "pays in advance" if view.is_prepaid else "pays later"
        held = f", ${data['held_usd']} held" if view.held_picos else ""
        overdrawn = f", ${data['overdrawn_usd']} OVERDRAWN" if view.overdrawn_picos else ""
        line = f"{found.name} {pays}: ${data['left_usd']} left{held}{overdrawn}\n{table(COLUMNS, rows)}"
        self.print_result(line, data, as_json=json)

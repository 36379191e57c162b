from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from headway.command import HeadwayCommand, actor
from tenants.access import Scope
from tenants.services.keys import issue_api_key
from tenants.services.tenants import tenant_named


class Command(HeadwayCommand):
    help = "Issue an API key for a tenant; prints the key, once: it is not kept."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")
        parser.add_argument("--name", required=True, help="what the key is for")
        parser.add_argument("--expires-in-days", type=int, help="days until the key expires (default: never)")
        scopes = ", ".join(Scope)
        parser.add_argument("--scope", action="append", help=f"{scopes}; may be given again (default: inference)")
        parser.add_argument(
            "--model", action="append", default=[], help="a model it may use; may be given again (default: all)"
        )
        parser.add_argument(
            "--address", action="append", default=[], help="where it may be used from, CIDR (default: anywhere)"
        )
        parser.add_argument("--tier-ceiling", default="", help="the most urgent tier it gets (default: the plan's)")

    def handle(self, *, tenant: str, name: str, expires_in_days: int | None, json: bool, **options: Any) -> None:
        expires_at = timezone.now() + timedelta(days=expires_in_days) if expires_in_days is not None else None
        issued = issue_api_key(
            tenant=tenant_named(tenant),
            name=name,
            actor=actor(),
            expires_at=expires_at,
            scopes=options["scope"] or [Scope.INFERENCE],
            allowed_models=options["model"],
            allowed_addresses=options["address"],
            tier_ceiling=options["tier_ceiling"],
        )
        self.print_result(issued.text, {"id": issued.key.id, "name": issued.key.name, "key": issued.text}, as_json=json)

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from headway.command import HeadwayCommand, actor
from tenants.services.keys import issue_api_key
from tenants.services.tenants import tenant_named


class Command(HeadwayCommand):
    help = "Issue an API key for a tenant; prints the key, once: it is not kept."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")
        parser.add_argument("--name", required=True, help="what the key is for")
        parser.add_argument("--expires-in-days", type=int, help="days until the key expires (default: never)")

    def handle(self, *, tenant: str, name: str, expires_in_days: int | None, json: bool, **_options: Any) -> None:
        expires_at = timezone.now() + timedelta(days=expires_in_days) if expires_in_days is not None else None
        issued = issue_api_key(tenant=tenant_named(tenant), name=name, actor=actor(), expires_at=expires_at)
        self.print_result(issued.text, {"id": issued.key.id, "name": issued.key.name, "key": issued.text}, as_json=json)

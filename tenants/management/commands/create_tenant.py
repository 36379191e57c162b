from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from tenants.services.tenants import create_tenant


class Command(HeadwayCommand):
    help = "Make a tenant; prints its id."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="1 to 63 letters, digits, hyphens or underscores")

    def handle(self, *, name: str, json: bool, **_options: Any) -> None:
        tenant = create_tenant(name=name, actor=actor())
        self.print_result(str(tenant.id), {"id": str(tenant.id), "name": tenant.name}, as_json=json)

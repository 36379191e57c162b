import json as json_module
from typing import Any

from django.core.management.base import CommandParser

from billing.selectors import usage_of_tenant
from headway.command import HeadwayCommand
from headway.tables import table
from tenants.services.tenants import tenant_named

COLUMNS = ["ended_at", "request_id", "model", "end_state", "prompt_tokens", "completion_tokens", "ttft_ms", "total_ms"]


class Command(HeadwayCommand):
    help = "Print a tenant's usage records: a table, or with --json one JSON object a line."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")

    def handle(self, *, tenant: str, json: bool, **_options: Any) -> None:
        records = usage_of_tenant(tenant_named(tenant).id)
        if json:
            for record in records:
                self.stdout.write(json_module.dumps(record))
            return
        self.stdout.write(table(COLUMNS, [[record[name] for name in COLUMNS] for record in records]))

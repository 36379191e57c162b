from typing import Any

from django.core.management.base import CommandParser

from billing.services.accounts import FIELDS, billing_account, set_billing_account
from headway.command import HeadwayCommand, actor
from headway.tables import table
from tenants.services.tenants import tenant_named


class Command(HeadwayCommand):
    help = "Set whom a tenant's invoices name. What is left out stays; without options it prints what holds."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")
        parser.add_argument("--legal-name")
        parser.add_argument("--address", action="append", metavar="LINE", help="a line; several times")
        parser.add_argument("--country", help="two letters of ISO 3166")
        parser.add_argument("--tax-id", help='VAT number with its prefix; "" takes it away')
        parser.add_argument("--email", help="where invoices are mailed to")
        parser.add_argument("--purchase-order")
        parser.add_argument("--currency", help="three letters of ISO 4217 (USD)")

    def handle(self, *, tenant: str, json: bool, **options: Any) -> None:
        tenant_id = tenant_named(tenant).id
        changes = {name: options[name] for name in FIELDS if options[name] is not None}
        if changes:
            set_billing_account(tenant_id=tenant_id, actor=actor(), **changes)
        account = billing_account(tenant_id)
        data = {name: getattr(account, name) for name in FIELDS}
        rows = [[name, ", ".join(value) if isinstance(value, list) else value] for name, value in data.items()]
        self.print_result(table(["field", "value"], rows).rstrip("\n"), data, as_json=json)

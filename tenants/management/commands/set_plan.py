from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from tenants.management.terms_arguments import terms_text
from tenants.services.tenants import tenant_named
from tenants.services.terms import set_plan


class Command(HeadwayCommand):
    help = "Put a tenant on a plan (see define_plan); limits of its own stay. Prints what holds."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")
        parser.add_argument("plan", help="the plan's name, such as pay-as-you-go")

    def handle(self, *, tenant: str, plan: str, json: bool, **_options: Any) -> None:
        terms = set_plan(tenant=tenant_named(tenant), plan=plan, actor=actor())
        self.print_result(terms_text(terms), terms.as_dict(), as_json=json)

from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from tenants.management.terms_arguments import add_limit_options, limits_given, terms_text
from tenants.services.tenants import tenant_named
from tenants.services.terms import set_limits


class Command(HeadwayCommand):
    help = "Set limits of a tenant, of one of its keys (--key) or of one model as it uses it (--model). Prints what holds."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")
        parser.add_argument("--key", metavar="ID", help="the key's id, the part after hw_live_")
        parser.add_argument("--model", help="the model's public id")
        add_limit_options(parser)
        parser.add_argument("--time-zone", metavar="ZONE", help="whose calendar months count, such as Europe/Berlin")

    def handle(
        self, *, tenant: str, key: str | None, model: str | None, time_zone: str | None, json: bool, **options: Any
    ) -> None:
        terms = set_limits(
            tenant=tenant_named(tenant),
            limits=limits_given(options),
            key_id=key,
            model=model,
            time_zone=time_zone,
            actor=actor(),
        )
        self.print_result(terms_text(terms), terms.as_dict(), as_json=json)

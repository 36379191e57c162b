from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.selectors import pins_in_force
from inference.services.rollouts.pins import pin_version, unpin_version
from tenants.services.tenants import tenant_named

NONE = "none"


class Command(HeadwayCommand):
    help = "Keep a tenant on one version of a model, whatever is stable, until that version retires. Prints its pins."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", help="the tenant's name or id")
        parser.add_argument("model", help="the model's public id")
        parser.add_argument("version", help=f"such as v1; '{NONE}': it goes with the stable version again")

    def handle(self, *, tenant: str, model: str, version: str, json: bool, **_options: Any) -> None:
        found = tenant_named(tenant)
        if version == NONE:
            unpin_version(tenant=found, public_id=model, actor=actor())
            line = f"{found.name} goes with the stable version of {model}"
        else:
            pin = pin_version(tenant=found, public_id=model, label=version, actor=actor())
            when = "from now on" if pin.is_in_force else "as soon as a replica of it serves"
            line = f"{found.name} stays on {pin.version} {when}"
        self.print_result(line, {"tenant": found.name, "pins": pins_in_force(found.id)}, as_json=json)

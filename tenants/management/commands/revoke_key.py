from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.services.feed_progress import wait_for_acknowledgement
from tenants.services.keys import revoke_api_key

WAIT_S = 3.0


class Command(HeadwayCommand):
    help = "Revoke an API key by its id (the part after hw_live_); prints which gateways have acknowledged."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", help="the key's id, never the whole key")

    def handle(self, *, id: str, json: bool, **_options: Any) -> None:  # noqa: A002 - the argument's name
        revoked = revoke_api_key(key_id=id, actor=actor())
        gateways = dict(wait_for_acknowledgement(revoked.change_id, timeout_s=WAIT_S))
        heard = sorted(name for name, has_applied in gateways.items() if has_applied)
        missing = sorted(gateways.keys() - set(heard))
        line = f"{revoked.key.id} revoked; acknowledged by {', '.join(heard) or 'no gateway (none is running)'}"
        if missing:
            line += f"; NOT YET by {', '.join(missing)}"
        self.print_result(line, {"id": revoked.key.id, "acknowledged": heard, "not_acknowledged": missing}, as_json=json)

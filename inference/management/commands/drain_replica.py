from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.services.moving import drain_replica


class Command(HeadwayCommand):
    help = "Move a replica to another node: the new one first; the old one finishes its requests once the new one serves."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("replica", help="its id, as `status` shows it")

    def handle(self, *, replica: str, json: bool, **_options: Any) -> None:
        new = drain_replica(replica_id=replica, actor=actor())
        self.print_result(f"{replica} goes once {new} serves", {"replica": replica, "replaced_by": new}, as_json=json)

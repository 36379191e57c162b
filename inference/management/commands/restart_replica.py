from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.services.moving import restart_replica


class Command(HeadwayCommand):
    help = "A new engine in a replica's place: the new one first where a node has room for two, else drained and started again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("replica", help="its id, as `status` shows it")

    def handle(self, *, replica: str, json: bool, **_options: Any) -> None:
        new, is_gapless = restart_replica(replica_id=replica, actor=actor())
        how = f"goes once {new} serves" if is_gapless else f"is drained now, and {new} comes in its place: no room for two"
        data = {"replica": replica, "replaced_by": new, "is_gapless": is_gapless}
        self.print_result(f"{replica} {how}", data, as_json=json)

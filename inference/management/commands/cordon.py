from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.services.nodes import set_cordon


class Command(HeadwayCommand):
    help = "Place no new replica on a node; what runs there goes on (see drain_replica, drain_zone)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("node")

    def handle(self, *, node: str, json: bool, **_options: Any) -> None:
        set_cordon(node=node, is_cordoned=True, actor=actor())
        self.print_result(f"{node} is cordoned", {"node": node, "is_cordoned": True}, as_json=json)

from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.services.nodes import set_cordon


class Command(HeadwayCommand):
    help = "Let new replicas on a node again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("node")

    def handle(self, *, node: str, json: bool, **_options: Any) -> None:
        set_cordon(node=node, is_cordoned=False, actor=actor())
        self.print_result(f"{node} takes replicas", {"node": node, "is_cordoned": False}, as_json=json)

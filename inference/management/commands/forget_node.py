from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.services.lost_nodes import forget_node


class Command(HeadwayCommand):
    help = (
        "A machine is gone for good: what it ran counts as stopped. Only for a node that is silent, and whose engines are gone."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("node")

    def handle(self, *, node: str, json: bool, **_options: Any) -> None:
        replicas = forget_node(node=node, actor=actor())
        self.print_result(
            f"{node} is forgotten, {replicas} replicas with it", {"node": node, "replicas": replicas}, as_json=json
        )

from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.services.registry import find_version
from inference.services.weight_copies import stage_version


class Command(HeadwayCommand):
    help = (
        "Want a version's weights on nodes' disks before they are needed; status shows how far they are. What failed, or was "
        "evicted, is tried again. Stable versions that are to serve, and new ones, are staged by themselves."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("version", help="the model's public id, or NAME:v2 (NAME alone: the stable one)")
        parser.add_argument("--node", action="append", help="that node; may be given again (default: all that can run it)")

    def handle(self, *, version: str, json: bool, **options: Any) -> None:
        found = find_version(version)
        nodes = stage_version(version=found, actor=actor(), nodes=options["node"])
        self.print_result(f"{found}: wanted on {', '.join(nodes)}", {"version": str(found), "nodes": nodes}, as_json=json)

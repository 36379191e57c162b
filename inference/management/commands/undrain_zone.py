from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.services.zones import undrain_zone


class Command(HeadwayCommand):
    help = "Let new replicas into a zone again; replicas that have not left it yet stay. Nothing is moved back by itself."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("zone")

    def handle(self, *, zone: str, json: bool, **_options: Any) -> None:
        staying = undrain_zone(zone=zone, actor=actor())
        line = f"zone {zone} takes replicas, {staying} that were leaving stay"
        self.print_result(line, {"zone": zone, "staying": staying}, as_json=json)

from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.services.registry import pool_of, scale


class Command(HeadwayCommand):
    help = "Say how many managed replicas a model should have; prints what changes. Node agents do the rest."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="the model's public id")
        parser.add_argument("--replicas", type=int, required=True)

    def handle(self, *, model: str, replicas: int, json: bool, **_options: Any) -> None:
        if pool_of(model).is_autoscaled:
            self.say(
                f"{model} is autoscaled: the number holds until the autoscaler looks again "
                "(what lasts: set_pool --min, --max, --autoscale off)"
            )
        result = scale(public_id=model, replicas=replicas, actor=actor(), node=settings.NODE_NAME)
        line = f"{model}: {replicas} wanted, {len(result.added)} added, {len(result.removed)} to be drained"
        self.print_result(
            line, {"model": model, "replicas": replicas, "added": result.added, "removed": result.removed}, as_json=json
        )

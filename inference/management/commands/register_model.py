from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.management.version_arguments import add_version_arguments, checked, version_spec
from inference.services.registry import register_model

MAX_IN_FLIGHT = 16


class Command(HeadwayCommand):
    help = "Register a model by its public id; prints the id. With --weights it is managed: scale it to get replicas."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("public_id", help="what customers ask for; may contain slashes")
        add_version_arguments(parser)
        parser.add_argument("--max-in-flight", type=int, help=f"requests at once on one replica (default {MAX_IN_FLIGHT})")
        parser.add_argument("--max-queued", type=int, default=256, help="requests waiting per gateway (default 256)")

    def handle(self, *, public_id: str, json: bool, **options: Any) -> None:
        spec = version_spec(options)
        max_in_flight = options["max_in_flight"] or options["option_batch_cap"] or MAX_IN_FLIGHT
        if spec is not None:
            spec = checked(spec, options, max_in_flight=max_in_flight, pool_args=[], say=self.say)
        model = register_model(
            public_id=public_id,
            actor=actor(),
            version=spec,
            max_in_flight=max_in_flight,
            max_queued=options["max_queued"],
        )
        self.print_result(model.public_id, {"id": model.public_id, "managed": bool(options["weights"])}, as_json=json)

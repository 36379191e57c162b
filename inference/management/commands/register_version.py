from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from headway.errors import InvalidInput
from inference.management.version_arguments import add_version_arguments, checked, version_spec
from inference.services.registry import pool_of, register_version


class Command(HeadwayCommand):
    help = "Give a model a further version; prints it. It serves once a rollout brings it there (the first one: at once)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("public_id", help="the model's public id")
        add_version_arguments(parser)

    def handle(self, *, public_id: str, json: bool, **options: Any) -> None:
        spec = version_spec(options)
        if spec is None:
            raise InvalidInput("a version needs --weights")
        pool = pool_of(public_id)
        checked(spec, options, max_in_flight=pool.max_in_flight, pool_args=pool.engine_args, say=self.say)
        version = register_version(public_id=public_id, spec=spec, actor=actor())
        self.print_result(str(version), {"model": public_id, "version": version.number}, as_json=json)

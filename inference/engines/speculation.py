"""vLLM's `--speculative-config`: where it names a draft model by URI, whose weights are staged like all others."""

import json
from pathlib import Path
from typing import Any

from headway.errors import InvalidInput
from inference.engines.vllm import parse_engine_args
from inference.weight_uris import is_fetched, place_of

FLAG = "--speculative-config"
# The engine's parser takes both, and a beginning of the long one.
_SHORT = "-sc"


def speculative_config(engine_args: tuple[str, ...]) -> dict[str, Any]:
    """Empty: it does not speculate. Raises InvalidInput."""
    found = [values for flag, values in parse_engine_args(engine_args) if is_speculative(flag)]
    if not found:
        return {}
    try:
        config = json.loads(found[-1][-1]) if found[-1] else None
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise InvalidInput(f"{FLAG} takes one JSON object", param="engine_args")
    return config


def is_speculative(flag: str) -> bool:
    return flag == _SHORT or (flag.startswith("--specu") and FLAG.startswith(flag))


def draft_uri(engine_args: tuple[str, ...]) -> str:
    """Of weights that are to be fetched; empty where there are none. Raises InvalidInput."""
    model = speculative_config(engine_args).get("model")
    return model if isinstance(model, str) and is_fetched(model) else ""


def uris_of(weights_uri: str, engine_args: list[str]) -> list[str]:
    """What a version's engine loads: its weights, and those of its draft model if they are to be fetched, too."""
    draft = draft_uri(tuple(engine_args))
    return [weights_uri, *([draft] if draft else [])]


def with_local_draft(engine_args: tuple[str, ...], weights: Path) -> tuple[str, ...]:
    """With the folder in place of the URI; `weights` is HOME.weights. Raises InvalidInput, BadWeights."""
    uri = draft_uri(engine_args)
    if not uri:
        return engine_args
    config = {**speculative_config(engine_args), "model": str(place_of(uri, weights))}
    words: list[str] = []
    for flag, values in parse_engine_args(engine_args):
        words += [flag, *([json.dumps(config)] if is_speculative(flag) else values)]
    return tuple(words)

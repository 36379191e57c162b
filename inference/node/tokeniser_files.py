"""What an engine environment makes of a model's tokeniser, kept below HOME.weights/tokenisers by weights and environment.

A version whose tokeniser cannot be read is served all the same: the gateway then takes bounds for its prompts.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import structlog

from inference.engines.vllm import RenderingArgs, rendering_args
from inference.node.child import ChildFailed, run_child
from inference.node.weight_files import Staged, sha256_of
from inference.node.weights import StagingTools
from inference.services.node import Desired
from inference.tokenising.bundle import TokeniserBundle

log = structlog.get_logger(__name__)
SCRIPT = Path(__file__).resolve().parents[1] / "engines" / "scripts" / "dump_tokeniser.py"
NAMES = ("tokenizer_json", "special_tokens", "chat_template", "tool_template", "max_chars_per_token")


def write_tokeniser(staged: Staged, engine_environment: str, tools: StagingTools) -> None:
    """Once for weights, environment and script; what fails is tried again at the next staging. Raises Cancelled."""
    target = tokeniser_file(tools.folder, staged.digest, engine_environment)
    if target.exists():
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    tools.progress("reading the tokeniser")
    partial = target.with_name(f".{target.name}.partial")
    try:
        command = [str(tools.python), str(SCRIPT), str(staged.path), str(partial)]
        run_child(command, environment=tools.engine_environment, is_cancelled=tools.is_cancelled)
        partial.replace(target)
    except (ChildFailed, OSError) as error:
        log.warning("tokeniser_unreadable", weights=staged.digest[:12], reason=str(error))
    finally:
        partial.unlink(missing_ok=True)


def read_tokeniser(weights: Path, desired: Desired) -> TokeniserBundle | None:
    """With what the version's arguments say about rendering; None where there is nothing that could be checked."""
    arguments = rendering_args(tuple(desired.engine_args))
    if arguments is None:
        return None
    try:
        found: dict[str, Any] = json.loads(
            tokeniser_file(weights, desired.weights_digest, desired.engine_environment).read_bytes()
        )
        if "reason" in found:
            return None
        template = _template(arguments)
        known = {name: found[name] for name in NAMES} | ({"chat_template": template, "tool_template": None} if template else {})
        return msgspec.convert(
            {
                "format": "headway-tokeniser-1",
                **known,
                "template_kwargs": arguments.template_kwargs,
                "drops_unused_tools": arguments.drops_unused_tools,
            },
            TokeniserBundle,
        )
    except (OSError, ValueError, KeyError, msgspec.ValidationError) as error:
        log.warning("tokeniser_unreadable", weights=desired.weights_digest[:12], reason=type(error).__name__)
        return None


def _template(arguments: RenderingArgs) -> str | None:
    """A file, or the template itself. Raises OSError."""
    given = arguments.chat_template
    if not given or any(char in given for char in "{}\n"):
        return given or None
    return Path(given).read_text()


def tokeniser_file(weights: Path, weights_digest: str, engine_environment: str) -> Path:
    key = f"{weights_digest} {engine_environment} {sha256_of(SCRIPT)}"
    return weights / "tokenisers" / (hashlib.sha256(key.encode()).hexdigest()[:32] + ".json")

"""What engines' parsers have said of arguments, kept in a folder: asked once for an environment and arguments."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference.engines.environments import EngineEnvironment
from inference.engines.speculation import uris_of, with_local_draft
from inference.engines.vllm import EngineSettings, ServerSpec, server_arguments
from inference.errors import BadEngineArguments
from inference.weight_uris import place_of

SCRIPT = Path(__file__).resolve().parent / "scripts" / "check_args.py"
MAX_WORDS_CHARS = 400


@dataclass(frozen=True)
class Question:
    """`weights` is HOME.weights. Where the model lies there already, what contradicts it is found too."""

    environment: EngineEnvironment
    weights: Path
    weights_uri: str
    dtype: str
    max_num_seqs: int
    engine_args: tuple[str, ...]

    def arguments(self) -> tuple[str, ...]:
        """As a server would be started, up to what is this machine's. Raises InvalidInput (parse_engine_args)."""
        spec = ServerSpec(
            kind=self.environment.kind,
            weights=place_of(self.weights_uri, self.weights),
            served_name="model",
            socket=Path("/run/model.sock"),
            dtype=self.dtype,
            max_num_seqs=self.max_num_seqs,
            engine_args=with_local_draft(self.engine_args, self.weights),
        )
        return server_arguments(spec, EngineSettings())

    def key(self) -> str:
        uris = uris_of(self.weights_uri, list(self.engine_args))
        configs = [place_of(uri, self.weights) / "config.json" for uri in uris]
        facts = [
            str(self.environment.folder),
            self.arguments(),
            SCRIPT.read_text(),
            [config.read_text() if config.is_file() else "" for config in configs],
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def check(question: Question, kept: Path, ask: Callable[[Sequence[str]], str]) -> None:
    """`kept`: the folder of verdicts. Raises BadEngineArguments with the parser's words, InvalidInput, what `ask` raises."""
    refused = _known(kept / question.key())
    if refused is None:
        refused = ask(question.arguments())
        _keep(kept / question.key(), refused)
    if refused:
        words = refused.removeprefix("Value error, ")[:MAX_WORDS_CHARS]
        raise BadEngineArguments(f"{question.environment.name} refuses its arguments: {words}", param="engine_args")


def _known(path: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return str(json.loads(path.read_text())["refused"])
    return None


def _keep(path: Path, refused: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps({"refused": refused}))
    partial.replace(path)

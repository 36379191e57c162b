"""Tokens of the agent's own requests to one engine (probes, golden checks, canaries), kept in a file beside its run file.

The engine's counters include them, and customers' usage does not. What a request may take is written down before it is
sent and what it took afterwards, so that an agent killed in between leaves a range and not a gap.
"""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from inference.engines.client import Spent
from inference.node.weight_files import write_json

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class OwnTokens:
    """Of one start of an engine. `max_` counts what may have been taken by requests that were not answered, too."""

    epoch: int
    began_at_s: float
    """Unix seconds: just before the engine was started."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    max_prompt_tokens: int = 0
    max_completion_tokens: int = 0


class OwnWork:
    """One job of a replica at a time adds to it; `tokens` may be read from any thread."""

    def __init__(self, path: Path, tokens: OwnTokens) -> None:
        self._path = path
        self.tokens = tokens
        self._write()

    @classmethod
    def found(cls, path: Path, *, epoch: int) -> "OwnWork | None":
        """What an earlier agent counted; None where none has, since this start of the engine."""
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError, TypeError):
            tokens = OwnTokens(**json.loads(path.read_text()))
            if tokens.epoch == epoch:
                return cls(path, tokens)
        return None

    @contextlib.contextmanager
    def request(self, most: Spent) -> Iterator[list[Spent]]:
        """Of a request that takes at most `most`; put into the list what it took. Without that it may be anything up to it."""
        before = self.tokens
        self.tokens = replace(
            before,
            max_prompt_tokens=before.max_prompt_tokens + most.prompt_tokens,
            max_completion_tokens=before.max_completion_tokens + most.completion_tokens,
        )
        self._write()
        told: list[Spent] = []
        try:
            yield told
        finally:
            for spent in told:
                self.tokens = replace(
                    before,
                    prompt_tokens=before.prompt_tokens + spent.prompt_tokens,
                    completion_tokens=before.completion_tokens + spent.completion_tokens,
                    max_prompt_tokens=before.max_prompt_tokens + spent.prompt_tokens,
                    max_completion_tokens=before.max_completion_tokens + spent.completion_tokens,
                )
                self._write()

    def _write(self) -> None:
        """A full disk must end no engine: without its file the next agent knows that it does not know."""
        try:
            write_json(self._path, asdict(self.tokens))
        except OSError as error:
            log.warning("own_tokens_not_written", path=str(self._path), reason=error.strerror)
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

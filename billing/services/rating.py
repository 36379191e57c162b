"""What a request costs: the rule of each end state (docs/billing.md has the same table in words)."""

from typing import Protocol


class Tokens(Protocol):
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...


class TokenPrice(Protocol):
    """Of inference.policy.decisions."""

    def amount_picos(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int: ...


WHOLE = frozenset({"done", "client_gone_after_first_token"})
"""The prompt and all that was made of the answer."""
ANSWER_ONLY = frozenset({"engine_error", "engine_died", "deadline", "cut_by_drain", "gateway_lost"})
"""The end was not the client's doing: only what it has of the answer."""


def amount_of(end_state: str, usage: Tokens | None, price: TokenPrice) -> int:
    """Pico-dollars; 0 for every other end, and where nothing is known of usage."""
    if usage is None or end_state not in WHOLE | ANSWER_ONLY:
        return 0
    is_whole = end_state in WHOLE
    return price.amount_picos(
        prompt_tokens=usage.prompt_tokens if is_whole else 0,
        cached_tokens=usage.cached_tokens if is_whole else 0,
        completion_tokens=usage.completion_tokens,
    )

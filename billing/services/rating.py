"""What a request costs: the rule of each end state (docs/billing.md has the same table in words)."""

from dataclasses import dataclass
from typing import Protocol

from billing.models import Price


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


@dataclass(frozen=True, slots=True)
class UnitPrice:
    """Pico-dollars a token; the same sum as the policies' TokenPrice, for those who rate what is in the ledger."""

    input_picos: int
    cached_picos: int
    output_picos: int

    def amount_picos(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
        return (
            (prompt_tokens - cached_tokens) * self.input_picos
            + cached_tokens * self.cached_picos
            + completion_tokens * self.output_picos
        )


def unit_price(price: Price, discount_percent: int = 0) -> UnitPrice:
    """Net of a discount; micro-dollars per million tokens are pico-dollars a token."""
    each = (price.input_micros, price.cached_micros, price.output_micros)
    return UnitPrice(*(net_unit(picos, discount_percent) for picos in each))


def net_unit(picos: int, discount_percent: int) -> int:
    """A token's list price less a discount, rounded half up to a whole pico-dollar."""
    return (picos * (100 - discount_percent) + 50) // 100


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

"""What is asked of one model, second by second: the autoscaler's history, kept by the brain.

Counted where a request first asks, so that one that is refused, or waits for a replica to start, is demand too. A retry
or a resumed answer is none: its work was counted.
"""

from collections import deque
from dataclasses import dataclass, field

from inference.policy.decisions import Tier

KEPT_S = 120
"""Whole seconds that are kept: longer than an autoscaler may be away between two looks."""
KEPT_TTFTS = 256
"""First tokens by tier that the shown latency is taken over."""
FADE = 0.99
"""What a request leaves of those before it, in shares."""
URGENT_SHARE = 0.05
"""From this share of the requests on, a tier's target is what the pool is sized for."""


@dataclass(frozen=True, slots=True)
class DemandView:
    by_second: tuple[int, ...] = ()
    """Prompt tokens asked for in whole seconds, the newest last; none before the first request."""
    second: int = 0
    """The newest of them, by the brain's clock."""
    cached_ratio: float = 0.0
    """Of the prompt tokens granted of late, what was predicted to be cached."""
    urgent: Tier | None = None
    """The most urgent tier that is asked for in earnest; None: nothing was asked."""
    ttft_s: dict[Tier, float] = field(default_factory=dict)
    """Median from the first ask to the first token, of the last KEPT_TTFTS of a tier."""


class Demand:
    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque(maxlen=KEPT_S)  # (second, prompt tokens)
        self._first: int | None = None
        self._tiers = [0.0] * len(Tier)
        self._granted_tokens = self._cached_tokens = 0.0
        self._ttfts: dict[Tier, deque[float]] = {}

    def asked(self, tier: Tier, prompt_tokens: int, now_s: float) -> None:
        second = int(now_s)
        if self._first is None:
            self._first = second
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + prompt_tokens)
        else:
            self._seconds.append((second, prompt_tokens))
        self._tiers = [share * FADE + (one == tier) for one, share in enumerate(self._tiers)]

    def granted(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._granted_tokens = self._granted_tokens * FADE + prompt_tokens
        self._cached_tokens = self._cached_tokens * FADE + cached_tokens

    def first_token(self, tier: Tier, ttft_s: float) -> None:
        self._ttfts.setdefault(tier, deque(maxlen=KEPT_TTFTS)).append(ttft_s)

    def view(self, now_s: float) -> DemandView:
        """The second that runs is not whole, and left out."""
        newest = int(now_s) - 1
        total = sum(self._tiers)
        return DemandView(
            by_second=self._by_second(newest),
            second=newest,
            cached_ratio=self._cached_tokens / self._granted_tokens if self._granted_tokens else 0.0,
            urgent=next((tier for tier in Tier if self._tiers[tier] >= URGENT_SHARE * total), None) if total else None,
            ttft_s={tier: sorted(ttfts)[len(ttfts) // 2] for tier, ttfts in self._ttfts.items()},
        )

    def _by_second(self, newest: int) -> tuple[int, ...]:
        if self._first is None:
            return ()
        tokens = dict(self._seconds)
        return tuple(tokens.get(second, 0) for second in range(max(self._first, newest - KEPT_S + 1), newest + 1))

"""Jain's index of weighted service over a sliding window: 1 is fair, 1/n is all to one of n.

R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness and Discrimination, DEC-TR-301, 1984.
"""

from collections import deque
from collections.abc import Callable, Iterable

BUCKETS = 12


def jain_index(shares: Iterable[float]) -> float:
    """Of any non-negative amounts; 1.0 when there are none, or all are 0."""
    amounts = list(shares)
    square_sum = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * square_sum) if square_sum > 0 else 1.0


class ServiceWindow:
    """Tokens served to each tenant, and who had to wait, over the last `window_s` (in steps of a twelfth of it)."""

    def __init__(self, window_s: float) -> None:
        self._bucket_s = window_s / BUCKETS
        self._buckets: deque[tuple[int, dict[str, float], set[str]]] = deque()
        self._served: dict[str, float] = {}  # the last bucket's
        self._waited: set[str] = set()
        self._bucket_until_s = float("-inf")

    def record(self, tenant: str, tokens: float, now_s: float) -> None:
        """Tokens may be negative: a correction."""
        if now_s >= self._bucket_until_s:
            self._next_bucket(now_s)
        self._served[tenant] = self._served.get(tenant, 0.0) + tokens

    def had_to_wait(self, tenant: str, now_s: float) -> None:
        if now_s >= self._bucket_until_s:
            self._next_bucket(now_s)
        self._waited.add(tenant)

    def index(self, weight_of: Callable[[str], float], waiting: Iterable[str], now_s: float) -> float:
        """Among those that wait or had to: who never waits has all it asks for, and says nothing about fairness."""
        if now_s >= self._bucket_until_s:
            self._next_bucket(now_s)
        contenders = set(waiting).union(*(waited for _, _, waited in self._buckets))
        served = dict.fromkeys(contenders, 0.0)
        for _, tokens_of, _ in self._buckets:
            for tenant in contenders & tokens_of.keys():
                served[tenant] += tokens_of[tenant]
        return jain_index(max(0.0, tokens) / weight_of(tenant) for tenant, tokens in served.items())

    def _next_bucket(self, now_s: float) -> None:
        number = int(now_s // self._bucket_s)
        while self._buckets and self._buckets[0][0] <= number - BUCKETS:
            self._buckets.popleft()
        self._served, self._waited = {}, set()
        self._buckets.append((number, self._served, self._waited))
        self._bucket_until_s = (number + 1) * self._bucket_s

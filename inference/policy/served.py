"""What requests were served: charged to their tenants as it becomes known, and kept for the fairness index."""

from collections.abc import Iterable, Mapping

from inference.policy.decisions import Ending, Usage
from inference.policy.entry import Entry
from inference.policy.fair_queue import FairQueue
from inference.policy.jain import ServiceWindow


class Served:
    def __init__(self, queue: FairQueue, weight_of: Mapping[str, float], window: ServiceWindow) -> None:
        """`window` is that of all pools of the model."""
        self._queue = queue
        self._weight_of = weight_of
        self._window = window

    def had_to_wait(self, entry: Entry, now_s: float) -> None:
        self._window.had_to_wait(entry.ask.tenant, now_s)

    def told(self, entry: Entry, now_s: float) -> None:
        """It runs, and has read its prompt or made more."""
        tokens = self._so_far(entry)
        self._record(entry, tokens, now_s)
        self._queue.told(entry, tokens)

    def stopped(self, entry: Entry, now_s: float) -> None:
        """It will ask again, or is refused: one that had begun keeps its charge, another starts from nothing."""
        tokens = self._so_far(entry) if entry.has_begun else 0.0
        self._record(entry, tokens, now_s)
        self._queue.charge(entry, tokens)

    def ended(self, entry: Entry, ending: Ending, usage: Usage, now_s: float) -> None:
        tokens = self._queue.service(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        self._record(entry, tokens, now_s)
        self._queue.charge(entry, tokens)
        if ending is Ending.WELL:
            self._queue.learn(entry, usage.completion_tokens)

    def jain_index(self, waiting: Iterable[str], now_s: float) -> float:
        return self._window.index(self.weight, waiting, now_s)

    def weight(self, tenant: str) -> float:
        return self._weight_of.get(tenant, 1.0)

    def _so_far(self, entry: Entry) -> float:
        return self._queue.service(entry.ask.work_tokens, entry.cached_tokens, entry.completion_tokens)

    def _record(self, entry: Entry, tokens: float, now_s: float) -> None:
        if tokens != entry.recorded_tokens:
            self._window.record(entry.ask.tenant, tokens - entry.recorded_tokens, now_s)
            entry.recorded_tokens = tokens


def usage_so_far(entry: Entry) -> Usage:
    """Of one whose owner no longer tells: as last reported. The end is not its doing: it pays for what it has (rating.py)."""
    ask, made = entry.ask, entry.completion_tokens
    return Usage(
        prompt_tokens=ask.prompt_tokens,
        cached_tokens=0,
        completion_tokens=made,
        amount_picos=ask.price.amount_picos(prompt_tokens=0, cached_tokens=0, completion_tokens=made),
    )

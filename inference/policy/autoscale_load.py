"""How many replicas' worth a load is: by prompts to read, by slots, by KV cache; now, and by replaying the past.

Never CPU: an engine's CPU says nothing about what it could take. The forecast is a replay: the arrivals of the horizon run
through one fluid queue of N replicas, and the floor is the least N at which no more than `late_ratio` of the work would have
begun later than its target. So a pool whose bursts are shorter than an engine's start keeps room for the next one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf


@dataclass(frozen=True, slots=True)
class Loads:
    """In replicas, fully used."""

    prompts: float = 0.0
    slots: float = 0.0
    kv: float = 0.0

    @property
    def most(self) -> float:
        return max(self.prompts, self.slots, self.kv)


def late_share(work: Sequence[float], *, capacity: float, within_s: float) -> float:
    """Of work that came by the second, in the order it came: the part that begins later than `within_s` after it came.

    `work` and `capacity` are in tokens (a second).
    """
    backlog = late = total = 0.0
    for came in work:
        if came > 0.0:
            over = backlog + came - capacity * within_s
            late += min(came, max(0.0, over))
            total += came
        backlog = max(0.0, backlog + came - capacity)
    return late / total if total else 0.0


def replicas_for(work: Sequence[float], *, rate: float, within_s: float, late_ratio: float, most: int) -> int:
    """The least number of replicas, each of `rate` tokens a second, at which no more than that is late; at most `most`."""
    if not any(work):
        return 0
    low, high = 1, max(1, most)
    while low < high:
        middle = (low + high) // 2
        if late_share(work, capacity=middle * rate, within_s=within_s) <= late_ratio:
            high = middle
        else:
            low = middle + 1
    return low


def quantile(values: Sequence[float], share: float) -> float:
    """0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def needed(load: float, ratio: float) -> int:
    """Replicas that are used to `ratio` by it; a hair more than a whole number is a whole number."""
    return ceil(load / ratio - 1e-9) if load < inf else 0

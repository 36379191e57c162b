"""How fast a replica is: quotients of sums that fade, so that one odd sample moves them little.

A rate from few samples leans on a prior: what its neighbours do. So a replica that nothing is known of counts as an
ordinary one.
"""

from math import exp


class FadingRatio:
    """sum(top) / sum(bottom), where a sample's weight falls by e every `fade_s` seconds."""

    __slots__ = ("_as_of_s", "_bottom", "_fade_s", "_top")

    def __init__(self, fade_s: float) -> None:
        self._fade_s = fade_s
        self._top = self._bottom = 0.0
        self._as_of_s = 0.0

    def add(self, top: float, bottom: float, now_s: float) -> None:
        if now_s > self._as_of_s:
            kept = exp((self._as_of_s - now_s) / self._fade_s)
            self._top *= kept
            self._bottom *= kept
            self._as_of_s = now_s
        self._top += top
        self._bottom += bottom

    def value(self, prior: float, prior_weight: float, now_s: float) -> float:
        """The quotient, with `prior_weight` units of `bottom` at the prior mixed in."""
        since_s = now_s - self._as_of_s
        kept = exp(-since_s / self._fade_s) if since_s > 0.0 else 1.0
        return (self._top * kept + prior * prior_weight) / (self._bottom * kept + prior_weight)

    def plain(self) -> float | None:
        """None: no sample yet."""
        return self._top / self._bottom if self._bottom > 0.0 else None


class FadingSum:
    """A sum of amounts that fade in the same way: per second of `fade_s`, an average rate of late."""

    __slots__ = ("_as_of_s", "_fade_s", "_sum")

    def __init__(self, fade_s: float) -> None:
        self._fade_s = fade_s
        self._sum = 0.0
        self._as_of_s = 0.0

    def add(self, amount: float, now_s: float) -> float:
        """What it is then."""
        self._sum = now = self.at(now_s) + amount
        if now_s > self._as_of_s:
            self._as_of_s = now_s
        return now

    def at(self, now_s: float) -> float:
        since_s = now_s - self._as_of_s
        return self._sum * exp(-since_s / self._fade_s) if since_s > 0.0 else self._sum

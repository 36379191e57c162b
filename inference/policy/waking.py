"""A pool at zero that can be woken: how long requests are held for it, and how long that may take yet."""

from math import inf

MIN_LEFT_S = 1.0
"""What is said of a start that takes longer than starts usually do."""


class Waking:
    def __init__(self) -> None:
        self.hold_limit_s = 0.0
        """How long a request waits for it; 0: this pool is not woken by requests."""
        self._start_s = 0.0
        self._not_before_s = -inf
        self._begun_s: float | None = None

    def set(self, *, hold_limit_s: float, start_s: float) -> None:
        """`start_s`: what a start usually takes."""
        self.hold_limit_s, self._start_s = hold_limit_s, start_s
        if not hold_limit_s:
            self._begun_s = None

    def may(self, now_s: float) -> bool:
        return self.hold_limit_s > 0.0 and now_s >= self._not_before_s

    @property
    def is_under_way(self) -> bool:
        return self._begun_s is not None

    def begin(self, now_s: float) -> None:
        """Somebody waits for it; again: nothing happens."""
        if self._begun_s is None:
            self._begun_s = now_s

    def cannot(self, until_s: float) -> None:
        """Nobody starts anything: those who come until then are refused at once."""
        self._not_before_s, self._begun_s = until_s, None

    def is_awake(self) -> None:
        self._begun_s = None

    def left_s(self, now_s: float) -> float:
        """Until something serves, as far as can be said."""
        passed_s = 0.0 if self._begun_s is None else now_s - self._begun_s
        return max(MIN_LEFT_S, self._start_s - passed_s)

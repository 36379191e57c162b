"""When to try again after a failure. Pure: `now_s` is an argument."""

from dataclasses import dataclass


@dataclass
class Backoff:
    """The first delay, doubled with every failure in a row up to the ceiling; forgotten after a long good stretch."""

    first_s: float = 1.0
    ceiling_s: float = 60.0
    reset_after_s: float = 300.0
    num_failures: int = 0

    def failed(self, *, now_s: float, ready_since_s: float | None) -> float:
        """The time of the next try. `ready_since_s`: since when it had been ready, if it had been."""
        if ready_since_s is not None and now_s - ready_since_s >= self.reset_after_s:
            self.num_failures = 0
        # The exponent is capped so that a thousandth failure is no number of a thousand bits.
        delay_s = min(self.ceiling_s, self.first_s * float(2 ** min(self.num_failures, 30)))
        self.num_failures += 1
        return now_s + delay_s

    def forget(self) -> None:
        self.num_failures = 0

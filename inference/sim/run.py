"""Steps of a replica that are done as one event, and the arithmetic of when each of them ends."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from inference.sim.sequence import Sequence


@dataclass(slots=True)
class Run:
    """Steps in progress: one with prompts in it, or many that only decode."""

    start_s: float
    steps: int
    first_step_s: float
    growth_s: float
    """Each step is longer by this than the one before: its sequences read one more token each."""
    chunks: list[tuple[Sequence, int]]

    @property
    def end_s(self) -> float:
        return self.start_s + self.time_s(self.steps)

    def time_s(self, steps: int) -> float:
        return steps * self.first_step_s + self.growth_s * steps * (steps - 1) / 2

    def steps_begun(self, now_s: float) -> int:
        """How many have ended by `now_s` or are in progress; at least 1."""
        passed_s, first_s, growth_s = now_s - self.start_s, self.first_step_s, self.growth_s
        if growth_s <= 0:
            steps = passed_s / first_s
        else:  # steps * first + growth * steps * (steps - 1) / 2 = passed
            half = first_s - growth_s / 2
            steps = 2 * passed_s / (half + math.sqrt(half * half + 2 * growth_s * passed_s))
        return min(self.steps, max(1, math.ceil(steps - 1e-9)))

    def steps_ended(self, now_s: float) -> int:
        begun = self.steps_begun(now_s)
        return begun - (self.start_s + self.time_s(begun) > now_s)

    def step_times(self, first: int = 1, last: int | None = None) -> Iterator[tuple[float, int]]:
        """(seconds, how many steps take about so long) of all steps; together while they differ by less than 1 %."""
        last = self.steps if last is None else last
        shortest_s = self.first_step_s + self.growth_s * (first - 1)
        longest_s = self.first_step_s + self.growth_s * (last - 1)
        if longest_s <= 1.01 * shortest_s or first == last:
            yield (shortest_s + longest_s) / 2, last - first + 1
            return
        middle = (first + last) // 2
        yield from self.step_times(first, middle)
        yield from self.step_times(middle + 1, last)

"""The highest rate that a front sustains with a workload."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from inference.sim.fronts import MakeFront
from inference.sim.results import Summary, summarise
from inference.sim.simulation import Setup, simulate
from inference.sim.workload import Workload


@dataclass(frozen=True, slots=True)
class Target:
    """Sustained: all of these hold over the whole run. Late is a TTFT above Setup.late_ttft_s."""

    ttft_p50_s: float = 0.5
    inter_token_p50_s: float = 0.05
    bad_share: float = 0.01
    """Refused or late."""

    def is_met(self, summary: Summary) -> bool:
        return not self.misses(summary)

    def misses(self, summary: Summary) -> str:
        """Which of them does not hold; empty: all do."""
        figures = summary.all
        if summary.gave_up or figures.bad_share >= self.bad_share:
            return "refused or late"
        if figures.ttft_s.p50 >= self.ttft_p50_s:
            return "TTFT"
        return "inter-token" if figures.inter_token_s.p50 >= self.inter_token_p50_s else ""


@dataclass(frozen=True, slots=True)
class Sustained:
    rate_per_s: float
    """0: not even the lowest rate tried."""
    summary: Summary | None
    """At that rate."""
    limited_by: str
    """What did not hold at the next rate tried."""


def sustainable_rate(
    workload: Workload,
    make_front: MakeFront,
    setup: Setup,
    *,
    target: Target = Target(),
    guess_per_s: float,
    tolerance: float = 0.02,
) -> Sustained:
    """Doubles or halves `guess_per_s` until one rate holds and the other does not, then halves the space between them until
    they differ by `tolerance`. Takes the answer to be monotone in the rate, which simulations are to within about that."""
    setup = replace(setup, give_up_share=target.bad_share)

    def run(rate_per_s: float) -> tuple[Summary, str]:
        summary = summarise(simulate(workload.at_rate(rate_per_s), make_front, setup))
        return summary, target.misses(summary)

    return _search(run, guess_per_s, tolerance)


def _search(run: Callable[[float], tuple[Summary, str]], guess_per_s: float, tolerance: float) -> Sustained:
    good_per_s, good, bad_per_s, limited_by = 0.0, None, 0.0, ""
    rate_per_s = guess_per_s
    while not good_per_s or not bad_per_s or bad_per_s > good_per_s * (1 + tolerance):
        summary, missed = run(rate_per_s)
        if missed:
            bad_per_s, limited_by = rate_per_s, missed
        else:
            good_per_s, good = rate_per_s, summary
        if not bad_per_s:
            rate_per_s = good_per_s * 1.5
        elif not good_per_s:
            rate_per_s = bad_per_s / 1.5
        else:
            rate_per_s = (good_per_s + bad_per_s) / 2
        if rate_per_s < guess_per_s / 1000:
            break
    return Sustained(good_per_s, good, limited_by)

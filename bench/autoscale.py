"""What the autoscaler is worth: a bursty trace through the simulator, against someone who knows the trace.

    TRACE_DIR=... python -m bench.autoscale [--speed 10] [--laps 10] [--preset 8b-h100] [--start 30] [--plan 9,9,9,...]

The trace (azure2023_code.csv in TRACE_DIR; without it a generated one of like shape) is replayed `--speed` times as fast, and
again and again for `--laps`, as one lap is shorter than what the autoscaler looks back on. The oracle says, for each window of
`--window` seconds of a lap, how many serve, asks for them early enough, and pays for their start; it is found by search over
one lap: those of the cheapest plans that leave no more than `--late` of the requests beyond their TTFT target. A search that
is not exhaustive finds no cheaper plan than the best: `--plan` takes one that was found, and skips it.
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from inference.policy.autoscale_tunables import AutoscaleTunables, ScaleBounds
from inference.sim.engine_profile import PRESETS
from inference.sim.generators import like_code
from inference.sim.scaled import Autoscaled, Planned, ScaledOutcome, ScaleSetup, run_scaled
from inference.sim.simulation import Setup
from inference.sim.traces import read_trace
from inference.sim.workload import Workload

TTFT_S = 2.0
"""Of standard, by default."""
AT_ONCE = (4, 2, 1)
"""How many windows of a plan are made smaller together."""


def lap_of(options: argparse.Namespace) -> Workload:
    if "TRACE_DIR" in os.environ:
        lap = read_trace(Path(os.environ["TRACE_DIR"]) / "azure2023_code.csv")
        return lap.at_rate(lap.rate_per_s * options.speed)
    return like_code(requests_per_s=25.0, seconds=340.0, rng=Random(options.seed))


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lap = lap_of(options)
        self.scale = ScaleSetup(start_s=options.start)
        self.profile = PRESETS[options.preset]

    def planned(self, counts: Sequence[int], laps: int = 1) -> ScaledOutcome:
        plan = Planned([*counts] * laps, self.options.window)
        return run_scaled(self.lap.laps(laps), Setup(self.profile, counts[0]), self.scale, plan)

    def autoscaled(self, laps: int) -> ScaledOutcome:
        bounds = ScaleBounds(1, self.options.most, 900.0)
        return run_scaled(self.lap.laps(laps), Setup(self.profile, 1), self.scale, Autoscaled(bounds, AutoscaleTunables()))

    def is_good(self, outcome: ScaledOutcome) -> bool:
        return outcome.late_share(TTFT_S) <= self.options.late

    def oracle(self) -> list[int]:
        """From the least constant number that will do, down window by window, those first that cost least lateness."""
        num_windows = int(self.lap.span_s // self.options.window) + 1
        constant = next(n for n in range(1, self.options.most + 1) if self.is_good(self.planned([n] * num_windows)))
        counts, best = [constant] * num_windows, self.planned([constant] * num_windows)
        candidates = set(range(num_windows))
        while smaller := self._smaller(counts, best, candidates):
            for together in AT_ONCE:
                fewer = [count - (index in smaller[:together]) for index, count in enumerate(counts)]
                found = self.planned(fewer)
                if self.is_good(found) and found.replica_s < best.replica_s:
                    counts, best = fewer, found
                    break
            else:
                break
        return counts

    def _smaller(self, counts: list[int], best: ScaledOutcome, candidates: set[int]) -> list[int]:
        """Windows that can do with one less, the cheapest in lateness first; the others are looked at no more."""
        cost: dict[int, float] = {}
        for window in sorted(candidates):
            found = (
                self.planned([count - (index == window) for index, count in enumerate(counts)]) if counts[window] > 1 else best
            )
            if not self.is_good(found) or found.replica_s >= best.replica_s:
                candidates.discard(window)
                continue
            cost[window] = (found.late_share(TTFT_S) - best.late_share(TTFT_S)) / (best.replica_s - found.replica_s)
        return sorted(cost, key=lambda window: cost[window])


def row(name: str, found: ScaledOutcome, laps: int, oracle_s: float) -> str:
    hours = found.replica_s / laps / 3600
    pause_s = AutoscaleTunables().reversal_pause_s
    return (
        f"| {name} | {found.late_share(TTFT_S):.2%} | {hours:.3f} | {found.replica_s / laps / oracle_s:.2f} | "
        f"{len(found.steps)} | {found.reversals(pause_s)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=float, default=10.0)
    parser.add_argument("--laps", type=int, default=10)
    parser.add_argument("--preset", choices=PRESETS, default="8b-h100")
    parser.add_argument("--start", type=float, default=30.0, help="seconds from asking for a replica until it serves")
    parser.add_argument("--most", type=int, default=20, help="the pool's max_replicas")
    parser.add_argument("--window", type=float, default=30.0, help="of the oracle's plan, seconds")
    parser.add_argument("--late", type=float, default=0.05, help="share of requests that may be late in the oracle's plan")
    parser.add_argument("--plan", type=lambda text: [int(part) for part in text.split(",")], help="an oracle's, by window")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun_s, bench = time.monotonic(), Bench(options)
    print(f"{len(bench.lap.arrivals)} requests in {bench.lap.span_s:.0f} s a lap, {options.preset}, target {TTFT_S:g} s\n")
    counts = options.plan or bench.oracle()
    oracle = bench.planned(counts)
    print("| who | beyond the target | replica-hours a lap | against the oracle | steps | reversals |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(row(f"oracle {','.join(map(str, counts))}", oracle, 1, oracle.replica_s), flush=True)
    print(row("autoscaler, first lap, from one replica", bench.autoscaled(1), 1, oracle.replica_s), flush=True)
    if options.laps > 1:
        name = f"autoscaler, {options.laps} laps, from one replica"
        print(row(name, bench.autoscaled(options.laps), options.laps, oracle.replica_s), flush=True)
    print(f"\n{time.monotonic() - begun_s:.0f} s")


if __name__ == "__main__":
    main()

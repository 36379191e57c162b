"""What routing is worth: the highest rate each policy sustains on a trace, in the simulator.

    python -m bench.simulate [--trace FILE] [--replicas 8] [--preset 70b-8xh100] [--requests N] [--rate R] [--only NAME ...]

Sustained: TTFT p50 < 500 ms, inter-token p50 < 50 ms, less than 1 % refused or late (TTFT > 10 s). Without `--trace` it
reads mooncake_conversation.jsonl in TRACE_DIR, or else a generated trace. With `--rate` it runs each policy once at that
rate instead of searching.
"""

import argparse
import os
import time
from functools import partial
from pathlib import Path
from random import Random

from inference.policy.decisions import Tier, TierTargets
from inference.sim.engine_profile import PRESETS
from inference.sim.fronts import BASELINES, CACHE_BLIND, MakeFront
from inference.sim.generators import shared_prefixes
from inference.sim.ours import BrainFront, RouterFront
from inference.sim.results import Summary, summarise
from inference.sim.simulation import Setup, simulate
from inference.sim.sustainable import Target, sustainable_rate
from inference.sim.traces import read_trace
from inference.sim.workload import Workload, best_cached_share

TARGET = Target()
PATIENT = dict.fromkeys(Tier, TierTargets(ttft_s=TARGET.ttft_p50_s, inter_token_s=TARGET.inter_token_p50_s))
OURS: dict[str, MakeFront] = {"router alone": RouterFront, "brain": partial(BrainFront, targets=PATIENT)}
FRONTS: dict[str, MakeFront] = {**BASELINES, **OURS}
COLUMNS = "TTFT p50/p90/p99 ms | gap p50/p90/p99 ms | bad % | cached % | load max/mean | work max/mean | tokens/s | preempted"


def workload_of(options: argparse.Namespace) -> Workload:
    rng = Random(options.seed)
    path = options.trace
    if path is None and "TRACE_DIR" in os.environ:
        path = Path(os.environ["TRACE_DIR"]) / "mooncake_conversation.jsonl"
    if path is None:
        return shared_prefixes(
            tenants=64,
            prefix_tokens=4096,
            suffix_tokens=4096,
            output_tokens=340,
            requests_per_s=4.0,
            seconds=1500.0,
            rng=rng,
            content_block_tokens=512,
        )
    workload = read_trace(path)
    return workload if options.no_spread else workload.spread(rng)


def row(summary: Summary) -> str:
    figures = summary.all
    ttft, gap = figures.ttft_s, figures.inter_token_s
    return (
        f"{ttft.p50 * 1e3:.0f} / {ttft.p90 * 1e3:.0f} / {ttft.p99 * 1e3:.0f} | "
        f"{gap.p50 * 1e3:.0f} / {gap.p90 * 1e3:.0f} / {gap.p99 * 1e3:.0f} | {figures.bad_share:.2%} | "
        f"{figures.cached_share:.1%} | {summary.load_max_to_mean:.2f} | {summary.work_max_to_mean:.2f} | "
        f"{summary.tokens_per_s:.0f} | {summary.preemptions}"
    )


def search(workload: Workload, setup: Setup, names: list[str], guess_per_s: float) -> None:
    print(f"| policy | sustained /s | limited by | {COLUMNS} |")
    print("|" + " --- |" * 11)
    rates: dict[str, float] = {}
    for name in names:
        found = sustainable_rate(workload, FRONTS[name], setup, target=TARGET, guess_per_s=guess_per_s)
        rates[name] = found.rate_per_s
        print(
            f"| {name} | {found.rate_per_s:.2f} | {found.limited_by} | {row(found.summary) if found.summary else ''} |",
            flush=True,
        )
    blind = {name: rate for name, rate in rates.items() if name in CACHE_BLIND}
    best = max(blind, key=lambda name: blind[name], default=None)
    for name in rates:
        if best and blind[best] and name not in CACHE_BLIND:
            print(f"{name}: {rates[name] / blind[best]:.2f} x {best}")


def run_once(workload: Workload, setup: Setup, names: list[str]) -> None:
    print(f"| policy | {COLUMNS} |")
    print("|" + " --- |" * 9)
    for name in names:
        print(f"| {name} | {row(summarise(simulate(workload, FRONTS[name], setup)))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a .jsonl in Mooncake's format or a .csv in Azure's")
    parser.add_argument("--no-spread", action="store_true", help="leave requests of one instant together")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--preset", choices=PRESETS, default="70b-8xh100")
    parser.add_argument("--requests", type=int, help="only the first so many")
    parser.add_argument("--rate", type=float, help="requests a second: one run of each, no search")
    parser.add_argument("--guess", type=float, help="where the search begins; else one request a second and replica")
    parser.add_argument("--only", action="append", choices=FRONTS, help="this policy; may be given again")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun_s = time.monotonic()
    workload = workload_of(options)
    if options.requests:
        workload = workload.first(options.requests)
    setup = Setup(PRESETS[options.preset], options.replicas, seed=options.seed)
    names = options.only or list(FRONTS)
    best = best_cached_share(workload)
    print(f"{len(workload.arrivals)} requests, {options.replicas} x {options.preset}, best possible cached share {best:.1%}\n")
    if options.rate:
        run_once(workload.at_rate(options.rate), setup, names)
    else:
        search(workload, setup, names, options.guess or options.replicas)
    print(f"\n{time.monotonic() - begun_s:.0f} s")


if __name__ == "__main__":
    main()

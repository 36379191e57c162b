"""Issue 4's fairness figure in the simulator: one SmolLM2 replica offered twice what it can do, for three minutes.

    python -m bench.flood [--seconds 180] [--overload 2.0] [--slow 1.8]

C (interactive, short prompts) and B (standard, steady) want less than their share; A1 and A2 (batch, weights 1:2) flood.
Beside it the best first-come-first-served runs: the most sequences at once whose inter-token p50 is no worse than ours, that
of C, and that of all tokens (batch decodes with more at once when nobody urgent runs).
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from inference.policy.decisions import TenantTerms, Tier, TierTargets
from inference.sim.engine_profile import SMOLLM2_135M_CPU, EngineProfile
from inference.sim.fronts import FrontContext, LeastLoaded
from inference.sim.generators import TenantLoad, poisson
from inference.sim.ours import BrainFront
from inference.sim.results import Summary, summarise
from inference.sim.simulation import Setup, simulate
from inference.sim.workload import Workload, merge

WEIGHTS = {"A1": 1.0, "A2": 2.0}
TARGETS = {
    Tier.INTERACTIVE: TierTargets(ttft_s=0.5, inter_token_s=0.05),
    Tier.STANDARD: TierTargets(ttft_s=2.0, inter_token_s=0.05),
    Tier.BATCH: TierTargets(ttft_s=30.0, inter_token_s=0.1),
}
CAPACITY_TOKENS_PER_S = 200.0
CALM: Sequence[TenantLoad] = (
    TenantLoad("C", 0.25, prompt_tokens=42, output_tokens=64, tier=Tier.INTERACTIVE),
    TenantLoad("B", 0.35, prompt_tokens=64, output_tokens=96, tier=Tier.STANDARD),
)


def flood(seconds: float, overload: float, seed: int) -> Workload:
    rng = Random(seed)
    calm_tokens_per_s = sum(load.requests_per_s * load.output_tokens for load in CALM)
    each_per_s = (overload * CAPACITY_TOKENS_PER_S - calm_tokens_per_s) / 128 / len(WEIGHTS)
    floods = [TenantLoad(tenant, each_per_s, 64, 128, Tier.BATCH, can_park=True) for tenant in WEIGHTS]
    return merge(*(poisson(load, seconds=seconds, rng=rng, content_block_tokens=64) for load in (*CALM, *floods)))


def brain(context: FrontContext) -> BrainFront:
    return BrainFront(context, targets=TARGETS, terms=[TenantTerms(tenant, weight) for tenant, weight in WEIGHTS.items()])


def slower(profile: EngineProfile, times: float) -> EngineProfile:
    names = ("step_s", "prefill_token_s", "decode_sequence_s", "crowd_sequence_s", "kv_token_s")
    return replace(profile, **{name: getattr(profile, name) * times for name in names})


def best_fifo(workload: Workload, setup: Setup, inter_token_s: float) -> tuple[int, Summary]:
    best = None
    for sequences in range(1, setup.profile.max_sequences + 1):
        profile = replace(setup.profile, max_sequences=sequences)
        summary = summarise(simulate(workload, LeastLoaded, replace(setup, profile=profile)), WEIGHTS)
        if best is None or summary.all.inter_token_s.p50 <= inter_token_s:
            best = sequences, summary
    assert best is not None
    return best


def show(name: str, summary: Summary) -> None:
    print(f"\n{name}: {summary.tokens_per_s:.0f} tokens/s, Jain of A1 and A2 {summary.jain:.3f}, {summary.parks} parked")
    for tenant, figures in summary.by_tenant.items():
        ttft, gap = figures.ttft_s, figures.inter_token_s
        print(
            f"  {tenant}: {figures.requests - figures.refused} of {figures.requests} served, "
            f"TTFT p50/p99 {ttft.p50:.2f} / {ttft.p99:.2f} s, gap p50/p90 {gap.p50 * 1e3:.0f} / {gap.p90 * 1e3:.0f} ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--overload", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--slow", type=float, default=1.0, help="how many times as long each step of the engine takes")
    options = parser.parse_args()
    workload = flood(options.seconds, options.overload / options.slow, options.seed)
    setup = Setup(slower(SMOLLM2_135M_CPU, options.slow), replicas=1)
    ours = summarise(simulate(workload, brain, setup), WEIGHTS)
    show("brain", ours)
    for whose, figures in (("C", ours.by_tenant["C"]), ("all", ours.all)):
        sequences, fifo = best_fifo(workload, setup, figures.inter_token_s.p50)
        show(f"first come, first served, {sequences} at once, as good for {whose}", fifo)
        print(f"\nthroughput {ours.tokens_per_s / fifo.tokens_per_s:.2f} x first come, first served")


if __name__ == "__main__":
    main()

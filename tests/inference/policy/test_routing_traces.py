"""Routing in front of simulated engines: load stays even, caches are used, and more is sustained than without looking at them.

X15 and B108 run on the first part of Mooncake's conversation trace where TRACE_DIR has it, else on one of the same shape:
every request begins with the same block of 512 tokens, two in five go on a conversation, prompts of 12,000 tokens.
"""

import os
from pathlib import Path
from random import Random

import pytest

from inference.sim.engine_profile import LLAMA_8B_H100, LLAMA_70B_8XH100
from inference.sim.fronts import LeastLoaded, MakeFront, PrefixOnly
from inference.sim.generators import shared_prefixes
from inference.sim.ours import RouterFront
from inference.sim.results import Summary, summarise
from inference.sim.simulation import Setup, simulate
from inference.sim.traces import MOONCAKE_BLOCK_TOKENS, read_mooncake
from inference.sim.workload import Arrival, Workload, best_cached_share


def conversations(requests: int, rng: Random) -> Workload:
    """One a second."""
    common = rng.getrandbits(60)
    open_: list[tuple[int, ...]] = []
    arrivals = []
    for number in range(requests):
        before = open_.pop(rng.randrange(len(open_))) if len(open_) > 20 and rng.random() < 0.4 else (common,)
        size = rng.randrange(2, 10) if len(before) > 1 else min(200, 3 + int(rng.expovariate(1 / 18)))
        content = before + tuple(rng.getrandbits(60) for _ in range(size))
        open_.append(content)
        prompt_tokens = len(content) * MOONCAKE_BLOCK_TOKENS - rng.randrange(MOONCAKE_BLOCK_TOKENS)
        arrivals.append(Arrival(float(number), prompt_tokens, rng.randrange(50, 640), content))
    return Workload(tuple(arrivals), MOONCAKE_BLOCK_TOKENS)


@pytest.fixture(scope="module")
def trace() -> Workload:
    folder = os.environ.get("HEADWAY_TRACE_DIR") or os.environ.get("TRACE_DIR")
    path = Path(folder) / "mooncake_conversation.jsonl" if folder else None
    if path is None or not path.exists():
        return conversations(1500, Random(0))
    with path.open() as lines:
        return read_mooncake(lines).spread(Random(0)).first(1500)


def run(workload: Workload, front: MakeFront, setup: Setup) -> Summary:
    return summarise(simulate(workload, front, setup))


def test_x15_b108_a_common_first_block_leaves_the_load_even_and_the_caches_used(trace: Workload) -> None:
    setup = Setup(LLAMA_70B_8XH100, replicas=8)
    assert len({arrival.content[0] for arrival in trace.arrivals}) == 1
    ours, collapsed = (run(trace.at_rate(8.0), front, setup) for front in (RouterFront, PrefixOnly))
    assert ours.load_max_to_mean <= 1.3
    assert ours.work_max_to_mean <= 1.3
    assert ours.all.cached_share >= 0.8 * best_cached_share(trace)
    assert collapsed.load_max_to_mean > 3.0, "what happens when only the cache counts"


def test_more_is_sustained_than_without_looking_at_caches(trace: Workload) -> None:
    setup = Setup(LLAMA_70B_8XH100, replicas=8)
    ours, blind = (run(trace.at_rate(11.0), front, setup).all for front in (RouterFront, LeastLoaded))
    assert ours.ttft_s.p50 < 0.5 < blind.ttft_s.p50
    assert ours.inter_token_s.p50 < 0.05
    assert ours.bad_share < 0.01


@pytest.mark.parametrize("requests_per_s", [5.0, 60.0])
def test_thirty_prefixes_on_four_replicas_are_spread_and_found_again(requests_per_s: float) -> None:
    workload = shared_prefixes(
        tenants=30,
        prefix_tokens=1200,
        suffix_tokens=100,
        output_tokens=100,
        requests_per_s=requests_per_s,
        seconds=1200.0 / requests_per_s,
        rng=Random(3),
        content_block_tokens=16,
    )
    summary = run(workload, RouterFront, Setup(LLAMA_8B_H100, replicas=4))
    assert summary.all.cached_share >= 0.9 * best_cached_share(workload)
    assert summary.load_max_to_mean <= 1.3
    assert summary.work_max_to_mean <= 1.3

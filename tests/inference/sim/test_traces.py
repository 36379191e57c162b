from pathlib import Path
from random import Random

import pytest

from inference.policy.decisions import Tier
from inference.sim.generators import TenantLoad, bursts, poisson
from inference.sim.traces import BadTrace, read_azure, read_mooncake, read_trace
from inference.sim.workload import Arrival, Workload, best_cached_share, merge
from tests.inference.sim.casts import shared

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:03.9799600,110,27
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 600, "output_length": 9, "hash_ids": [0, 3]}
"""


def test_azures_lines_are_read() -> None:
    workload = read_azure(AZURE.splitlines())
    assert [(round(one.at_s, 3), one.prompt_tokens, one.output_tokens) for one in workload.arrivals] == [
        (0.0, 4808, 10),
        (0.052, 3180, 8),
        (60.0, 110, 27),
    ]


def test_mooncakes_lines_are_read() -> None:
    workload = read_mooncake(MOONCAKE.splitlines())
    assert workload.content_block_tokens == 512
    first, second, third = workload.arrivals
    assert (second.at_s, second.prompt_tokens, second.output_tokens, second.content) == (0.0, 1100, 7, (0, 1, 2))
    assert (first.at_s, third.at_s) == (0.0, 3.0)


def test_the_ending_of_its_name_says_what_a_trace_is(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(AZURE)
    (tmp_path / "b.jsonl").write_text(MOONCAKE)
    assert len(read_trace(tmp_path / "a.csv").arrivals) == len(read_trace(tmp_path / "b.jsonl").arrivals) == 3


@pytest.mark.parametrize(
    "line", ["{", "{}", "[1]", '{"timestamp": "x", "input_length": 1, "output_length": 1, "hash_ids": []}']
)
def test_a_bad_line_is_named(line: str) -> None:
    with pytest.raises(BadTrace, match="line 2"):
        read_mooncake([MOONCAKE.splitlines()[0], line])


def test_a_bad_row_is_named() -> None:
    with pytest.raises(BadTrace, match="line 3"):
        read_azure([*AZURE.splitlines()[:2], "yesterday,1,2"])


def test_the_best_possible_share_counts_what_came_before() -> None:
    # The first fills one block of 512 whole, which the other two find; what it began of the second block is of no use.
    assert best_cached_share(read_mooncake(MOONCAKE.splitlines())) == (512 + 512) / 2700


def test_another_rate_keeps_order_and_proportions() -> None:
    workload = Workload((Arrival(0.0, 1, 1), Arrival(1.0, 2, 1), Arrival(4.0, 3, 1)), 64)
    faster = workload.at_rate(5.0)
    assert faster.rate_per_s == pytest.approx(5.0)
    assert [one.prompt_tokens for one in faster.arrivals] == [1, 2, 3]
    assert faster.arrivals[1].at_s / faster.arrivals[2].at_s == pytest.approx(0.25)


def test_bunches_are_spread_up_to_the_next_and_keep_their_order() -> None:
    workload = read_mooncake(MOONCAKE.splitlines())
    spread = workload.spread(Random(1))
    times = [one.at_s for one in spread.arrivals]
    assert times == sorted(times) and 0 < times[0] < times[1] < 3.0 == times[2]
    assert [one.prompt_tokens for one in spread.arrivals] == [1000, 1100, 600]
    assert spread == workload.spread(Random(1)) != workload.spread(Random(2))


def test_shared_prefixes_share_what_they_say() -> None:
    workload = shared(tenants=3)
    by_tenant = {one.tenant: one.content[:8] for one in workload.arrivals}
    assert len(by_tenant) == 3 and len(set(by_tenant.values())) == 3
    assert len({content[0] for content in by_tenant.values()}) == 1
    assert all(one.content[:8] == by_tenant[one.tenant] for one in workload.arrivals)
    assert workload == shared(tenants=3)


def test_generated_streams_have_their_rate_and_merge_in_order() -> None:
    calm = poisson(TenantLoad("acme", 10, 100, 10), seconds=100, rng=Random(1), content_block_tokens=64)
    load = TenantLoad("globex", 0, 100, 10, Tier.BATCH)
    burst = bursts(load, every_s=10, burst=50, count=3, rng=Random(1), content_block_tokens=64)
    both = merge(calm, burst)
    times = [one.at_s for one in both.arrivals]
    assert 900 < len(calm.arrivals) < 1100 and len(burst.arrivals) == 150
    assert times == sorted(times) and len(times) == len(calm.arrivals) + 150
    assert max(one.at_s for one in burst.arrivals) < 20.2

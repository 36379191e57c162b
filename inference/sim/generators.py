"""Made-up workloads with the shapes that matter: shared prefixes, bursts, tiers. The same seed gives the same requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from inference.policy.decisions import Tier
from inference.sim.workload import Arrival, Workload


@dataclass(frozen=True, slots=True)
class TenantLoad:
    """One tenant's steady stream. Lengths are means; each request's is drawn within +-50 %."""

    tenant: str
    requests_per_s: float
    prompt_tokens: int
    output_tokens: int
    tier: Tier = Tier.STANDARD
    can_park: bool = False


def poisson(load: TenantLoad, *, seconds: float, rng: Random, content_block_tokens: int, start_s: float = 0.0) -> Workload:
    arrivals: list[Arrival] = []
    at_s = start_s
    while True:
        at_s += rng.expovariate(load.requests_per_s)
        if at_s >= start_s + seconds:
            return Workload(tuple(arrivals), content_block_tokens)
        prompt_tokens, output_tokens = _around(load.prompt_tokens, rng), _around(load.output_tokens, rng)
        content = tuple(rng.getrandbits(60) for _ in range(prompt_tokens // content_block_tokens))
        arrival = Arrival(at_s, prompt_tokens, output_tokens, content, load.tenant, load.tier, can_park=load.can_park)
        arrivals.append(arrival)


def shared_prefixes(
    *,
    tenants: int,
    prefix_tokens: int,
    suffix_tokens: int,
    output_tokens: int,
    requests_per_s: float,
    seconds: float,
    rng: Random,
    content_block_tokens: int = 64,
    tiers: Sequence[Tier] = (Tier.STANDARD,),
    common_blocks: int = 1,
) -> Workload:
    """Tenants whose prompts all begin with their own prefix, of which all share the first `common_blocks`."""
    prefix_blocks = prefix_tokens // content_block_tokens
    common = [rng.getrandbits(60) for _ in range(min(common_blocks, prefix_blocks))]
    prefixes = [tuple(common) + tuple(rng.getrandbits(60) for _ in range(prefix_blocks - len(common))) for _ in range(tenants)]
    arrivals: list[Arrival] = []
    at_s = rng.expovariate(requests_per_s)
    while at_s < seconds:
        tenant = rng.randrange(tenants)
        prompt_tokens = prefix_tokens + _around(suffix_tokens, rng)
        own = prompt_tokens // content_block_tokens - prefix_blocks
        content = prefixes[tenant] + tuple(rng.getrandbits(60) for _ in range(own))
        tier = tiers[tenant % len(tiers)]
        arrivals.append(Arrival(at_s, prompt_tokens, _around(output_tokens, rng), content, f"tenant-{tenant}", tier))
        at_s += rng.expovariate(requests_per_s)
    return Workload(tuple(arrivals), content_block_tokens)


def bursts(load: TenantLoad, *, every_s: float, burst: int, count: int, rng: Random, content_block_tokens: int) -> Workload:
    """`burst` requests within a tenth of a second, `count` times."""
    arrivals: list[Arrival] = []
    for number in range(count):
        offsets = sorted(rng.random() / 10 for _ in range(burst))
        for offset_s in offsets:
            prompt_tokens = _around(load.prompt_tokens, rng)
            content = tuple(rng.getrandbits(60) for _ in range(prompt_tokens // content_block_tokens))
            at_s = number * every_s + offset_s
            arrivals.append(Arrival(at_s, prompt_tokens, _around(load.output_tokens, rng), content, load.tenant, load.tier))
    return Workload(tuple(arrivals), content_block_tokens)


def _around(mean: int, rng: Random) -> int:
    return max(1, round(mean * rng.uniform(0.5, 1.5)))


def like_code(*, requests_per_s: float, seconds: float, rng: Random, content_block_tokens: int = 512) -> Workload:
    """Of the shape of Azure's code trace at ten times its speed: silence, and bursts of a few seconds at many times the mean.

    Prompts of 1,500 tokens in the median and of up to 7,400; answers of 13 in the median and of up to 400.
    """
    mean_gap_s, mean_burst_s = 4.0, 2.5
    within_s = requests_per_s * (mean_gap_s + mean_burst_s) / mean_burst_s
    arrivals: list[Arrival] = []
    at_s = rng.expovariate(1 / mean_gap_s)
    while at_s < seconds:
        end_s = min(seconds, at_s + rng.expovariate(1 / mean_burst_s))
        rate = within_s * rng.choice((0.4, 0.6, 1.0, 2.0))
        while (at_s := at_s + rng.expovariate(rate)) < end_s:
            prompt_tokens = min(7400, max(16, int(rng.lognormvariate(7.3, 0.9))))
            output_tokens = min(400, max(1, int(rng.lognormvariate(2.6, 1.2))))
            arrivals.append(Arrival(at_s, prompt_tokens, output_tokens, tenant="bursts"))
        at_s = end_s + rng.expovariate(1 / mean_gap_s)
    return Workload(tuple(arrivals), content_block_tokens)

"""The brain alone, one core: rounds a second, p99 of one call, bytes a waiting request.

    python -m bench.dispatcher [--seconds 10]

100 tenants with every kind of limit, three tiers, 10,000 waiting, every slot taken. One round = a submit (which waits), and
the end of one that ran (which settles it and grants a waiting one). 50 replicas and 1,000 replicas of 32 slots.
"""

import argparse
import gc
import random
import time
import tracemalloc
from collections import deque
from dataclasses import dataclass

from inference.policy.brain import Brain
from inference.policy.brain_tunables import BrainTunables
from inference.policy.decisions import (
    Ask,
    Decision,
    Ending,
    Granted,
    Limit,
    LimitKind,
    Queued,
    ReplicaSpec,
    Scope,
    ScopeKind,
    TenantTerms,
    Tier,
    TierTargets,
    TokenPrice,
    Usage,
)
from inference.policy.routing import Router, RoutingTunables

NUM_TENANTS = 100
NUM_WAITING = 10_000
SLOTS = 32
MODEL = "m"
PRICE = TokenPrice(100_000, 10_000, 400_000)
TARGETS = {
    Tier.INTERACTIVE: TierTargets(0.5, 0.05),
    Tier.STANDARD: TierTargets(2.0, 0.1),
    Tier.BATCH: TierTargets(60.0, 0.5),
}


@dataclass(frozen=True)
class Figures:
    num_replicas: int
    rounds_per_s: float
    rounds_per_cpu_s: float
    """The same by the process's own CPU time, whatever else the machine does."""
    p50_us: float
    p99_us: float
    worst_us: float
    bytes_per_waiting: float


class Load:
    """Asks of one kind of cell, by a fixed seed; conversations share prefixes."""

    def __init__(self) -> None:
        self._random = random.Random(4)
        self._count = 0
        self._prefixes = [tuple(self._random.getrandbits(62) for _ in range(12)) for _ in range(2_000)]

    def ask(self) -> Ask:
        self._count += 1
        tenant = self._random.randrange(NUM_TENANTS)
        return Ask(
            id=f"req-{self._count:012d}",
            model=MODEL,
            tenant=f"tenant-{tenant}",
            key=f"key-{tenant}-{self._count % 3}",
            tier=Tier(self._random.choices((0, 1, 2), (3, 5, 2))[0]),
            prompt_tokens=self._random.choice((60, 400, 1_500, 3_000)),
            max_tokens=512,
            price=PRICE,
            blocks=(*self._random.choice(self._prefixes), *(self._random.getrandbits(62) for _ in range(4))),
            can_park=True,
        )


def terms(tenant: str) -> TenantTerms:
    scope = Scope(ScopeKind.TENANT, tenant)
    kinds = (LimitKind.REQUESTS, LimitKind.INPUT_TOKENS, LimitKind.OUTPUT_TOKENS, LimitKind.CONCURRENCY, LimitKind.BUDGET)
    return TenantTerms(tenant, weight=1.0 + len(tenant) % 3, limits=tuple(Limit(scope, kind, 10**12) for kind in kinds))


def make_brain(num_replicas: int) -> Brain:
    brain = Brain(BrainTunables(queue_timeout_s=1e6), lambda model: Router(RoutingTunables()))
    for tenant in range(NUM_TENANTS):
        brain.set_terms(terms(f"tenant-{tenant}"), 0.0)
    brain.set_pool(MODEL, max_queued=10 * NUM_WAITING, targets=TARGETS, now_s=0.0)
    brain.set_replicas(MODEL, [ReplicaSpec(f"r{n}", SLOTS, kv_tokens=400_000) for n in range(num_replicas)], 0.0)
    return brain


def measure(num_replicas: int, seconds: float) -> Figures:
    brain, load, running = make_brain(num_replicas), Load(), deque[str]()
    asks = {}

    def take(decisions: list[Decision]) -> None:
        running.extend(decision.id for decision in decisions if type(decision) is Granted)

    def submit(now_s: float) -> None:
        ask = load.ask()
        asks[ask.id] = ask
        take(brain.submit(ask, now_s))

    now_s = 0.0
    while len(running) < num_replicas * SLOTS:
        submit(now_s)
    gc.collect()
    tracemalloc.start()
    for _ in range(NUM_WAITING):
        submit(now_s)
    gc.collect()
    bytes_per_waiting = tracemalloc.get_traced_memory()[0] / NUM_WAITING
    tracemalloc.stop()
    assert brain.snapshot(now_s).queued == NUM_WAITING

    gc.collect()
    gc.freeze()
    calls_s: list[float] = []
    busy_s, cpu_s, count, stop_s = 0.0, 0.0, 0, time.perf_counter() + seconds
    while time.perf_counter() < stop_s:
        now_s += 1e-4
        ask = load.ask()
        asks[ask.id] = ask
        cpu_s -= time.process_time()
        begun_s = time.perf_counter()
        decisions = brain.submit(ask, now_s)
        submitted_s = time.perf_counter()
        cpu_s += time.process_time()
        assert isinstance(decisions[-1], Queued)
        take(decisions)
        ended = asks.pop(running.popleft())
        usage = Usage(ended.prompt_tokens, min(ended.prompt_tokens, 128), 200, 50)
        cpu_s -= time.process_time()
        ending_s = time.perf_counter()
        decisions = brain.end(ended.id, Ending.WELL, usage, now_s)
        ended_s = time.perf_counter()
        cpu_s += time.process_time()
        take(decisions)
        calls_s += (submitted_s - begun_s, ended_s - ending_s)
        busy_s += submitted_s - begun_s + ended_s - ending_s
        count += 1
    gc.unfreeze()
    calls_s.sort()
    return Figures(
        num_replicas=num_replicas,
        rounds_per_s=count / busy_s,
        rounds_per_cpu_s=count / cpu_s,
        p50_us=calls_s[len(calls_s) // 2] * 1e6,
        p99_us=calls_s[len(calls_s) * 99 // 100] * 1e6,
        worst_us=calls_s[-1] * 1e6,
        bytes_per_waiting=bytes_per_waiting,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    seconds = parser.parse_args().seconds
    print("| replicas | rounds a second | by CPU time | p50 of a call | p99 | worst | bytes a waiting request |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for num_replicas in (50, 1_000):
        got = measure(num_replicas, seconds)
        print(
            f"| {got.num_replicas} | {got.rounds_per_s:,.0f} | {got.rounds_per_cpu_s:,.0f} "
            f"| {got.p50_us:.0f} us | {got.p99_us:.0f} us | {got.worst_us / 1000:.1f} ms | {got.bytes_per_waiting:,.0f} |"
        )


if __name__ == "__main__":
    main()

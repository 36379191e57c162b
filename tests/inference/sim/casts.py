"""A replica by itself, and small workloads."""

from random import Random

from inference.sim.engine_profile import EngineProfile
from inference.sim.event_loop import EventLoop
from inference.sim.generators import TenantLoad, poisson, shared_prefixes
from inference.sim.replica import Replica
from inference.sim.sequence import Sequence
from inference.sim.workload import Arrival, Workload

QUICK = EngineProfile(
    name="quick",
    kv_tokens=4096,
    step_s=0.01,
    prefill_token_s=1e-4,
    decode_sequence_s=1e-3,
    kv_token_s=1e-6,
    max_sequences=16,
    step_budget_tokens=256,
)


class Listener:
    """Notes when things happen."""

    def __init__(self) -> None:
        self.first_s: dict[str, float] = {}
        self.end_s: dict[str, float] = {}
        self.loop = EventLoop()

    def on_first_token(self, replica: Replica, sequence: Sequence) -> None:
        assert sequence.id not in self.first_s, "a second first token"
        self.first_s[sequence.id] = self.loop.now_s

    def on_end(self, replica: Replica, sequence: Sequence) -> None:
        assert sequence.id not in self.end_s, "ended twice"
        self.end_s[sequence.id] = self.loop.now_s


def lone_replica(profile: EngineProfile = QUICK, content_block_tokens: int = 64) -> tuple[Replica, Listener]:
    listener = Listener()
    replica = Replica("r", profile=profile, content_block_tokens=content_block_tokens, loop=listener.loop, listener=listener)
    return replica, listener


def sequence(
    name: str, prompt_tokens: int, output_tokens: int, *, priority: int = 0, content: tuple[int, ...] = ()
) -> Sequence:
    return Sequence(name, (1, "t"), prompt_tokens, output_tokens, content, priority)


def steady(*, requests_per_s: float = 20.0, seconds: float = 20.0, seed: int = 3) -> Workload:
    load = TenantLoad("acme", requests_per_s, prompt_tokens=200, output_tokens=40)
    return poisson(load, seconds=seconds, rng=Random(seed), content_block_tokens=64)


def shared(*, requests_per_s: float = 20.0, seconds: float = 20.0, tenants: int = 8, seed: int = 3) -> Workload:
    return shared_prefixes(
        tenants=tenants,
        prefix_tokens=512,
        suffix_tokens=64,
        output_tokens=20,
        requests_per_s=requests_per_s,
        seconds=seconds,
        rng=Random(seed),
    )


def at_once(*requests: tuple[int, int]) -> Workload:
    """(prompt, output) pairs that all arrive at 0."""
    return Workload(tuple(Arrival(0.0, prompt, output) for prompt, output in requests), 64)

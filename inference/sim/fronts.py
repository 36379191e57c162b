"""What stands before the replicas: the interface the simulator drives, and the baselines that ours is measured against.

Round robin, least loaded (requests in flight) and power of two choices are blind to caches. Prefix-only sends a prompt to the
replica that was sent the longest beginning of it, whatever its load (what B108 warns of). All of them grant at once and leave
waiting to the engines.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from inference.policy.decisions import Ask, Decision, Ending, Granted, RateView, Reason, ReplicaSpec, StateFrame, Usage


class Front(Protocol):
    """What the dispatcher is to gateways; the same words as `inference.policy.brain.Brain`."""

    wants_progress: bool
    """Call `progress` for every decoding request four times a second, and `frame` twice a second."""

    def submit(self, ask: Ask, now_s: float) -> Sequence[Decision]: ...
    def parked(self, request_id: str, ask: Ask, now_s: float) -> Sequence[Decision]: ...
    def first_token(self, request_id: str, now_s: float) -> None: ...
    def progress(self, request_id: str, completion_tokens: int, now_s: float) -> None: ...
    def end(self, request_id: str, ending: Ending, usage: Usage, now_s: float) -> Sequence[Decision]: ...
    def frame(self, replica: str, frame: StateFrame, now_s: float) -> Sequence[Decision]: ...
    def expire(self, now_s: float) -> Sequence[Decision]: ...
    def next_event_s(self, now_s: float) -> float | None: ...


@dataclass(frozen=True, slots=True)
class FrontContext:
    """What a front is made from."""

    specs: tuple[ReplicaSpec, ...]
    content_block_tokens: int
    rng: Random


MakeFront = Callable[[FrontContext], Front]


def granted(ask: Ask, replica: str, reason: Reason) -> Granted:
    """A grant at once, by a front that predicts nothing."""
    return Granted(
        id=ask.id,
        replica=replica,
        reason=reason,
        tier=ask.tier,
        max_tokens=ask.max_tokens,
        waited_s=0.0,
        predicted_ttft_s=0.0,
        predicted_cached_tokens=0,
        engine_priority=0,
        rates=RateView(),
    )


class Baseline(ABC):
    """Grants at once; subclasses say where."""

    wants_progress = False

    def __init__(self, context: FrontContext) -> None:
        self.replicas = [spec.id for spec in context.specs]
        self.rng = context.rng
        self.in_flight = dict.fromkeys(self.replicas, 0)
        self._replica_of: dict[str, str] = {}

    @abstractmethod
    def choose(self, ask: Ask) -> str: ...

    def least_loaded(self, among: Sequence[str]) -> str:
        """Equals in random order, so that none of them is always the first."""
        fewest = min(self.in_flight[replica] for replica in among)
        return self.rng.choice([replica for replica in among if self.in_flight[replica] == fewest])

    def submit(self, ask: Ask, now_s: float) -> Sequence[Decision]:
        replica = self.choose(ask)
        self.in_flight[replica] += 1
        self._replica_of[ask.id] = replica
        return [granted(ask, replica, Reason.FASTEST)]

    def parked(self, request_id: str, ask: Ask, now_s: float) -> Sequence[Decision]:
        raise AssertionError("a baseline parks nothing")

    def first_token(self, request_id: str, now_s: float) -> None:
        return None

    def progress(self, request_id: str, completion_tokens: int, now_s: float) -> None:
        return None

    def end(self, request_id: str, ending: Ending, usage: Usage, now_s: float) -> Sequence[Decision]:
        self.in_flight[self._replica_of.pop(request_id)] -= 1
        return []

    def frame(self, replica: str, frame: StateFrame, now_s: float) -> Sequence[Decision]:
        return []

    def expire(self, now_s: float) -> Sequence[Decision]:
        return []

    def next_event_s(self, now_s: float) -> float | None:
        return None


class RoundRobin(Baseline):
    _turn = -1

    def choose(self, ask: Ask) -> str:
        self._turn += 1
        return self.replicas[self._turn % len(self.replicas)]


class LeastLoaded(Baseline):
    def choose(self, ask: Ask) -> str:
        return self.least_loaded(self.replicas)


class PowerOfTwo(Baseline):
    """Mitzenmacher 2001: the less loaded of two at random."""

    def choose(self, ask: Ask) -> str:
        return self.least_loaded(self.rng.sample(self.replicas, min(2, len(self.replicas))))


class PrefixOnly(Baseline):
    """The longest beginning known, then the least loaded. What a replica holds is guessed: LRU of what it was sent."""

    def __init__(self, context: FrontContext) -> None:
        super().__init__(context)
        self._held: dict[str, OrderedDict[int, None]] = {replica: OrderedDict() for replica in self.replicas}
        self._capacity = {spec.id: max(1, spec.kv_tokens // context.content_block_tokens) for spec in context.specs}

    def matches(self, ask: Ask) -> dict[str, int]:
        """Content blocks of the prompt's beginning that each replica was sent."""
        return {replica: _leading(ask.blocks, held) for replica, held in self._held.items()}

    def choose(self, ask: Ask) -> str:
        matches = self.matches(ask)
        longest = max(matches.values())
        replica = self.least_loaded([replica for replica, match in matches.items() if match == longest])
        self.remember(replica, ask.blocks)
        return replica

    def remember(self, replica: str, blocks: Sequence[int]) -> None:
        held = self._held[replica]
        for block in reversed(blocks):  # the beginning is the last to be forgotten
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._capacity[replica]:
            held.popitem(last=False)


class PrefixBalanced(PrefixOnly):
    """Like SGLang's cache-aware router: the longest match while loads are close and it covers half the prompt, else the least
    loaded. Close: max - min <= 64 requests, or max <= 1.5 min (its defaults). Not blind to caches; a rival, for comparison."""

    def choose(self, ask: Ask) -> str:
        matches = self.matches(ask)
        longest, most, fewest = max(matches.values()), max(self.in_flight.values()), min(self.in_flight.values())
        candidates = self.replicas
        if (most - fewest <= 64 or most <= 1.5 * fewest) and longest > len(ask.blocks) / 2:
            candidates = [replica for replica, match in matches.items() if match == longest]
        replica = self.least_loaded(candidates)
        self.remember(replica, ask.blocks)
        return replica


def _leading(blocks: Sequence[int], held: OrderedDict[int, None]) -> int:
    for index, block in enumerate(blocks):
        if block not in held:
            return index
    return len(blocks)


CACHE_BLIND: dict[str, MakeFront] = {"round robin": RoundRobin, "least loaded": LeastLoaded, "power of two": PowerOfTwo}
BASELINES: dict[str, MakeFront] = {**CACHE_BLIND, "prefix only": PrefixOnly, "prefix, balanced": PrefixBalanced}

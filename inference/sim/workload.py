"""What arrives: requests in order of arrival, and ways to change their rate."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from inference.policy.decisions import Tier


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload. The policies never see `output_tokens`, only `max_tokens`."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    content: tuple[int, ...] = ()
    """Hashes of the prompt's content blocks, each chained over all before it."""
    tenant: str = "tenant"
    tier: Tier = Tier.STANDARD
    max_tokens: int = 2048
    can_park: bool = False
    deadline_s: float | None = None
    """How long after its arrival an answer must have begun."""


@dataclass(frozen=True, slots=True)
class Workload:
    arrivals: tuple[Arrival, ...]
    content_block_tokens: int
    """Tokens of a content block; a multiple of the engine's KV block."""

    @property
    def span_s(self) -> float:
        return self.arrivals[-1].at_s if self.arrivals else 0.0

    @property
    def rate_per_s(self) -> float:
        return (len(self.arrivals) - 1) / self.span_s if self.span_s else 0.0

    def at_rate(self, requests_per_s: float) -> "Workload":
        """The same requests in the same order with the same relative gaps, faster or slower."""
        factor = self.rate_per_s / requests_per_s
        return replace(self, arrivals=tuple(replace(arrival, at_s=arrival.at_s * factor) for arrival in self.arrivals))

    def laps(self, count: int) -> "Workload":
        """The same again and again, without a pause."""
        pause_s = 1.0 / self.rate_per_s if self.rate_per_s else 0.0
        lap_s = self.span_s + pause_s
        return replace(
            self,
            arrivals=tuple(replace(one, at_s=one.at_s + lap * lap_s) for lap in range(count) for one in self.arrivals),
        )

    def first(self, count: int) -> "Workload":
        return replace(self, arrivals=self.arrivals[:count])

    def spread(self, rng: Random) -> "Workload":
        """Requests of one instant at random times before the next instant; order stays. For traces with coarse clocks."""
        spread: list[Arrival] = []
        bunches = list(_bunches(self.arrivals))
        for index, bunch in enumerate(bunches):
            start_s = bunch[0].at_s
            length_s = bunches[index + 1][0].at_s - start_s if index + 1 < len(bunches) else 0.0
            offsets = sorted(rng.random() * length_s for _ in bunch)
            spread += [replace(one, at_s=start_s + offset_s) for one, offset_s in zip(bunch, offsets, strict=True)]
        return replace(self, arrivals=tuple(spread))


def merge(*workloads: Workload) -> Workload:
    """All of them at once."""
    (content_block_tokens,) = {workload.content_block_tokens for workload in workloads}
    arrivals = sorted((one for workload in workloads for one in workload.arrivals), key=lambda one: one.at_s)
    return Workload(tuple(arrivals), content_block_tokens)


def best_cached_share(workload: Workload) -> float:
    """Of the prompts' tokens, were there one endless cache and each prompt there before the next comes."""
    seen: set[int] = set()
    cached = total = 0
    for arrival in workload.arrivals:
        whole = (arrival.prompt_tokens - 1) // workload.content_block_tokens
        found = next((index for index, block in enumerate(arrival.content[:whole]) if block not in seen), whole)
        cached += min(found, len(arrival.content)) * workload.content_block_tokens
        total += arrival.prompt_tokens
        seen.update(arrival.content[: arrival.prompt_tokens // workload.content_block_tokens])
    return cached / total if total else 0.0


def _bunches(arrivals: Iterable[Arrival]) -> Iterable[Sequence[Arrival]]:
    bunch: list[Arrival] = []
    for arrival in arrivals:
        if bunch and arrival.at_s != bunch[0].at_s:
            yield bunch
            bunch = []
        bunch.append(arrival)
    if bunch:
        yield bunch

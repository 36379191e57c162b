"""Does what an engine has counted agree with what the ledger says of it? Pure: figures in, a finding out.

Each piece of work explains a range of the engine's tokens: from what is known to have been counted up to what may have
been. An engine's total inside the sum of all ranges is explained; outside it, the distance to the nearer end is not.

| cause            | prompt tokens                                | completion tokens                                        |
| ---------------- | -------------------------------------------- | -------------------------------------------------------- |
| answered         | the record's, exactly                        | the record's, exactly                                    |
| an attempt's end | as the engine told; before its first token:  | from what the engine told up to what it was asked for:   |
|                  | from none up to the prompt                   | it goes on for a moment, or while nobody reads           |
| open             | from none up to all (under way when counted) | the same                                                 |
| not on record    | from none up to a context each: requests that ran when the counters were read and have not ended yet    |
| gateway_lost     | from none up to a context each: requests of the pool of which not even the replica is known             |
| agent            | of the node agent's own probes and golden checks, by its own account                                    |
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from billing.models import Verdict

AGENT, ANSWERED, OPEN, NOT_ON_RECORD, LOST = "agent", "answered", "open", "not_on_record", "gateway_lost"


@dataclass(frozen=True)
class Work:
    """What one cause explains: `count` requests or attempts, and their tokens from low to high."""

    count: int = 0
    low_prompt_tokens: int = 0
    high_prompt_tokens: int = 0
    low_completion_tokens: int = 0
    high_completion_tokens: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(mine + its for mine, its in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def exactly(cls, count: int, prompt_tokens: int, completion_tokens: int) -> "Work":
        return cls(count, prompt_tokens, prompt_tokens, completion_tokens, completion_tokens)

    @classmethod
    def at_most(cls, count: int, prompt_tokens: int, completion_tokens: int) -> "Work":
        return cls(count, 0, prompt_tokens, 0, completion_tokens)


@dataclass(frozen=True)
class EngineTotals:
    """`why_not`: why its counters cannot be compared; empty where they can."""

    prompt_tokens: int
    completion_tokens: int
    why_not: str = ""


@dataclass(frozen=True)
class Finding:
    verdict: Verdict
    explained: Work
    unexplained_prompt_tokens: int = 0
    """Above zero: the engine counted more than can be explained; below: less."""
    unexplained_completion_tokens: int = 0


def reconcile(engine: EngineTotals, causes: Mapping[str, Work]) -> Finding:
    explained = total(causes.values())
    if engine.why_not:
        return Finding(Verdict.NOT_COUNTED, explained)
    prompt = _outside(engine.prompt_tokens, explained.low_prompt_tokens, explained.high_prompt_tokens)
    completion = _outside(engine.completion_tokens, explained.low_completion_tokens, explained.high_completion_tokens)
    verdict = Verdict.UNEXPLAINED if prompt or completion else Verdict.EXPLAINED
    return Finding(verdict, explained, prompt, completion)


def total(works: Iterable[Work]) -> Work:
    return sum(works, Work())


def _outside(value: int, low: int, high: int) -> int:
    """Distance to the range: below zero where the value is below it."""
    assert low <= high, "what is known to have been counted may have been counted"
    return value - low if value < low else max(0, value - high)

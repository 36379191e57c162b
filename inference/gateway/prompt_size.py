"""How many tokens a request's prompt has, and how many its answer may have: known before it waits for a replica.

Where every replica of a model has the same tokeniser (managed versions), the count is exact and the rules of OpenAI hold: a
prompt without room for a token, or with less room than the client asks for, is refused with the numbers. Where the client
names no limit, it is the default or the room that is left. Otherwise (external replicas, what a template cannot be counted
for) a bound is taken, and the engine's own refusal stands. No request fails because it could not be counted.
"""

import asyncio
import hashlib
import math
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import msgspec
import structlog

from headway import env
from headway.clock import Clock
from inference.gateway.metrics import Metrics
from inference.gateway.openai_errors import BadRequest
from inference.gateway.requests import GenerationRequest
from inference.gateway.state import Serving
from inference.tokenising.counter import PromptCounter, PromptTooLong, Recall, Uncountable, prompts_of
from inference.tokenising.segments import SegmentMemory

log = structlog.get_logger(__name__)

# Up to here counting (a quarter of a millisecond) costs less than a thread's turn.
INLINE_BYTES = 1024
# A token of most tokenisers is so many bytes of English text; each model's own figure is learnt from its engines' counts.
BYTES_PER_TOKEN = 4.0
LEARN_RATIO = 0.1
# What a template writes around a message, and around a whole chat: for bounds only.
MESSAGE_TOKENS = 16
CHAT_TOKENS = 64


class ContextExceeded(BadRequest):
    """Send a shorter prompt, or ask for fewer tokens; the message has the numbers."""

    code = "context_length_exceeded"


@dataclass(frozen=True)
class TokeniserTunables:
    threads: int = 2
    """How many prompts are counted at once."""
    limit_s: float = 2.0
    """How long a request waits for its count before a bound is taken instead."""
    cache_bytes: int = 4 * 1024 * 1024
    """Memory for counts of pieces of prompts made before (hashes and numbers, about 280 bytes each)."""

    @classmethod
    def from_env(cls) -> "TokeniserTunables":
        default = cls()
        return cls(
            threads=env.whole("HEADWAY_TOKENISER_THREADS", default.threads, at_least=1, at_most=64),
            limit_s=env.seconds("HEADWAY_TOKENISE_LIMIT_S", default.limit_s, at_least=0.01),
            cache_bytes=env.whole("HEADWAY_TOKENISER_CACHE_BYTES", default.cache_bytes, at_least=0),
        )


class Counters(Protocol):
    async def counter(self, digest: str) -> PromptCounter | None: ...


class ServingState(Protocol):
    def serving(self, model: str) -> Serving | None: ...


class Counts(NamedTuple):
    """Tokens of all prompts of a request, and of its longest."""

    total: int
    longest: int


class PromptSizer:
    def __init__(
        self, state: ServingState, counters: Counters, metrics: Metrics, clock: Clock, tunables: TokeniserTunables
    ) -> None:
        self._state, self._counters, self._metrics, self._clock, self._tunables = state, counters, metrics, clock, tunables
        self._memory = SegmentMemory(tunables.cache_bytes)
        self._threads = ThreadPoolExecutor(tunables.threads, thread_name_prefix="tokenise")
        self._tokens_by_bound: dict[str, float] = {}  # by model, of prompts that are not counted

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def fit(self, request: GenerationRequest, *, salt: str) -> GenerationRequest:
        """With its prompt's size, and with a limit that fits the context. Raises ContextExceeded."""
        bound = bound_of(request)
        serving = self._state.serving(request.model)
        if serving is None:
            self._metrics.prompt_counted("no_tokeniser")
            return self._bounded(request, bound)
        started_s = self._clock.monotonic_s()
        try:
            counts, how = await self._count(request, serving, bound, salt)
        except Uncountable as error:
            self._metrics.prompt_counted(error.reason)
            return self._bounded(request, bound)
        except PromptTooLong as error:
            self._metrics.prompt_counted("too_long")
            raise _too_long(request, serving.context_tokens, f"more than {error.at_least_tokens - 1}") from None
        except Exception as error:  # noqa: BLE001  a fault of ours must not fail the request; the error's text may hold its words
            log.error("prompt_not_counted", error=type(error).__name__, at=_place_of(error))
            self._metrics.prompt_counted("error")
            return self._bounded(request, bound)
        self._metrics.prompt_counted(how, self._clock.monotonic_s() - started_s)
        return fitted(request, counts, serving.context_tokens)

    def learn(self, model: str, *, bound: int, prompt_tokens: int) -> None:
        """A prompt that was not counted had so many tokens, as its engine says."""
        if bound > 0 and 0 < prompt_tokens <= bound:
            ratio = self._tokens_by_bound.get(model, 1.0 / BYTES_PER_TOKEN)
            self._tokens_by_bound[model] = ratio + LEARN_RATIO * (prompt_tokens / bound - ratio)

    def _bounded(self, request: GenerationRequest, bound: Counts) -> GenerationRequest:
        if request.api == "completions" and all(isinstance(prompt, list) for prompt in prompts_of(request.fields["prompt"])):
            return replace(request, prompt_tokens_bound=bound.total)  # ids: that is their number
        likely = math.ceil(bound.total * self._tokens_by_bound.get(request.model, 1.0 / BYTES_PER_TOKEN))
        return replace(request, prompt_tokens_bound=bound.total, likely_prompt_tokens=likely)

    async def _count(self, request: GenerationRequest, serving: Serving, bound: Counts, salt: str) -> tuple[Counts, str]:
        """Raises Uncountable, PromptTooLong."""
        counter = await self._counters.counter(serving.tokeniser)
        if counter is None:
            raise Uncountable("not_loaded")
        max_tokens = None if "truncate_prompt_tokens" in request.fields else serving.context_tokens
        # A client's variables may make a template do much for little.
        if bound.total <= INLINE_BYTES and "chat_template_kwargs" not in request.fields:
            return count(counter, request, max_tokens, None), "exact"
        recall = Recall(self._memory, hashlib.blake2b(f"{serving.tokeniser} {salt}".encode(), digest_size=32).digest())
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._tunables.limit_s):
                counts = await loop.run_in_executor(self._threads, count, counter, request, max_tokens, recall)
        except TimeoutError:
            raise Uncountable("timeout") from None
        return counts, "exact" if recall.num_made else "cached"


def _place_of(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}"


def count(counter: PromptCounter, request: GenerationRequest, max_tokens: int | None, recall: Recall | None) -> Counts:
    """Raises Uncountable, PromptTooLong; off the event loop unless the prompt is small."""
    if request.api == "chat":
        tokens = counter.chat(request.fields, max_tokens=max_tokens, memory=recall)
        return Counts(tokens, tokens)
    numbers = counter.prompts(request.fields, max_tokens=max_tokens, memory=recall)
    return Counts(sum(numbers), max(numbers))


def fitted(request: GenerationRequest, counts: Counts, context_tokens: int) -> GenerationRequest:
    """Raises ContextExceeded."""
    total, longest = counts
    kept = request.fields.get("truncate_prompt_tokens")
    if kept is not None:
        longest = min(longest, kept if kept >= 0 else context_tokens - 1)
        total = min(total, longest * len(prompts_of(request.fields["prompt"])) if request.api == "completions" else longest)
    room = context_tokens - longest
    if room < 1:
        raise _too_long(request, context_tokens, str(longest))
    if request.max_tokens <= room:
        return replace(request, prompt_tokens_bound=total)
    if request.names_limit:
        raise _too_much(request, context_tokens, longest)
    fields = {
        name: room if name in ("max_tokens", "max_completion_tokens") else value for name, value in request.fields.items()
    }
    return replace(request, prompt_tokens_bound=total, max_tokens=room, fields=fields)


def _too_long(request: GenerationRequest, context_tokens: int, has: str) -> ContextExceeded:
    what = _param(request)
    return ContextExceeded(
        f"This model's maximum context length is {context_tokens} tokens. However, your {what} resulted in {has} tokens,"
        f" which leaves no room for an answer. Please reduce the length of the {what}.",
        param=what,
    )


def _too_much(request: GenerationRequest, context_tokens: int, prompt_tokens: int) -> ContextExceeded:
    what = _param(request)
    return ContextExceeded(
        f"This model's maximum context length is {context_tokens} tokens. However, you requested"
        f" {prompt_tokens + request.max_tokens} tokens ({prompt_tokens} in the {what}, {request.max_tokens} in the completion)."
        f" Please reduce the length of the {what} or of the completion.",
        param=what,
    )


def _param(request: GenerationRequest) -> str:
    return "messages" if request.api == "chat" else "prompt"


def bound_of(request: GenerationRequest) -> Counts:
    """A bound that costs next to nothing: no tokeniser of bytes makes more tokens than there are bytes of UTF-8."""
    fields = request.fields
    if request.api == "completions":
        sizes = [_size(prompt) for prompt in prompts_of(fields["prompt"])]
        return Counts(sum(sizes), max(sizes))
    total = CHAT_TOKENS + sum(_message_size(message) for message in fields["messages"])
    for name in ("tools", "documents", "chat_template_kwargs"):
        if name in fields:
            total += len(msgspec.json.encode(fields[name]))
    return Counts(total, total)


def _message_size(message: dict[str, Any]) -> int:
    size = MESSAGE_TOKENS
    for name, value in message.items():
        if isinstance(value, str):
            size += _size(value) if name != "role" else 0
        elif value is not None:
            size += len(msgspec.json.encode(value))
    return size


def _size(prompt: str | list[int]) -> int:
    """Tokens at most: bytes and a beginning, or ids."""
    if isinstance(prompt, list):
        return len(prompt)
    return (len(prompt) if prompt.isascii() else len(prompt.encode())) + 1

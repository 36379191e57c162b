"""Which requests may go on at another replica in the middle of their answer, and what that replica is asked (DESIGN 3).

| request                                                             | once text was sent                              |
| ------------------------------------------------------------------- | ----------------------------------------------- |
| greedy, unseeded sampling, repetition_penalty, logit_bias, stops    | goes on, exact                                  |
| seeded sampling                                                     | goes on; not exact: the engine's generator      |
|                                                                     | starts again                                    |
| presence / frequency penalty, n > 1, several prompts, structured    | never: what the engine has counted, compiled or |
| output, tools, reasoning, echo, log-probabilities, bad_words,       | parsed of the output so far is not told again   |
| repetition_detection, a request for token ids                       | by a prompt that ends with it                   |
"""

from dataclasses import dataclass, replace

import msgspec
import structlog

from inference.gateway.answer import AnswerReader
from inference.gateway.chunks import Chunk
from inference.gateway.continuation import Candidate, Continuation, Cut
from inference.gateway.engine_usage import Usage
from inference.gateway.fields import COMPLETIONS
from inference.gateway.requests import GenerationRequest, is_set
from inference.gateway.shapes import Fate
from inference.gateway.splice import Splice
from inference.gateway.state import ReplicaEntry
from inference.gateway.upstream import UpstreamPool
from inference.gateway.upstream_connection import UpstreamError

log = structlog.get_logger(__name__)

# With one of these the engine keeps something of the output that the ids alone do not tell.
_NEVER = frozenset(
    {
        "tools",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "echo",
        "suffix",
        "structured_outputs",
        "thinking_token_budget",
        "reasoning_effort",
        "repetition_detection",
        "bad_words",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "return_prompt_text",
    }
)
# About a prompt that is ids by now, or set anew.
_OF_THE_PROMPT = frozenset(
    {"prompt", "max_tokens", "min_tokens", "truncate_prompt_tokens", "truncation_side", "add_special_tokens", "response_format"}
)
_KEPT = frozenset(field.name for field in COMPLETIONS.fields if field.fate not in (Fate.REFUSED, Fate.IGNORED)) - _OF_THE_PROMPT
# An answer that goes on far from the last mark is looked at in so many places.
MAX_CANDIDATES = 5
DETOKENISE_S = 2.0
MAX_TEXT_BYTES = 1024 * 1024


def can_resume(request: GenerationRequest) -> bool:
    """By the table; whether an engine's answer tells enough is the Continuation's to say."""
    fields = request.fields
    if request.num_choices != 1 or not (request.is_streamed or request.is_foldable):
        return False
    if not _NEVER.isdisjoint(fields) and any(is_set(fields.get(name)) for name in _NEVER):
        return False
    if fields.get("presence_penalty") or fields.get("frequency_penalty"):
        return False
    return "response_format" not in fields or fields["response_format"]["type"] == "text"


def is_exact(request: GenerationRequest) -> bool:
    """Is what it goes on with as likely as if nothing had happened? A seed's generator starts again."""
    return request.fields.get("seed") is None or request.fields.get("temperature") == 0


def stops_of(request: GenerationRequest) -> tuple[str, ...]:
    stop = request.fields.get("stop", [])
    return (stop,) if isinstance(stop, str) else tuple(stop)


def continuation_of(request: GenerationRequest, replica: ReplicaEntry) -> Continuation | None:
    """What to keep of its answer from this replica; None where it could not be used."""
    if replica.kind != "vllm" or not can_resume(request):
        return None
    stops = stops_of(request)
    held_back = 0 if not stops or _includes_stop(request) else max(map(len, stops)) - 1
    return Continuation(held_back=held_back, version=replica.version, tokeniser=replica.tokeniser)


def can_take_over(continuation: Continuation, replica: ReplicaEntry, *, may_change_version: bool = False) -> bool:
    """Other versions would answer otherwise, and may have other tokens: one with the same may, where no other can."""
    if replica.kind != "vllm":
        return False
    if replica.version == continuation.version:
        return True
    return may_change_version and bool(replica.tokeniser) and replica.tokeniser == continuation.tokeniser


@dataclass(frozen=True)
class Resumed:
    """An attempt that goes on from others."""

    request: GenerationRequest
    """What its replica is asked."""
    splice: Splice
    before: Usage
    """Prompt and cached tokens as the first attempt had them, and the output's until the cut."""

    @property
    def is_over(self) -> bool:
        """All the tokens that were asked for are made."""
        return self.request.max_tokens <= 0


def resumed(request: GenerationRequest, continuation: Continuation, cut: Cut, usage: Usage | None) -> Resumed:
    """`usage` until now. What is kept of the answer is cut there."""
    has_figures = usage is not None and not usage.is_counted
    before = Usage(
        prompt_tokens=usage.prompt_tokens if usage and has_figures else len(continuation.prompt_ids),
        cached_tokens=usage.cached_tokens if usage and has_figures else 0,
        completion_tokens=cut.num_tokens,
        is_running=True,
    )
    made = Resumed(
        request=resumed_request(request, continuation, cut), splice=splice_of(request, continuation, cut), before=before
    )
    continuation.go_on(cut)
    return made


def resumed_request(request: GenerationRequest, continuation: Continuation, cut: Cut) -> GenerationRequest:
    """What the next replica is asked: a completion of the ids so far."""
    ids = [*continuation.prompt_ids, *continuation.output_ids[: cut.num_tokens]]
    left = request.max_tokens - cut.num_tokens
    fields = {name: value for name, value in request.fields.items() if name in _KEPT}
    fields |= {"prompt": ids, "max_tokens": left}
    min_left = request.fields.get("min_tokens", 0) - cut.num_tokens
    if min_left > 0:
        fields["min_tokens"] = min_left
    return replace(request, api="completions", max_tokens=left, prompt_tokens_bound=len(ids), fields=fields)


def splice_of(request: GenerationRequest, continuation: Continuation, cut: Cut) -> Splice:
    stops, includes_stop = stops_of(request), _includes_stop(request)
    if request.fields.get("min_tokens", 0) > cut.num_tokens:
        stops = ()  # none counts before as many tokens are made, and by then the cut is behind
    tail = continuation.tail(max(map(len, stops)) - 1) if stops and includes_stop else ""
    return Splice(
        cut,
        mold=continuation.mold,
        is_chat=request.api == "chat",
        stops=stops,
        includes_stop=includes_stop,
        tail=tail,
    )


def _includes_stop(request: GenerationRequest) -> bool:
    return bool(request.fields.get("include_stop_str_in_output"))


# -- text that was held back


async def best_cut(continuation: Continuation, cut: Cut, pool: UpstreamPool, replica: ReplicaEntry) -> Cut:
    """Where the client has a part of the next token's text: the place after it, if the engine tells the rest of that text.

    What was drawn is kept so, instead of drawn again (where it may come out otherwise). Where the engine does not tell, or
    tells something else than the client has read, it is `cut`.
    """
    if not cut.had:
        return cut
    try:
        for candidate in continuation.candidates(MAX_CANDIDATES):
            text = await _text_of(candidate, pool, replica)
            if text is not None and text.startswith(cut.had) and len(text) == candidate.num_chars:
                return Cut(candidate.num_tokens, pending=text[len(cut.had) :])
    except UpstreamError as error:
        log.info("ids_not_detokenised", replica=replica.id, reason=str(error))
    return cut


async def _text_of(candidate: Candidate, pool: UpstreamPool, replica: ReplicaEntry) -> str | None:
    """The text of its ids after the id before them, since some tokenisers write a first token otherwise."""
    before = [] if candidate.before is None else [candidate.before]
    whole = await _detokenise([*before, *candidate.ids], pool, replica)
    if whole is None or whole.endswith("\ufffd"):
        return None
    start = await _detokenise(before, pool, replica) if before else ""
    return whole[len(start) :] if start is not None and whole.startswith(start) else None


async def _detokenise(ids: list[int], pool: UpstreamPool, replica: ReplicaEntry) -> str | None:
    """Raises UpstreamError."""
    body = msgspec.json.encode({"model": replica.upstream_model, "tokens": ids})
    headers = [("content-type", "application/json")]
    response = await pool.request(replica.url, "POST", "/detokenize", headers, body, headers_s=DETOKENISE_S)
    data = await response.read_all(DETOKENISE_S, MAX_TEXT_BYTES)
    if response.status != 200:
        return None
    try:
        return msgspec.json.decode(data, type=_Text).prompt
    except msgspec.MsgspecError:
        return None


class _Text(msgspec.Struct):
    prompt: str


# -- nothing is left to be made


LENGTH_REACHED = b'{"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length","stop_reason":null}]}'


def ends_at_once(reader: AnswerReader) -> list[Chunk]:
    """The chunks of an answer that has all the tokens it may have."""
    chunk = reader.take(LENGTH_REACHED)
    reader.take(b"[DONE]")
    return [chunk] if chunk is not None else []

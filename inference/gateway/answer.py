"""Read one answer of an engine, event by event: what of it goes to the client, what it says about usage and its end.

An `AnswerReader` does no I/O. `take(event)` returns the chunk to forward (with our id and the public model name) or
None, and raises when the engine reports an error or sends what is no chunk.
"""

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from inference.gateway.continuation import Continuation
    from inference.gateway.splice import Splice

Chunk = dict[str, Any]
Piece = Chunk | bytes
"""Of an answer on its way to the client: a chunk, or chunks as they are shown already (event_template.py)."""
MAX_TOKENS = 2**31 - 1
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
MAX_TOOL_CALLS = 1024
_NO_MOLD = ("choices", "usage", "prompt_token_ids", "prompt_text")


class BadEvent(Exception):
    """The engine sent an event that is not a JSON object of the API."""


class EngineReported(Exception):
    """The engine sent an error object inside its answer."""

    def __init__(self, error: object) -> None:
        super().__init__("the engine reported an error")
        self.error = error


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    is_counted: bool = False
    """Counted here, an event a token, since the engine gave no figures."""
    is_running: bool = field(default=False, compare=False)
    """The last running figures: no final ones came that could be read."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = 0


class _Figures(msgspec.Struct):
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None


def read_usage(figures: object) -> Usage | None:
    """An engine's usage object as numbers; None when it is not one."""
    try:
        read = msgspec.convert(figures, _Figures, strict=False)
    except msgspec.ValidationError:
        return None
    details = read.prompt_tokens_details or _Details()
    return Usage(
        prompt_tokens=_count(read.prompt_tokens),
        cached_tokens=_count(details.cached_tokens),
        completion_tokens=_count(read.completion_tokens),
    )


def _count(tokens: int | None) -> int:
    """What an engine says, kept to what the ledger can hold."""
    return min(max(0, tokens or 0), MAX_TOKENS)


def _count_of(figures: object) -> int:
    count = figures.get("completion_tokens") if isinstance(figures, dict) else None
    return count if type(count) is int else 0


def decode_object(data: bytes) -> Chunk:
    """One JSON object; NaN and infinities, which engines write in log-probabilities, become null. Raises BadEvent."""
    try:
        decoded = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        decoded = _decode_leniently(data)
    if not isinstance(decoded, dict):
        raise BadEvent("not a JSON object")
    return decoded


def _decode_leniently(data: bytes) -> object:
    """Halves of surrogate pairs become U+FFFD."""
    try:
        written = json.dumps(json.loads(data), ensure_ascii=False)
        whole = written.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return json.loads(whole, parse_constant=lambda _name: None)
    except (ValueError, RecursionError):
        raise BadEvent("not JSON") from None


def reported_error(answer: Chunk) -> object:
    """The error object in an answer, or None."""
    error = answer.get("error")
    if error:
        return error
    return answer if answer.get("object") == "error" else None


def carries_output(choice: dict[str, Any]) -> bool:
    """Does this choice of a chunk bring anything that the model made (text, a tool call), or its end?"""
    if choice.get("text") or choice.get("finish_reason"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role")


def check_choice(choice: object, num_choices: int) -> dict[str, Any]:
    """A choice of a chunk or of a whole answer, as it must be for all that is done with it here. Raises BadEvent."""
    if not isinstance(choice, dict):
        raise BadEvent("a choice is not an object")
    _check_index(choice, num_choices, "a choice")
    _check_texts(choice, ("text", "finish_reason"), "a choice")
    for name in ("delta", "message"):
        made = choice.get(name)
        if made is None:
            continue
        if not isinstance(made, dict):
            raise BadEvent(f"a {name} is not an object")
        _check_texts(made, ("role", "content", "reasoning", "reasoning_content", "refusal"), f"a {name}")
        if made.get("tool_calls") is not None:
            _check_tool_calls(made["tool_calls"])
    return choice


def _check_tool_calls(calls: object) -> None:
    if not isinstance(calls, list) or len(calls) > MAX_TOOL_CALLS:
        raise BadEvent("tool calls are not a list, or too many")
    for call in calls:
        if not isinstance(call, dict):
            raise BadEvent("a tool call is not an object")
        _check_index(call, MAX_TOOL_CALLS, "a tool call")
        _check_texts(call, ("id", "type"), "a tool call")
        function = call.get("function")
        if function is not None:
            if not isinstance(function, dict):
                raise BadEvent("a tool call's function is not an object")
            _check_texts(function, ("name", "arguments"), "a tool call's function")


def _check_index(holder: Chunk, limit: int, what: str) -> None:
    """It may be missing."""
    index = holder.get("index", 0)
    if type(index) is not int or not 0 <= index < limit:
        raise BadEvent(f"the index of {what} is not one of {limit}")


def _check_texts(holder: Chunk, names: tuple[str, ...], what: str) -> None:
    for name in names:
        value = holder.get(name)
        if value is not None and type(value) is not str:
            raise BadEvent(f"{name} of {what} is not a text")


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    return bool(choice.get("text") or (isinstance(delta, dict) and delta.get("content")))


def _hide_ids(chunk: Chunk, choice: dict[str, Any]) -> object:
    """Take token ids out of a chunk whose client did not ask for them; returns the prompt's, if it has them."""
    prompt_ids = None
    for holder in (chunk, choice):
        prompt_ids = prompt_ids or holder.get("prompt_token_ids")
        for name in ("token_ids", "prompt_token_ids"):
            if name in holder:
                holder[name] = None
    return prompt_ids


def _ended_by(choice: dict[str, Any]) -> str:
    """The stop string that has ended it, if one has."""
    reason = choice.get("stop_reason")
    return reason if isinstance(reason, str) else ""


def _figures(usage: Usage) -> Chunk:
    """As an engine writes them."""
    total = usage.prompt_tokens + usage.completion_tokens
    figures: Chunk = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": total,
    }
    return {**figures, "prompt_tokens_details": {"cached_tokens": usage.cached_tokens}} if usage.cached_tokens else figures


class AnswerReader:
    """State of one attempt's answer.

    `has_output`: something the model made has arrived; `is_finished`: every choice has its finish reason;
    `is_done`: [DONE] has arrived.
    """

    def __init__(
        self,
        *,
        response_id: str,
        public_id: str,
        wants_usage: bool = False,
        wants_running_usage: bool = False,
        num_choices: int = 1,
        max_completion_tokens: int = MAX_TOKENS,
        continuation: "Continuation | None" = None,
        splice: "Splice | None" = None,
        before: Usage | None = None,
        fingerprint: str = "",
    ) -> None:
        """`fingerprint`: what the client is told of who answers; empty: what the engine says.

        `max_completion_tokens`: what this attempt was asked for, all choices together; more than that is not believed.

        `continuation`: keeps what another attempt would need; the token ids were asked for it, the client gets none.
        `splice`, `before`: of an attempt that goes on from another one: how its text fits, and the usage until there.
        """
        self._continuation, self._splice, self._before = continuation, splice, before
        self._response_id, self._public_id, self._fingerprint = response_id, public_id, fingerprint
        self._wants_usage, self._wants_running_usage = wants_usage, wants_running_usage
        self._num_choices, self._max_completion_tokens = num_choices, max_completion_tokens
        self._finish_reasons: dict[int, str] = {}
        self._running: dict[int, object] = {}
        self._final_usage: object = None
        self._last: Chunk = {}
        self._num_unmetered = 0
        self._short_usage = b""  # of the first choice's latest event, where that was not decoded
        self.has_output = splice is not None
        self.is_done = False
        self.is_cut_short = False
        """It ended here before the engine's answer did."""

    @property
    def is_finished(self) -> bool:
        return len(self._finish_reasons) >= self._num_choices

    @property
    def finish_reason(self) -> str:
        return self._finish_reasons.get(0, "")

    def take(self, event: bytes) -> Chunk | None:
        """Raises BadEvent, EngineReported."""
        if self.is_done:
            return None
        if event == b"[DONE]":
            self.is_done = True
            return None
        if not event.strip():
            return None
        chunk = decode_object(event)
        error = reported_error(chunk)
        if error is not None:
            raise EngineReported(error)
        usage, choices = chunk.pop("usage", None), chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            if usage:
                self._final_usage = usage
                self._remember(chunk if self._splice is None else dict(self._splice.mold))
            return None  # usage alone, or a heartbeat
        for choice in choices:
            self._read_choice(choice, usage)
        if self._continuation is not None:
            if len(choices) > 1:
                self._continuation.spoil()  # no engine says more than one thing at once of its only choice
            followed = self._follow(self._continuation, chunk, choices[0])
            if followed is None:
                return None
            chunk = followed
        self._remember(chunk)
        if self._wants_usage:
            chunk["usage"] = self._running_figures(usage) if self._wants_running_usage else None
        return chunk

    def _follow(self, continuation: "Continuation", chunk: Chunk, choice: dict[str, Any]) -> Chunk | None:
        """Keep what another attempt would need; as the client gets it, or None where nothing is left. Raises BadEvent."""
        ids = choice.get("token_ids")
        prompt_ids = _hide_ids(chunk, choice)
        delta, finish_reason = choice.get("delta"), choice.get("finish_reason")
        if not continuation.mold:
            continuation.mold = {name: value for name, value in chunk.items() if name not in _NO_MOLD}
        if prompt_ids is not None:
            continuation.begin(prompt_ids)
        if delta is None:
            made = choice.get("text") or ""
        else:
            made = delta.get("content") or ""
            is_other = any(value for name, value in delta.items() if name not in ("content", "role"))
            # An engine's parser that keeps a text to itself tells the ids with no content at all.
            if is_other or (ids is not None and not finish_reason and delta.get("content") is None):
                continuation.spoil()
            if ids is None and not made and not finish_reason:
                return chunk  # the role
        shown = (
            made if self._splice is None else self._splice.take(made, is_last=bool(finish_reason), ended_by=_ended_by(choice))
        )
        continuation.took(ids, len(made), shown)
        if self._splice is not None:
            chunk = self._splice.shape(choice, shown)
            if self._splice.stop_reason is not None:
                self._finish_reasons[0] = "stop"
                self.is_done = self.is_cut_short = True
                continuation.stopped(self._splice.num_unsent)
                return chunk
        is_silent = not shown and not finish_reason and not (delta and any(delta.values()))
        return None if is_silent else chunk

    def _read_choice(self, choice: object, usage: object) -> None:
        choice = check_choice(choice, self._num_choices)
        index: int = choice.get("index", 0)
        if usage:
            self._running[index] = usage
            self._short_usage = b""
        if carries_output(choice):
            self.has_output = True
            reason = choice.get("finish_reason")
            if not usage and (not reason or _has_text(choice)):
                self._num_unmetered += 1
            if isinstance(reason, str) and reason:
                self._finish_reasons[index] = reason

    def took_tokens(self, texts: list[bytes], ids: list[bytes], usage: bytes) -> None:
        """Token events of the only choice went the short way (event_template.py); `usage` is the latest one's, or empty."""
        if usage:
            self._short_usage = usage
        else:
            self._num_unmetered += len(texts)
        if self._continuation is not None:
            self._continuation.took_short(texts, ids)

    def as_shown(self, chunk: Chunk) -> Chunk | None:
        """A copy of a decoded chunk as `take` would return it, but remembers nothing; None where that depends on more than
        its text."""
        choice = chunk["choices"][0]
        if self._wants_running_usage or self.is_done or (self._splice is not None and not self._splice.is_plain):
            return None
        if self._continuation is not None:
            if not (isinstance(choice.get("token_ids"), list) or self._continuation.is_spoiled):
                return None
            choice = dict(choice)
            chunk = {**chunk, "choices": [choice]}
            _hide_ids(chunk, choice)
            if self._splice is not None:
                chunk = self._splice.shape(choice, choice.get("text") or "")
        elif choice.get("token_ids") is not None:
            return None  # the client asked for them
        shown = {**chunk, "id": self._response_id, "model": self._public_id}
        if self._fingerprint:
            shown["system_fingerprint"] = self._fingerprint
        shown.pop("usage", None)
        return {**shown, "usage": None} if self._wants_usage else shown

    def _remember(self, chunk: Chunk) -> None:
        chunk["id"] = self._response_id
        chunk["model"] = self._public_id
        if self._fingerprint:
            chunk["system_fingerprint"] = self._fingerprint
        self._last = chunk

    def tokens_so_far(self) -> int:
        """Completion tokens of all attempts, as the engine last said, or as counted; cheap, for progress reports."""
        before = self._before.completion_tokens if self._before is not None else 0
        if self._short_usage:
            found = _COMPLETION_TOKENS.search(self._short_usage)
            return before + (int(found[1]) if found else 0)
        running = sum(_count_of(usage) for usage in self._running.values())
        return before + (running or self._num_unmetered)

    def usage(self) -> Usage | None:
        """The final figures, or the last running ones (those of all choices together), or what was counted, or None.

        Never more output than was asked for, nor more cached than there was.
        """
        usage = self.attempt_usage()
        if usage is None or self._before is None:
            return usage or self._before
        return self._with_before(usage, self._before)

    def attempt_usage(self) -> Usage | None:
        """The same of this attempt alone, as its engine told it."""
        usage = self._engine_usage()
        if usage is None:
            return None
        return replace(
            usage,
            completion_tokens=min(usage.completion_tokens, self._max_completion_tokens),
            cached_tokens=min(usage.cached_tokens, usage.prompt_tokens),
        )

    @property
    def is_engines_total(self) -> bool:
        """Are this attempt's figures all that its engine has counted?"""
        return not self.is_cut_short and bool(self._final_usage) and read_usage(self._final_usage) is not None

    def _with_before(self, usage: Usage, before: Usage) -> Usage:
        """Prompt and cached tokens as the first attempt had them; its output and this one's."""
        made = usage.completion_tokens
        if self.is_cut_short and self._continuation is not None:
            made = min(made, self._continuation.num_tokens_stopped - before.completion_tokens)
        return replace(
            usage,
            prompt_tokens=before.prompt_tokens,
            cached_tokens=before.cached_tokens,
            completion_tokens=before.completion_tokens + made,
        )

    def _running_figures(self, usage: object) -> object:
        read = read_usage(usage) if usage and self._before is not None else None
        return usage if read is None or self._before is None else _figures(self._with_before(read, self._before))

    def _engine_usage(self) -> Usage | None:
        final = read_usage(self._final_usage) if self._final_usage else None
        if final is not None:
            return final
        if self._short_usage:
            self._running[0], self._short_usage = decode_object(self._short_usage), b""
        running = [usage for usage in map(read_usage, self._running.values()) if usage is not None]
        if not running:
            counted = self._num_unmetered
            return Usage(completion_tokens=counted, is_counted=True) if counted else None
        return Usage(
            prompt_tokens=max(usage.prompt_tokens for usage in running),
            cached_tokens=max(usage.cached_tokens for usage in running),
            completion_tokens=min(sum(usage.completion_tokens for usage in running), MAX_TOKENS),
            is_running=True,
        )

    def final_usage(self) -> object:
        """The usage object to show at the end, as the engine wrote it where that is what counts; None when it gave none."""
        usage = self.usage()
        if usage is None or usage.is_counted:
            return None
        written = [self._final_usage] if not usage.is_running else list(self._running.values())
        if len(written) == 1 and read_usage(written[0]) == usage:
            return written[0]
        return _figures(usage)

    def usage_chunk(self) -> Chunk | None:
        """The one usage frame, if the client asked and the engine gave figures: like the others, with no choices."""
        usage = self.final_usage()
        if not self._wants_usage or usage is None:
            return None
        return {**self._last, "choices": [], "usage": usage}

    def take_whole(self, body: bytes) -> Chunk:
        """An answer that was not streamed. Raises BadEvent, EngineReported."""
        answer = decode_object(body)
        error = reported_error(answer)
        if error is not None:
            raise EngineReported(error)
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices:
            raise BadEvent("no choices")
        self._final_usage = answer.get("usage")
        for choice in choices:
            self._read_choice(choice, None)
        self._num_unmetered = 0  # it came in one piece: there is nothing to count
        self.has_output = True
        if self._final_usage:
            answer["usage"] = self.final_usage()
        for name in ("kv_transfer_params", "ec_transfer_params"):
            answer.pop(name, None)
        self._remember(answer)
        return answer

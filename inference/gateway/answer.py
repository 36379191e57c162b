"""Read one answer of an engine, event by event: what of it goes to the client, what it says about usage and its end.

An `AnswerReader` does no I/O. `take(event)` returns the chunk to forward (with our id and the public model name) or
None, and raises when the engine reports an error or sends what is no chunk.
"""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

Chunk = dict[str, Any]
MAX_TOKENS = 2**31 - 1


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


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    return bool(choice.get("text") or (isinstance(delta, dict) and delta.get("content")))


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
    ) -> None:
        self._response_id, self._public_id = response_id, public_id
        self._wants_usage, self._wants_running_usage = wants_usage, wants_running_usage
        self._num_choices = num_choices
        self._finish_reasons: dict[int, str] = {}
        self._running: dict[int, object] = {}
        self._final_usage: object = None
        self._last: Chunk = {}
        self._num_unmetered = 0
        self.has_output = False
        self.is_done = False

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
                self._remember(chunk)
            return None  # usage alone, or a heartbeat
        for choice in choices:
            self._read_choice(choice, usage)
        self._remember(chunk)
        if self._wants_usage:
            chunk["usage"] = usage if self._wants_running_usage else None
        return chunk

    def _read_choice(self, choice: object, usage: object) -> None:
        if not isinstance(choice, dict):
            raise BadEvent("a choice is not an object")
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        if usage:
            self._running[index] = usage
        if carries_output(choice):
            self.has_output = True
            reason = choice.get("finish_reason")
            if not usage and (not reason or _has_text(choice)):
                self._num_unmetered += 1
            if isinstance(reason, str) and reason:
                self._finish_reasons[index] = reason

    def _remember(self, chunk: Chunk) -> None:
        chunk["id"] = self._response_id
        chunk["model"] = self._public_id
        self._last = chunk

    def usage(self) -> Usage | None:
        """The final figures, or the last running ones (those of all choices together), or what was counted, or None."""
        if self._final_usage:
            return read_usage(self._final_usage)
        running = [usage for usage in map(read_usage, self._running.values()) if usage is not None]
        if not running:
            counted = self._num_unmetered
            return Usage(completion_tokens=counted, is_counted=True) if counted else None
        return Usage(
            prompt_tokens=max(usage.prompt_tokens for usage in running),
            cached_tokens=max(usage.cached_tokens for usage in running),
            completion_tokens=sum(usage.completion_tokens for usage in running),
        )

    def final_usage(self) -> object:
        """The usage object to show at the end, as the engine wrote it where it did; None when it gave none."""
        if self._final_usage or not self._running:
            return self._final_usage
        if len(self._running) == 1:
            return next(iter(self._running.values()))
        usage = self.usage()
        if usage is None:
            return None
        total = usage.prompt_tokens + usage.completion_tokens
        return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, "total_tokens": total}

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
        for name in ("kv_transfer_params", "ec_transfer_params"):
            answer.pop(name, None)
        self._remember(answer)
        return answer

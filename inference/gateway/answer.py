"""Read one answer of an engine, event by event: what of it goes to the client, what it says about usage and its end.

An `AnswerReader` does no I/O. `take(event)` returns the chunk to forward (with our id and the public model name) or
None, and raises when the engine reports an error or sends what is no chunk.
"""

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inference.gateway.chunks import (
    BadEvent,
    Chunk,
    EngineReported,
    carries_output,
    check_choice,
    decode_object,
    ended_by,
    has_text,
    hide_ids,
    reported_error,
)
from inference.gateway.engine_usage import MAX_TOKENS, Usage, completion_tokens_in, figures_of, read_usage

if TYPE_CHECKING:
    from inference.gateway.continuation import Continuation
    from inference.gateway.event_template import Fitting
    from inference.gateway.splice import Splice

_COMPLETION_TOKENS = re.compile(rb'"completion_tokens": ?(\d+)')
_NO_MOLD = ("choices", "usage", "prompt_token_ids", "prompt_text")


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
        self.continuation, self._splice, self._before = continuation, splice, before
        self._response_id, self._public_id, self._fingerprint = response_id, public_id, fingerprint
        self._wants_usage, self._wants_running_usage = wants_usage, wants_running_usage
        self._num_choices, self._max_completion_tokens = num_choices, max_completion_tokens
        self._finish_reasons: dict[int, str] = {}
        self._running: dict[int, object] = {}
        self._final_usage: object = None
        self._final: Usage | None = None  # the same as numbers; None: there is none, or it cannot be read
        self._last: Chunk = {}
        self.num_unmetered = 0
        self.short_usage = b""  # of the first choice's latest event, where that was not decoded
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
                self._note_final(usage)
                self._remember(chunk if self._splice is None else dict(self._splice.mold))
            return None  # usage alone, or a heartbeat
        for choice in choices:
            self._read_choice(choice, usage)
        if self.continuation is not None:
            if len(choices) > 1:
                self.continuation.spoil()  # no engine says more than one thing at once of its only choice
            followed = self._follow(self.continuation, chunk, choices[0])
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
        prompt_ids = hide_ids(chunk, choice)
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
            made if self._splice is None else self._splice.take(made, is_last=bool(finish_reason), ended_by=ended_by(choice))
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
            self.short_usage = b""
        if carries_output(choice):
            self.has_output = True
            reason = choice.get("finish_reason")
            if not usage and (not reason or has_text(choice)):
                self.num_unmetered += 1
            if isinstance(reason, str) and reason:
                self._finish_reasons[index] = reason

    def _note_final(self, usage: object) -> None:
        self._final_usage, self._final = usage, read_usage(usage) if usage else None

    def took_tokens(self, events: "Fitting") -> None:
        """Token events of the only choice went the short way (short_way.py, which tells of single ones itself)."""
        if events.usage:
            self.short_usage = events.usage
        else:
            self.num_unmetered += len(events.texts)
        if self.continuation is not None:
            self.continuation.took_short(events.texts, events.ids)

    def as_shown(self, chunk: Chunk) -> Chunk | None:
        """A copy of a decoded chunk as `take` would return it, but remembers nothing; None where that depends on more than
        its text."""
        choice = chunk["choices"][0]
        if self._wants_running_usage or self.is_done or (self._splice is not None and not self._splice.is_plain):
            return None
        if self.continuation is not None:
            if not (isinstance(choice.get("token_ids"), list) or self.continuation.is_spoiled):
                return None
            choice = dict(choice)
            chunk = {**chunk, "choices": [choice]}
            hide_ids(chunk, choice)
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
        if self.short_usage:
            found = _COMPLETION_TOKENS.search(self.short_usage)
            return before + (int(found[1]) if found else 0)
        running = sum(completion_tokens_in(usage) for usage in self._running.values())
        return before + (running or self.num_unmetered)

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
        if usage.completion_tokens <= self._max_completion_tokens and usage.cached_tokens <= usage.prompt_tokens:
            return usage
        return replace(
            usage,
            completion_tokens=min(usage.completion_tokens, self._max_completion_tokens),
            cached_tokens=min(usage.cached_tokens, usage.prompt_tokens),
        )

    @property
    def is_engines_total(self) -> bool:
        """Are this attempt's figures all that its engine has counted?"""
        return not self.is_cut_short and self._final is not None

    def _with_before(self, usage: Usage, before: Usage) -> Usage:
        """Prompt and cached tokens as the first attempt had them; its output and this one's."""
        made = usage.completion_tokens
        if self.is_cut_short and self.continuation is not None:
            made = min(made, self.continuation.num_tokens_stopped - before.completion_tokens)
        return replace(
            usage,
            prompt_tokens=before.prompt_tokens,
            cached_tokens=before.cached_tokens,
            completion_tokens=before.completion_tokens + made,
        )

    def _running_figures(self, usage: object) -> object:
        read = read_usage(usage) if usage and self._before is not None else None
        return usage if read is None or self._before is None else figures_of(self._with_before(read, self._before))

    def _engine_usage(self) -> Usage | None:
        if self._final is not None:
            return self._final
        if self.short_usage:
            self._running[0], self.short_usage = decode_object(self.short_usage), b""
        running = [usage for usage in map(read_usage, self._running.values()) if usage is not None]
        if not running:
            counted = self.num_unmetered
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
        if not usage.is_running and self._final == usage:
            return self._final_usage
        written = list(self._running.values()) if usage.is_running else []
        return written[0] if len(written) == 1 and read_usage(written[0]) == usage else figures_of(usage)

    def usage_chunk(self) -> Chunk | None:
        """The one usage frame, if the client asked and the engine gave figures: like the others, with no choices."""
        usage = self.final_usage() if self._wants_usage else None
        if usage is None:
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
        self._note_final(answer.get("usage"))
        for choice in choices:
            self._read_choice(choice, None)
        self.num_unmetered = 0  # it came in one piece: there is nothing to count
        self.has_output = True
        if self._final_usage:
            answer["usage"] = self.final_usage()
        for name in ("kv_transfer_params", "ec_transfer_params"):
            answer.pop(name, None)
        self._remember(answer)
        return answer

"""What each attempt of a request had its engine count, as far as this gateway can know it.

A request that is answered whole at its first attempt is told by its record alone: no row is made of it. Of any other
attempt it is noted what the engine said it had read and made, and what it may have counted at most: an engine goes on for
a moment after it was left, or for as long as it likes while nobody reads, but never beyond what it was asked for. A row also
says how the attempt went for whoever compares versions: its outcome, its time to the first token and between tokens.
"""

from typing import TYPE_CHECKING

import msgspec

from billing.services.attempt_rows import AttemptDraft, outcome_of
from headway.clock import Clock

if TYPE_CHECKING:
    from inference.gateway.answer import AnswerReader
    from inference.gateway.requests import GenerationRequest
    from inference.gateway.state import ReplicaEntry

PARKED = "parked"
_DONE = "done"
_REFUSED = "refused"
_FAILED = "failed"
# An engine that refuses numbers it cannot write has computed them before it refuses.
_ASKS_NUMBERS = ("logprobs", "prompt_logprobs")


class AttemptNotes:
    """Of one request. `begin`, `asks`, then `end` where another attempt may follow, else `rows`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ended: list[AttemptDraft] = []
        self._replica: ReplicaEntry | None = None  # of the attempt that runs
        self._asked: GenerationRequest | None = None
        self._reader: AnswerReader | None = None
        self._is_untouched = False
        self._number = 0
        self._began_s = self._dispatched_s = self._last_output_s = 0.0
        self._first_output_s: float | None = None

    def begin(self, number: int, replica: "ReplicaEntry") -> None:
        self._number, self._replica = number, replica
        self._asked = self._reader = None
        self._is_untouched = False
        self._began_s, self._dispatched_s = self._clock.now().timestamp(), self._clock.monotonic_s()
        self._first_output_s = None

    def outputs(self, first_s: float, last_s: float) -> None:
        """Something that it made was handed on at these times, and maybe between them."""
        if self._first_output_s is None:
            self._first_output_s = first_s
        self._last_output_s = last_s

    def asks(self, asked: "GenerationRequest", reader: "AnswerReader") -> None:
        """The replica is about to be asked; `reader` takes its answer."""
        self._asked, self._reader = asked, reader

    def untouched(self) -> None:
        """The replica was not reached, or refused before it began."""
        asked = self._asked
        self._is_untouched = asked is None or not any(name in asked.fields for name in _ASKS_NUMBERS)

    def end(self, ending: str) -> None:
        """Another attempt may follow."""
        self._ended += self._running(ending)
        self._replica = None

    def rows(self, ending: str) -> tuple[AttemptDraft, ...]:
        """All so far, with the one that runs as it stands; none where the record alone tells everything."""
        if ending == _DONE and not self._ended and self._is_told_by_record():
            return ()
        ended = map(_blamed, self._ended) if ending == _DONE else self._ended
        return (*ended, *self._running(ending))

    def _is_told_by_record(self) -> bool:
        reader = self._reader
        return reader is not None and reader.is_engines_total and self._copies() == 1

    def _copies(self) -> int:
        """How often the engine reads the prompt."""
        return int(self._asked.fields.get("n", 1)) if self._asked is not None else 1

    def _running(self, ending: str) -> list[AttemptDraft]:
        if self._replica is None:
            return []
        prompt, completion, max_prompt, max_completion = self._tokens()
        draft = AttemptDraft(
            number=self._number,
            replica=self._replica.id,
            replica_epoch=self._replica.epoch,
            model=self._replica.model,
            version=self._replica.version,
            ending=ending,
            outcome=outcome_of(ending).value,
            ttft_ms=self.ttft_ms(),
            inter_token_ms=self.inter_token_ms(),
            started_at_s=self._began_s,
            ended_at_s=self._clock.now().timestamp(),
            prompt_tokens=prompt,
            completion_tokens=completion,
            max_prompt_tokens=max(prompt, max_prompt),
            max_completion_tokens=max(completion, max_completion),
        )
        return [draft]

    def ttft_ms(self) -> int | None:
        """Of the attempt that runs, or ran last, since it was dispatched."""
        first_s = self._first_output_s
        return None if first_s is None else max(0, round((first_s - self._dispatched_s) * 1000))

    def inter_token_ms(self) -> float | None:
        """The mean between the tokens of one answer."""
        told = self._reader.attempt_usage() if self._reader is not None else None
        if told is None or self._first_output_s is None or self._asked is None:
            return None
        gaps = told.completion_tokens / self._asked.num_choices - 1
        return (self._last_output_s - self._first_output_s) * 1000 / gaps if gaps >= 1 else None

    def _tokens(self) -> tuple[int, int, int, int]:
        """Prompt and completion that the engine told, and the most it may have counted of each."""
        asked, reader = self._asked, self._reader
        if asked is None or reader is None or self._is_untouched:
            return 0, 0, 0, 0
        told, copies = reader.attempt_usage(), self._copies()
        if told is not None and reader.is_engines_total:
            return told.prompt_tokens * copies, told.completion_tokens, 0, 0
        max_prompt, max_completion = asked.prompt_tokens_bound * copies, asked.max_tokens * asked.num_choices
        if told is None:
            return 0, 0, max_prompt, max_completion
        if told.prompt_tokens and asked.num_choices == 1:
            max_prompt = 0  # it has counted the prompt, once
        return told.prompt_tokens, told.completion_tokens, max_prompt, max_completion


def _blamed(draft: AttemptDraft) -> AttemptDraft:
    """Of a request that was answered in the end: who refused it was wrong to."""
    return msgspec.structs.replace(draft, outcome=_FAILED) if draft.ending == _REFUSED else draft

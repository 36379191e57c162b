"""Fit the events of a resumed attempt to the stream that the client has begun to read.

They are events of /v1/completions whatever the client asked for. The first text may be what the client has already (it is
compared and left out), text may have to come before it, and a stop string may begin before the cut and end after it,
where the engine, which looks at what it makes, does not find it.
"""

from typing import Any

from inference.gateway.chunks import BadEvent, Chunk
from inference.gateway.continuation import Cut


class Splice:
    def __init__(
        self, cut: Cut, *, mold: Chunk, is_chat: bool, stops: tuple[str, ...] = (), includes_stop: bool = False, tail: str = ""
    ) -> None:
        """`mold`: what the stream's chunks have besides choices; `tail`: what the client has before the cut, where a stop
        string that is part of the answer may have begun."""
        self.mold, self._is_chat = mold, is_chat
        self._had = cut.had
        self._stops, self._includes_stop = stops, includes_stop
        # Text in which a stop string may begin (`_watched` characters of it), and all after it; `_sent` have gone.
        self._text = tail if includes_stop else cut.pending
        self._watched = len(self._text) if stops else 0
        self._sent = len(tail) if includes_stop else 0
        self.stop_reason: str | None = None
        """The stop string that was found here; the answer ends with it."""
        self.num_unsent = 0
        """How many characters of it the client does not get."""

    @property
    def is_plain(self) -> bool:
        """From here on text goes through as it comes."""
        return not self._had and self._sent >= len(self._text) and not self._watched

    def take(self, made: str, *, is_last: bool, ended_by: str = "") -> str:
        """What of it the client gets now; `ended_by`: the stop string that the engine has found.

        Raises BadEvent when it is not what the client has begun to read.
        """
        made = self._beyond_what_it_had(made, is_last=is_last)
        if self.is_plain:
            return made
        if self._had:
            return ""
        self._text += made
        return self._release(is_last=is_last, ended_by=ended_by)

    def _beyond_what_it_had(self, made: str, *, is_last: bool) -> str:
        had = self._had
        if not had:
            return made
        if not (made.startswith(had) or had.startswith(made)) or (is_last and len(made) < len(had)):
            raise BadEvent("what was made again differs from what the client has")
        self._had = had[len(made) :]
        return made[len(had) :]

    def _release(self, *, is_last: bool, ended_by: str) -> str:
        text, end = self._text, len(self._text)
        found = self._find(text if self._includes_stop else text + ended_by, ended_by)
        if found is not None:
            start, stop = found
            self.stop_reason, self._watched = stop, 0
            self.num_unsent = 0 if self._includes_stop else len(stop)
            end = start + len(stop) if self._includes_stop else start
        elif not is_last:
            begun = self._begun()
            if begun is None:
                self._watched = 0
            elif not self._includes_stop:
                end = begun
        shown = text[self._sent : end]
        self._sent = max(self._sent, end)
        if not self._watched:
            self._text, self._sent = "", 0
        return shown

    def _find(self, text: str, ended_by: str) -> tuple[int, str] | None:
        """The stop string that begins in the watched text, ends after it, and ends first (as the engine has it, of two that
        end there the first in the list); None also where that is the one which the engine has found."""
        best_end, best = len(text) + 1, None
        for stop in self._stops:
            if stop == ended_by and best_end > len(text):
                best_end, best = len(text), None
                continue
            at = text.find(stop, max(0, self._watched - len(stop) + 1), self._watched - 1 + len(stop))
            if at >= 0 and at + len(stop) < best_end:
                best_end, best = at + len(stop), (at, stop)
        return best

    def _begun(self) -> int | None:
        """Where in the watched text one of them may have begun and not ended."""
        for at in range(self._watched):
            rest = self._text[at:]
            if any(stop.startswith(rest) for stop in self._stops):
                return at
        return None

    def shape(self, choice: dict[str, Any], text: str) -> Chunk:
        """A chunk of the client's stream with this text, and with the end that the engine's choice tells."""
        shaped: dict[str, Any] = {"index": 0}
        shaped |= {"delta": {"content": text}} if self._is_chat else {"text": text}
        shaped |= {"logprobs": None, "finish_reason": choice.get("finish_reason")}
        if "stop_reason" in choice and (choice.get("finish_reason") or not self._is_chat):
            shaped["stop_reason"] = choice["stop_reason"]
        if self.stop_reason is not None:
            shaped |= {"finish_reason": "stop", "stop_reason": self.stop_reason}
        return {**self.mold, "choices": [shaped]}

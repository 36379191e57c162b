"""What has to be known of an answer so that another replica can go on with it: token ids, and the text each brought.

An engine tells the ids and the text of each event, and the text lags behind the ids: a character of several tokens comes
with its last one, and with stop strings the engine holds back as many characters as the longest has, less one. So of an
event after which the engine's text was `told` characters long, all text made so far is `told + held_back` long (once
anything was told), and where an event of one token brought text, no half character is left over: a *mark*, between two
tokens whose place in the text is known. An answer goes on from the last mark whose text the client has.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

FOLD_AT_EVENTS = 256
TAIL_CHARS = 4096
"""How much of the latest text is kept: more than a stop string (1,024 characters) and the token it ends in."""
_decode_ids = msgspec.json.Decoder(list[int]).decode
_decode_text = msgspec.json.Decoder(str).decode


@dataclass(frozen=True)
class Cut:
    """Where an answer goes on: after `num_tokens` of the output."""

    num_tokens: int
    had: str = ""
    """What the client has already of the text after these tokens: it is made again, compared and left out."""
    pending: str = ""
    """What the client still lacks of the text of these tokens: it comes before all that is made."""


@dataclass(frozen=True)
class Candidate:
    """A place beyond the last mark, if `ids` (after `before`) are `num_chars` of text, beginning with what the client has."""

    num_tokens: int
    before: int | None
    ids: list[int]
    num_chars: int


class Continuation:
    """Of one answer, over all its attempts. Ids take 4 bytes a token, marks 6 an event."""

    def __init__(self, *, held_back: int, version: str, tokeniser: str = "") -> None:
        """`held_back`: how many characters the engine holds back for stop strings; `version`, which counts with
        `tokeniser` (empty: not known), made the answer so far."""
        self.held_back, self.version, self.tokeniser = held_back, version, tokeniser
        self.prompt_ids = array("I")
        self.output_ids = array("I")
        self.mold: dict[str, Any] = {}
        """What chunks have besides their choices."""
        self.delivered = 0
        """Characters the client has."""
        self.num_tokens_stopped = 0
        """Tokens of the output, where `stopped` has ended it."""
        self.is_spoiled = False
        """Nothing can go on from this: it keeps nothing any more."""
        self._tail = ""
        # This attempt's events: ids and characters of each. It began at `_start`.
        self._num_ids, self._num_chars = array("I"), array("I")
        self._start = Cut(0)
        self._start_chars = 0
        # Not folded yet: texts (as JSON has them, without quotes) and ids ("1,2") of events that went the short way.
        self._texts: list[bytes] = []
        self._raw_ids: list[bytes] = []

    # -- what has come

    def begin(self, prompt_ids: object) -> None:
        """The prompt's ids, as the engine tells them in its first event; again: nothing happens."""
        if self.prompt_ids or self.is_spoiled:
            return
        ids = _as_ids(prompt_ids)
        if ids:
            self.prompt_ids = ids
        else:
            self.spoil()

    def spoil(self) -> None:
        """Something came that another replica cannot go on from."""
        self.is_spoiled = True
        self.prompt_ids, self.output_ids = array("I"), array("I")
        self._num_ids, self._num_chars = array("I"), array("I")
        self._texts, self._raw_ids = [], []

    def took(self, ids: object, made_chars: int, shown: str) -> None:
        """An event: its ids, how much text the engine told, and what of it the client gets."""
        if self.is_spoiled:
            return
        self._fold()
        read = _as_ids(ids)
        if read is None:
            self.spoil()
            return
        self.output_ids += read
        self._num_ids.append(len(read))
        self._num_chars.append(made_chars)
        self._hand(shown)

    def took_one_short(self, text: bytes, ids: bytes) -> None:
        """An event that went to the client as it was (short_way.py)."""
        if self.is_spoiled:
            return
        self._texts.append(text)
        self._raw_ids.append(ids)
        if len(self._texts) >= FOLD_AT_EVENTS:
            self._fold()

    def took_short(self, texts: Sequence[bytes], ids: Sequence[bytes]) -> None:
        if self.is_spoiled:
            return
        self._texts += texts
        self._raw_ids += ids
        if len(self._texts) >= FOLD_AT_EVENTS:
            self._fold()

    # -- going on

    @property
    def can_go_on(self) -> bool:
        """Before anything was delivered it is better begun anew."""
        self._fold()
        return not self.is_spoiled and bool(self.prompt_ids)

    def cut(self) -> Cut | None:
        """The last mark whose text the client has, or where this attempt began. None: it is too far back."""
        self._fold()
        num_tokens, num_chars = self._mark()
        start = self._start_chars
        if num_chars > self.delivered:  # nothing of what was pending then has gone, or not all
            known = self._start.pending
            return Cut(self._start.num_tokens, pending=known[len(known) - (start - self.delivered) :])
        had_chars = self.delivered - num_chars
        return Cut(num_tokens, had=self._last(had_chars)) if had_chars <= TAIL_CHARS else None

    def candidates(self, limit: int) -> Iterable[Candidate]:
        """Places beyond the cut, farthest first, whose text only a tokeniser can tell."""
        cut_tokens, cut_chars = self._mark()
        before = self.output_ids[cut_tokens - 1] if cut_tokens else (self.prompt_ids[-1] if self.prompt_ids else None)
        ends: list[tuple[int, int]] = []
        tokens, chars = self._start.num_tokens, 0
        for num_ids, num_chars in zip(self._num_ids, self._num_chars, strict=True):
            tokens, chars = tokens + num_ids, chars + num_chars
            if chars and tokens > cut_tokens:
                ends.append((tokens, self._start_chars + chars + self.held_back))
        for tokens, total in reversed(ends[-limit:]):
            if total >= self.delivered:
                yield Candidate(tokens, before, list(self.output_ids[cut_tokens:tokens]), total - cut_chars)

    def go_on(self, cut: Cut) -> None:
        """A new attempt begins there; what came after it is made again."""
        self._fold()
        self._start_chars = self.delivered - len(cut.had) + len(cut.pending)
        self._start = cut
        del self.output_ids[cut.num_tokens :]
        self._num_ids, self._num_chars = array("I"), array("I")

    def stopped(self, unsent_chars: int) -> None:
        """The answer ends here, where the client lacks `unsent_chars` of a stop string; tokens after that do not count.

        Where the string ends before the engine told any text, the tokens until it did count.
        """
        end = self.delivered + unsent_chars
        tokens, told = self._start.num_tokens, 0
        for num_ids, num_chars in zip(self._num_ids, self._num_chars, strict=True):
            tokens, told = tokens + num_ids, told + num_chars
            if told and self._start_chars + told + self.held_back >= end:
                break
        self.num_tokens_stopped = tokens

    def tail(self, num_chars: int) -> str:
        """The end of what the client has."""
        self._fold()
        return self._last(num_chars)

    def _last(self, num_chars: int) -> str:
        return self._tail[-num_chars:] if num_chars else ""

    def _mark(self) -> tuple[int, int]:
        """Tokens and characters of the last mark whose text the client has, or of where this attempt began."""
        tokens = best_tokens = self._start.num_tokens
        told, best_chars = 0, self._start_chars
        for num_ids, num_chars in zip(self._num_ids, self._num_chars, strict=True):
            tokens, told = tokens + num_ids, told + num_chars
            total = self._start_chars + told + self.held_back
            if total > self.delivered:
                break
            if num_ids == 1 and num_chars:
                best_tokens, best_chars = tokens, total
        return best_tokens, best_chars

    def _hand(self, shown: str) -> None:
        self.delivered += len(shown)
        self._tail = (self._tail + shown)[-TAIL_CHARS:]

    def _fold(self) -> None:
        texts, raw_ids = self._texts, self._raw_ids
        if not texts:
            return
        self._texts, self._raw_ids = [], []
        joined_ids = b",".join(raw_ids) if all(raw_ids) else b",".join(filter(None, raw_ids))
        try:
            ids = array("I", _decode_ids(b"[" + joined_ids + b"]"))
        except (msgspec.MsgspecError, OverflowError):
            self.spoil()
            return
        joined = b"".join(texts)
        is_plain = joined.isascii() and b"\\" not in joined
        shown = joined.decode() if is_plain else _text(joined)
        lengths = map(len, texts) if is_plain else (len(_text(text)) for text in texts)
        self.output_ids += ids
        is_one_each = len(ids) == len(raw_ids) and all(raw_ids)
        self._num_ids += array("I", [1]) * len(ids) if is_one_each else array("I", map(_num_ids, raw_ids))
        self._num_chars.extend(lengths)
        self._hand(shown)


def _num_ids(raw: bytes) -> int:
    return raw.count(b",") + 1 if raw else 0


def _text(raw: bytes) -> str:
    return _decode_text(b'"' + raw + b'"')


def _as_ids(ids: object) -> "array[int] | None":
    if not isinstance(ids, list):
        return None
    try:
        return array("I", ids)
    except (TypeError, OverflowError):
        return None

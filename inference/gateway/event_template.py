"""A short way for token events: one that differs from one read in full by its text and its counts alone is not decoded again.

An engine's token events of one answer are equal byte for byte but for the text, the token ids and the usage figures. From
one that was decoded and checked in full a template is learnt: the bytes before the text, and a pattern for what follows.
An event that fits it is, by JSON's own grammar, the same object with another text; its text is copied as it stands (still
escaped) between the bytes of what the client was sent for the first. Anything else takes the full way: answer.py.
"""

import re
from collections.abc import Callable
from functools import lru_cache

import msgspec

from inference.gateway.answer import AnswerReader
from inference.gateway.chunks import BadEvent, Chunk, decode_object
from inference.gateway.sse import SseSplitter

# A text of one character or more: an empty one is no output, which the full way knows.
_STRING = rb'"((?:[^"\\\x00-\x1f]++|\\["\\/bfnrt])++)"'
_TEXT_FIELD = re.compile(rb'"(?:content|text)": ?(?=' + _STRING + rb")")
_END = b"\n\n"
_PREFIX = b"data: "
# What stands for a text while a template is learnt; no engine writes it.
_MARK = "\u2063headway\u2063"
_MARK_JSON = msgspec.json.encode(_MARK)
_SHAPE = frozenset({"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "prompt_token_ids"})
_CHOICE = frozenset({"index", "delta", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_token_ids"})
MAX_LESSONS = 4


@lru_cache(maxsize=256)
def _pattern(tail: bytes) -> Callable[[bytes, int], re.Match[bytes] | None]:
    """Matches a text and what follows it; groups: the text, the token ids, the usage object."""
    before, has_usage, after = tail.partition(b'"usage":')
    if has_usage:
        numbers = re.sub(rb"\d+", rb"\\d{1,9}", re.escape(after[:-1]))
        return re.compile(_STRING + _ids(before) + b'"usage":(' + numbers + rb")\}" + _END).match
    return re.compile(_STRING + _ids(tail) + b"()" + _END).match


def _ids(tail: bytes) -> bytes:
    """Escaped, with any token ids in the place of these, as a group. Where there are none, none are expected."""
    head, found, rest = tail.partition(b'"token_ids":[')
    if not found:
        return re.escape(tail) + b"()"
    return re.escape(head) + rb'"token_ids":\[([0-9, ]*)\]' + re.escape(rest.partition(b"]")[2])


class EventTemplate:
    def __init__(self, head: bytes, tail: bytes, shown_head: bytes, shown_tail: bytes) -> None:
        self.head = head
        self.match = _pattern(tail)
        self.shown_head, self.shown_tail = shown_head, shown_tail


def learn(event: bytes, show: Callable[[Chunk], bytes | None]) -> EventTemplate | None:
    """A template from a token event; `show` is how the client is shown a decoded one. None: it is not of the plain kind."""
    field = _TEXT_FIELD.search(event)
    if field is None:
        return None
    head, text, tail = event[: field.end()], field[1], event[field.end() + len(field[1]) + 2 :]
    try:
        marked = decode_object(head + _MARK_JSON + tail)
        if not _is_plain(marked) or decode_object(event) != _with_text(marked, msgspec.json.decode(b'"' + text + b'"')):
            return None
        shown = show(marked)
    except (BadEvent, msgspec.DecodeError, UnicodeDecodeError):
        return None
    if shown is None or shown.count(_MARK_JSON) != 1 or not tail.endswith(b"}"):
        return None
    shown_head, shown_tail = shown.split(_MARK_JSON)
    return EventTemplate(_PREFIX + head, tail, shown_head + b'"', b'"' + shown_tail)


def _is_plain(chunk: Chunk) -> bool:
    """One choice with a text that goes on, and nothing that may differ from event to event but text, ids and usage."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not chunk.keys() <= _SHAPE:
        return False
    choice = choices[0]
    if not isinstance(choice, dict) or not choice.keys() <= _CHOICE or choice.get("index") != 0:
        return False
    if any(choice.get(name) is not None for name in ("logprobs", "finish_reason", "stop_reason", "prompt_token_ids")):
        return False
    delta = choice.get("delta")
    return choice.get("text") == _MARK if delta is None else delta == {"content": _MARK} and "text" not in choice


def _with_text(marked: Chunk, text: str) -> Chunk:
    choice = dict(marked["choices"][0])
    if "delta" in choice:
        choice["delta"] = {"content": text}
    else:
        choice["text"] = text
    return {**marked, "choices": [choice]}


class ShortWay:
    """Of one answer. `take` hands events to the client while nobody awaits them; `shown` returns them instead."""

    def __init__(
        self,
        reader: AnswerReader,
        splitter: SseSplitter,
        *,
        show: Callable[[Chunk], bytes],
        write: Callable[[bytes], bool],
        on_output: Callable[[], None],
    ) -> None:
        """`write` hands bytes to the client at once, or returns False and does nothing."""
        self._reader, self._splitter = reader, splitter
        self._show, self._write, self._on_output = show, write, on_output
        self._template: EventTemplate | None = None
        self._lessons = MAX_LESSONS

    @property
    def may_help(self) -> bool:
        return self._template is not None or self._lessons > 0

    def learn(self, event: bytes) -> None:
        """From an event that was taken the full way; a few times an answer at most."""
        if self._lessons and self._reader.has_output:
            self._lessons -= 1
            template = learn(event, self._shown)
            if template is not None:
                self._template = template

    def _shown(self, chunk: Chunk) -> bytes | None:
        shown = self._reader.as_shown(chunk)
        return None if shown is None else self._show(shown)

    def take(self, data: bytes) -> bytes:
        """Hand on the token events that come first and fit; returns the rest."""
        pieces, ids, usage, at = self._fit(data, 0)
        if not pieces or not self._write(b"".join(pieces)):
            return data
        self._on_output()
        self._reader.took_tokens(pieces[1::3], ids, usage)
        return data[at:]

    def shown(self, data: bytes, at: int) -> tuple[bytes, int]:
        """As the client is to be shown them, and where the rest begins."""
        pieces, ids, usage, at = self._fit(data, at)
        if pieces:
            self._reader.took_tokens(pieces[1::3], ids, usage)
        return b"".join(pieces), at

    def _fit(self, data: bytes, at: int) -> tuple[list[bytes], list[bytes], bytes, int]:
        """Three pieces an event (its text is the second), the ids of each, the last usage, and where the rest begins."""
        pieces: list[bytes] = []
        ids: list[bytes] = []
        usage = b""
        template = self._template
        if template is None or not self._splitter.is_between_events:
            return pieces, ids, usage, at
        head, match_rest = template.head, template.match
        while data.startswith(head, at):
            match = match_rest(data, at + len(head))
            if match is None:
                break
            text, event_ids, usage = match.groups()
            if not text.isascii() and not _is_utf8(text):
                break
            pieces += (template.shown_head, text, template.shown_tail)
            ids.append(event_ids)
            at = match.end()
        return pieces, ids, usage, at


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True

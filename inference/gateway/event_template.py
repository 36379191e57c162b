"""A short way for token events: one that differs from one read in full by its text and its counts alone is not decoded again.

An engine's token events of one answer are equal byte for byte but for the text, the token ids and the usage figures. From
one that was decoded and checked in full a template is learnt: the bytes before the text, and a pattern for what follows.
An event that fits it is, by JSON's own grammar, the same object with another text; its text is copied as it stands (still
escaped) between the bytes of what the client was sent for the first. Anything else takes the full way: answer.py. Who follows
which: short_way.py.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import msgspec

from inference.gateway.chunks import BadEvent, Chunk, decode_object

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


@lru_cache(maxsize=256)
def _patterns(tail: bytes) -> "tuple[re.Pattern[bytes], re.Pattern[bytes]]":
    """Of a text and what follows it: once, with groups (the text, the token ids, the usage object); and any number of times."""
    before, has_usage, after = tail.partition(b'"usage":')
    if has_usage:
        numbers = re.sub(rb"\d+", rb"\\d{1,9}", re.escape(after[:-1]))
        rest = _ids(before) + b'"usage":(' + numbers + rb")\}"
    else:
        rest = _ids(tail) + b"()"
    one = re.compile(_STRING + rest + _END)
    return one, re.compile(b"(?:" + one.pattern + b")++")


def _ids(tail: bytes) -> bytes:
    """Escaped, with any token ids in the place of these, as a group. Where there are none, none are expected."""
    head, found, rest = tail.partition(b'"token_ids":[')
    if not found:
        return re.escape(tail) + b"()"
    return re.escape(head) + rb'"token_ids":\[([0-9, ]*)\]' + re.escape(rest.partition(b"]")[2])


class Fitting(NamedTuple):
    """Events that fit, one after another."""

    texts: list[bytes]
    ids: list[bytes]
    usage: bytes
    """Of the last one; empty: it has none."""
    end: int
    """Where the rest begins."""


class EventTemplate:
    __slots__ = ("_run", "find_all", "head", "head_bytes", "match", "shown_between", "shown_head", "shown_tail")

    def __init__(self, head: bytes, tail: bytes, shown_head: bytes, shown_tail: bytes) -> None:
        self.head, self.head_bytes = head, len(head)
        one, self._run = _patterns(tail)
        self.match, self.find_all = one.match, one.findall
        self.shown_head, self.shown_tail = shown_head, shown_tail
        self.shown_between = shown_tail + shown_head

    def shown(self, texts: list[bytes]) -> bytes:
        """At least one event, as the client gets it."""
        return self.shown_head + self.shown_between.join(texts) + self.shown_tail

    def fit(self, data: bytes, at: int) -> Fitting:
        """Those that begin there."""
        return self._fit_many(data, at) or self._fit_each(data, at)

    def _fit_many(self, data: bytes, at: int) -> Fitting | None:
        """All that begin as this one does, if all of them fit: without a step for each. None: look at each."""
        head = self.head
        end = data.find(_END, data.rfind(head, at)) + len(_END)
        num_events = data.count(head, at, end)
        # An event begins where the data does or the one before ends: there are their heads, and nowhere else.
        if num_events < 2 or not data.startswith(head, at) or data.count(_END + head, at, end) != num_events - 1:
            return None
        bodies = data[at:end].replace(head, b"")
        if not is_utf8(bodies) or self._run.fullmatch(bodies) is None:
            return None
        found = self.find_all(bodies)
        return Fitting([text for text, _, _ in found], [ids for _, ids, _ in found], found[-1][2], end)

    def _fit_each(self, data: bytes, at: int) -> Fitting:
        texts: list[bytes] = []
        all_ids: list[bytes] = []
        usage = b""
        while data.startswith(self.head, at):
            match = self.match(data, at + self.head_bytes)
            if match is None or not is_utf8(match[1]):
                break
            text, ids, usage = match.groups()
            texts.append(text)
            all_ids.append(ids)
            at = match.end()
        return Fitting(texts, all_ids, usage, at)


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


def is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True

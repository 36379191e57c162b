"""Token events that fit a template (event_template.py) go from the engine's connection to the client's in one step.

No task wakes for them, and what is noted of them is noted by appending: it is looked at when somebody asks, a few times a
second or at the end. The order of events is kept because this is only asked while nothing waits to be taken the full way.
"""

from collections.abc import Callable

from inference.gateway.answer import AnswerReader
from inference.gateway.chunks import Chunk
from inference.gateway.event_template import EventTemplate, is_utf8, learn
from inference.gateway.sse import SseSplitter

MAX_LESSONS = 4
_LINE_END = b"\r\n"
_SIZE_LINE_BYTES = 8
"""Of a chunk of a megabyte, or less: a token event is no longer."""


class ShortWay:
    """Of one answer. `pass_framed` and `take` hand events to the client while nobody awaits them; `shown` returns them."""

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

    @property
    def is_ready(self) -> bool:
        """An event may begin here, and there is a template."""
        return self._template is not None and self._splitter.is_between_events

    def learn(self, event: bytes) -> None:
        """From an event that was taken the full way; a few times an answer at most."""
        if self._lessons and self._reader.has_output:
            self._lessons -= 1
            self._template = learn(event, self._shown) or self._template

    def _shown(self, chunk: Chunk) -> bytes | None:
        shown = self._reader.as_shown(chunk)
        return None if shown is None else self._show(shown)

    def pass_framed(self, data: bytes) -> bool:
        """Hand on the one event that is all of one HTTP chunk, if that is what `data` is. Only asked while `is_ready`.

        Every token of a stream goes through here: it is written out for the sake of what each call costs.
        """
        template = self._template
        at = data.find(_LINE_END, 0, _SIZE_LINE_BYTES) + 2
        if template is None or not data.startswith(template.head, at):
            return False
        match = template.match(data, at + template.head_bytes)
        if match is None:
            return False
        end = match.end()
        if end + 2 != len(data) or data[end:] != _LINE_END or data[: at - 2] != b"%x" % (end - at):
            return False
        text, ids, usage = match.groups()
        if not (text.isascii() or is_utf8(text)) or not self._write(template.shown_head + text + template.shown_tail):
            return False
        self._on_output()
        reader = self._reader
        if usage:
            reader.short_usage = usage
        else:
            reader.num_unmetered += 1
        if reader.continuation is not None:
            reader.continuation.took_one_short(text, ids)
        return True

    def take(self, data: bytes) -> bytes:
        """Hand on the token events that come first and fit; returns the rest."""
        if not self.is_ready or self._template is None:
            return data
        fitting = self._template.fit(data, 0)
        if not fitting.texts or not self._write(self._template.shown(fitting.texts)):
            return data
        self._on_output()
        self._reader.took_tokens(fitting)
        return data[fitting.end :]

    def shown(self, data: bytes, at: int) -> tuple[bytes, int]:
        """As the client is to be shown them, and where the rest begins."""
        if not self.is_ready or self._template is None:
            return b"", at
        fitting = self._template.fit(data, at)
        if not fitting.texts:
            return b"", at
        self._reader.took_tokens(fitting)
        return self._template.shown(fitting.texts), fitting.end

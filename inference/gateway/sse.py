"""Split a server-sent event stream into the data of its events, however its bytes are cut.

All three line ends (LF, CRLF, CR) and mixes of them are taken; comments, `event:`, `id:` and `retry:` lines are dropped;
several data lines of one event are joined by LF. An event is out as soon as its blank line is in.
"""

BOM = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """One event is larger than any an engine should send."""


class SseSplitter:
    def __init__(self, max_event_bytes: int = 16 * 1024 * 1024) -> None:
        self._max_event_bytes = max_event_bytes
        self._line = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        # The last byte was a CR that ended a line: an LF that follows belongs to it.
        self._skips_lf = False

    @property
    def is_between_events(self) -> bool:
        """Nothing of an event has come yet whose end has not."""
        return not (self._line or self._data or self._skips_lf)

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are whole now. Raises EventTooLarge."""
        if self._skips_lf and data:
            self._skips_lf = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._skips_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = (self._line + data if self._line else data).split(b"\n")
        self._line = lines.pop()
        events: list[bytes] = []
        for line in lines:
            self._take(line, events)
        if len(self._line) + self._data_bytes > self._max_event_bytes:
            raise EventTooLarge(f"an event is larger than {self._max_event_bytes} bytes")
        return events

    def flush(self) -> list[bytes]:
        """The stream has ended: the event that lacks only its blank line, if there is one."""
        events: list[bytes] = []
        if self._line:
            self._take(self._line, events)
            self._line = b""
        self._take(b"", events)
        return events

    def _take(self, line: bytes, events: list[bytes]) -> None:
        if line.startswith(BOM):
            line = line[len(BOM) :]
        if not line:
            if self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
                self._data_bytes = 0
        elif line.startswith(b"data:"):
            value = line[6:] if line[5:6] == b" " else line[5:]
            self._data.append(value)
            self._data_bytes += len(value)

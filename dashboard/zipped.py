"""A zip that is made while it is sent: no more of it is in memory than one of its files."""

import io
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime

Entry = tuple[str, datetime, bytes]
"""Name, time, content."""


class _Sink(io.RawIOBase):
    """Takes what ZipFile writes, which cannot go back in it."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]  # any buffer
        self._pieces.append(piece)
        return len(piece)

    def taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def zipped(entries: Iterable[Entry]) -> Iterator[bytes]:
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, at, content in entries:
            archive.writestr(_info(name, at), content)
            yield sink.taken()
    yield sink.taken()


def _info(name: str, at: datetime) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, at.timetuple()[:6])
    info.compress_type = zipfile.ZIP_DEFLATED
    return info

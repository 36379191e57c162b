"""The control state in a file, for a start with the database away. Holds key hashes and cache salts: mode 0600.

Magic, u32 CRC-32 of the rest, msgpack. Written beside and renamed, so that a reader sees a whole file or the one before.
"""

import struct
import zlib
from pathlib import Path

import msgspec
import structlog

from inference.gateway.segments import write_durably
from inference.gateway.state import Change

log = structlog.get_logger(__name__)

_MAGIC = b"headway-control-2\n"
_CRC = struct.Struct(">I")


class Anchor(msgspec.Struct, frozen=True, array_like=True):
    """The last row of the feed that was applied: how a reader tells whether this is still the same feed."""

    id: int
    kind: str
    key: str


class Snapshot(msgspec.Struct, frozen=True):
    anchor: Anchor
    rows: list[Change]


_decoder = msgspec.msgpack.Decoder(Snapshot)


def save_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Raises OSError."""
    body = msgspec.msgpack.encode(snapshot)
    write_durably(path, _MAGIC + _CRC.pack(zlib.crc32(body)) + body)


def load_snapshot(path: Path) -> Snapshot | None:
    """None when there is none, or none that can be read: it is a convenience, and the database has the truth."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("snapshot_ignored", file=str(path), reason=error.strerror)
        return None
    start = len(_MAGIC) + _CRC.size
    body = data[start:]
    if not data.startswith(_MAGIC) or len(data) < start or _CRC.unpack_from(data, len(_MAGIC))[0] != zlib.crc32(body):
        log.warning("snapshot_ignored", file=str(path), reason="not a whole snapshot of ours")
        return None
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        log.warning("snapshot_ignored", file=str(path), reason=str(error))
        return None

"""The journal's files: how a record is written, how a file is read, who owns a folder.

    <root>/<gateway>/lock            held with flock for the life of the process
    <root>/<gateway>/<n>.seg         records, appended
    <root>/<gateway>-<n>-<at>.corrupt   a stretch that could not be read, kept for a person
    <root>/<gateway>-<hash>.refused     a record that the ledger would not take, kept for a person

A record is u32 length, u32 CRC-32 (both big-endian, of the payload), payload: msgpack {"kind", "draft"}.
"""

import fcntl
import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from billing.services.ledger import UsageDraft
from headway.money import PICOS_A_MICRO

_HEADER = struct.Struct(">II")
# Ours are about 700 bytes. A longer "length" is not a length.
MAX_PAYLOAD_BYTES = 64 * 1024

Kind = Literal["open", "close", "probe"]


class _Payload(msgspec.Struct, frozen=True):
    kind: str
    draft: msgspec.Raw = msgspec.Raw(b"\xc0")  # nil


_encoder = msgspec.msgpack.Encoder()
_payload_decoder = msgspec.msgpack.Decoder(_Payload)
_draft_decoder = msgspec.msgpack.Decoder(UsageDraft)


class _InMicros(msgspec.Struct, frozen=True):
    """How a draft of the release before said its amount."""

    amount_micros: int | None = None


_micros_decoder = msgspec.msgpack.Decoder(_InMicros)


@dataclass(frozen=True, slots=True)
class BadStretch:
    """Bytes between two readable records, or up to the end."""

    offset: int
    data: bytes


@dataclass(slots=True)
class Parsed:
    opened: list[UsageDraft] = field(default_factory=list)
    closed: list[UsageDraft] = field(default_factory=list)
    bad: list[BadStretch] = field(default_factory=list)
    end: int = 0
    """Where reading stopped: the end, or where a record begins whose rest is not there (yet)."""


def encode(kind: Kind, draft: UsageDraft | None = None) -> bytes:
    """One record, header and all. What msgpack cannot carry (lone surrogates, numbers beyond 64 bits) is bent to fit."""
    try:
        payload = _encoder.encode({"kind": kind, "draft": draft})
    except (UnicodeEncodeError, OverflowError):
        assert draft is not None
        payload = _encoder.encode({"kind": kind, "draft": _bent(draft)})
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def _bent(draft: UsageDraft) -> UsageDraft:
    changes: dict[str, object] = {}
    for name, value in msgspec.structs.asdict(draft).items():
        if isinstance(value, str):
            changes[name] = value.encode("utf-8", "replace").decode()
        elif isinstance(value, int):
            changes[name] = max(-(2**63), min(value, 2**63 - 1))
    return msgspec.structs.replace(draft, **changes)


def parse(data: bytes, *, is_whole: bool) -> Parsed:
    """Read records until the end. `is_whole`: nothing follows this data, so a record cut short is a torn tail.

    After a record that cannot be read, reading goes on at the next that can; what lies between is a BadStretch. A torn
    tail (a write cut by a crash; zeros that a file system left) was never acknowledged and is passed over.
    """
    parsed = Parsed()
    while parsed.end < len(data):
        at = parsed.end
        end = _record_end(data, at)
        if end is not None:
            if not _take(data[at + _HEADER.size : end], parsed):
                parsed.bad.append(BadStretch(at, data[at:end]))
            parsed.end = end
            continue
        is_cut = _is_cut(data, at)
        if is_cut and not is_whole:
            break
        next_at = _find_record(data, at + 1)
        if next_at == len(data) and (is_cut or not data[at:].strip(b"\0")):
            break
        parsed.bad.append(BadStretch(at, data[at:next_at]))
        parsed.end = next_at
    return parsed


def _record_end(data: bytes, at: int) -> int | None:
    """Where the record that begins here ends, if there is one and its CRC is right."""
    if at + _HEADER.size > len(data):
        return None
    length, crc = _HEADER.unpack_from(data, at)
    end = at + _HEADER.size + length
    if not 0 < length <= MAX_PAYLOAD_BYTES or end > len(data) or zlib.crc32(data[at + _HEADER.size : end]) != crc:
        return None
    return int(end)


def _is_cut(data: bytes, at: int) -> bool:
    if at + _HEADER.size > len(data):
        return True
    length = _HEADER.unpack_from(data, at)[0]
    return bool(0 < length <= MAX_PAYLOAD_BYTES and at + _HEADER.size + length > len(data))


def _find_record(data: bytes, at: int) -> int:
    while at < len(data) and _record_end(data, at) is None:
        at += 1
    return at


def _take(payload: bytes, parsed: Parsed) -> bool:
    """False: the payload is whole but not one of ours. A kind that a newer release writes is passed over."""
    try:
        entry = _payload_decoder.decode(payload)
        if entry.kind == "open":
            parsed.opened.append(_read_draft(entry.draft))
        elif entry.kind == "close":
            parsed.closed.append(_read_draft(entry.draft))
    except msgspec.MsgspecError:
        return False
    return True


def _read_draft(raw: msgspec.Raw) -> UsageDraft:
    """Raises MsgspecError."""
    draft = _draft_decoder.decode(raw)
    if draft.amount_picos is None and draft.price_version:
        micros = _micros_decoder.decode(raw).amount_micros
        if micros is not None:
            return msgspec.structs.replace(draft, amount_picos=micros * PICOS_A_MICRO)
    return draft


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.seg"


def segments_of(folder: Path) -> list[tuple[int, Path]]:
    """A folder's segments, oldest first."""
    return sorted((int(path.stem), path) for path in folder.glob("*.seg") if path.stem.isdigit())


def sync_folder(folder: Path) -> None:
    """Make names made or removed in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 whole or not at all. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


class FolderLock:
    """Ownership of one gateway's folder: a flock, so that it ends with the process however that ends."""

    def __init__(self, folder: Path, fd: int) -> None:
        self._folder = folder
        self._fd = fd

    @classmethod
    def take(cls, folder: Path) -> "FolderLock | None":
        """None: someone else holds it, or the folder has gone. Raises OSError when the disk does not work."""
        path = folder / "lock"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one who held it before us may have removed the file, and what we hold is then nothing.
            if path.stat().st_ino == os.fstat(fd).st_ino:
                return cls(folder, fd)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(fd)
        return None

    def release(self) -> None:
        os.close(self._fd)

    def remove_folder(self) -> None:
        """Segments first, oldest first; the lock last. What others put there stays, and the folder with it."""
        for _, path in segments_of(self._folder):
            path.unlink(missing_ok=True)
        (self._folder / "lock").unlink(missing_ok=True)
        try:
            self._folder.rmdir()
        except OSError as error:
            if not self._folder.exists():
                return
            raise FolderNotEmpty(str(self._folder)) from error


class FolderNotEmpty(OSError):
    """Look at the folder: something lies in it that the journal did not write."""

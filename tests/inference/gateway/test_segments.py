import fcntl
import struct
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.segments import FolderLock, FolderNotEmpty, encode, parse, segments_of, write_durably
from tests.inference.gateway.usage_drafts import draft

RECORDS = [encode("open", draft("r0")), encode("close", draft("r0", "done")), encode("probe"), encode("open", draft("r1"))]
WHOLE = b"".join(RECORDS)


def ids(data: bytes, *, is_whole: bool = True) -> list[str]:
    parsed = parse(data, is_whole=is_whole)
    return [entry.request_id for entry in parsed.opened + parsed.closed]


def test_what_was_written_is_read() -> None:
    parsed = parse(WHOLE, is_whole=True)
    assert parsed.opened == [draft("r0"), draft("r1")]
    assert parsed.closed == [draft("r0", "done")]
    assert (parsed.bad, parsed.end) == ([], len(WHOLE))


@given(cut=st.integers(0, len(WHOLE)))
def test_a_torn_tail_loses_the_last_record_and_no_other(cut: int) -> None:
    parsed = parse(WHOLE[:cut], is_whole=True)
    ends = [len(b"".join(RECORDS[:number])) for number in range(5)]
    assert parsed.bad == []
    assert parsed.end == max(end for end in ends if end <= cut)


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 5000])
def test_zeros_that_a_file_system_left_after_a_power_cut_are_a_torn_tail(tail: bytes) -> None:
    parsed = parse(WHOLE + tail, is_whole=True)
    assert (parsed.bad, parsed.end) == ([], len(WHOLE))


@given(at=st.integers(0, len(RECORDS[0]) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_record_costs_that_record_only_and_its_bytes_are_kept(at: int, bit: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[at] ^= 1 << bit
    parsed = parse(bytes(damaged), is_whole=True)
    assert [stretch.data for stretch in parsed.bad] == [bytes(damaged[: len(RECORDS[0])])]
    assert [entry.request_id for entry in parsed.closed] == ["r0"]
    assert [entry.request_id for entry in parsed.opened] == ["r1"]


def test_a_damaged_last_record_is_kept_too() -> None:
    damaged = WHOLE[:-1] + bytes([WHOLE[-1] ^ 1])
    (stretch,) = parse(damaged, is_whole=True).bad
    assert stretch.offset == len(WHOLE) - len(RECORDS[-1])


def test_garbage_after_the_records_is_kept() -> None:
    (stretch,) = parse(WHOLE + b"\xff" * 100, is_whole=True).bad
    assert stretch.data == b"\xff" * 100


def test_a_record_that_is_not_all_there_yet_is_left_for_later() -> None:
    parsed = parse(WHOLE[:-1], is_whole=False)
    assert parsed.bad == []
    assert parsed.end == len(WHOLE) - len(RECORDS[-1])


def test_a_whole_record_that_is_not_ours_is_kept_and_a_kind_of_a_newer_release_passed_over() -> None:
    def framed(payload: bytes) -> bytes:
        return struct.pack(">II", len(payload), zlib.crc32(payload)) + payload

    newer = framed(msgspec.msgpack.encode({"kind": "progress", "tokens": 5}))
    foreign = framed(msgspec.msgpack.encode({"kind": "close", "draft": {"request_id": 5}}))
    parsed = parse(newer + foreign + WHOLE, is_whole=True)
    assert [stretch.data for stretch in parsed.bad] == [foreign]
    assert len(parsed.opened) == 2


def test_what_msgpack_cannot_carry_is_written_all_the_same() -> None:
    (read,) = parse(encode("close", draft("r0", model="a\ud800b", prompt_tokens=2**70)), is_whole=True).closed
    assert (read.model, read.prompt_tokens) == ("a?b", 2**63 - 1)


def test_a_folder_has_one_owner_also_within_a_process(tmp_path: Path) -> None:
    lock = FolderLock.take(tmp_path)
    assert lock is not None
    assert FolderLock.take(tmp_path) is None
    lock.release()
    again = FolderLock.take(tmp_path)
    assert again is not None
    again.release()


def test_a_folder_that_has_gone_cannot_be_owned(tmp_path: Path) -> None:
    assert FolderLock.take(tmp_path / "gone") is None


def test_a_lock_file_that_was_removed_while_we_waited_for_it_is_no_ownership(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def after_its_owner_removed_it(fd: int, operation: int) -> None:
        (tmp_path / "lock").unlink()
        (tmp_path / "lock").touch()  # and somebody else made it anew
        flock(fd, operation)

    monkeypatch.setattr("inference.gateway.segments.fcntl.flock", after_its_owner_removed_it)
    assert FolderLock.take(tmp_path) is None


def test_removing_a_folder_takes_what_the_journal_wrote_and_nothing_else(tmp_path: Path) -> None:
    for name in ("g1", "g2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "00000001.seg").write_bytes(WHOLE)
    (tmp_path / "g2" / "notes.txt").write_text("a person's")
    for name in ("g1", "g2"):
        lock = FolderLock.take(tmp_path / name)
        assert lock is not None
        if name == "g1":
            lock.remove_folder()
        else:
            with pytest.raises(FolderNotEmpty):
                lock.remove_folder()
        lock.release()
    assert [path.name for path in tmp_path.iterdir()] == ["g2"]
    assert [path.name for path in (tmp_path / "g2").iterdir()] == ["notes.txt"]


def test_segments_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("00000010.seg", "00000009.seg", "lock", "x.seg"):
        (tmp_path / name).touch()
    assert [number for number, _ in segments_of(tmp_path)] == [9, 10]


def test_a_durable_file_is_private_and_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"one")
    write_durably(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("kind", ["open", "close"])
def test_a_segment_of_the_release_before_says_its_amounts_in_micros(kind: str) -> None:
    fields = msgspec.structs.asdict(draft("old", "done", price_version="3"))
    del fields["amount_picos"], fields["discount_percent"]
    payload = msgspec.msgpack.encode({"kind": kind, "draft": fields | {"amount_micros": 13}})
    data = struct.pack(">II", len(payload), zlib.crc32(payload)) + payload + encode("close", draft("new", amount_picos=5))
    parsed = parse(data, is_whole=True)
    assert {each.request_id: each.amount_picos for each in (*parsed.opened, *parsed.closed)} == {"old": 13_000_000, "new": 5}
    assert not parsed.bad


def test_a_draft_of_the_release_before_that_had_no_price_still_has_none() -> None:
    fields = msgspec.structs.asdict(draft("old", "done")) | {"amount_micros": None}
    del fields["amount_picos"]
    payload = msgspec.msgpack.encode({"kind": "close", "draft": fields})
    (read,) = parse(struct.pack(">II", len(payload), zlib.crc32(payload)) + payload, is_whole=True).closed
    assert read.amount_picos is None

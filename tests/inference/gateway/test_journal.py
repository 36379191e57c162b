import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.errors import ConfigurationError
from inference.gateway.drain import DrainTunables
from inference.gateway.journal import Journal, JournalTunables, JournalUnavailable
from inference.gateway.segments import parse, segments_of
from tests.inference.gateway.usage_drafts import MemoryLedger, draft
from tests.inference.gateway.waiting import eventually

TUNABLES = JournalTunables(
    max_segment_bytes=4096,
    sync_delay_s=0.001,
    retry_s=0.01,
    stop_timeout_s=5.0,
    drain=DrainTunables(interval_s=0.005, adopt_interval_s=0.02, max_backoff_s=0.02),
)

Make = Callable[..., Journal]


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


@pytest.fixture
def make(tmp_path: Path, ledger: MemoryLedger) -> Iterator[Make]:
    made: list[Journal] = []

    def build(gateway: str = "g1") -> Journal:
        made.append(Journal(tmp_path, gateway, TUNABLES, commit=ledger))
        return made[-1]

    yield build
    for journal in made:
        if journal._syncer.is_alive():
            journal.stop()


class BrokenDisk:
    """Stands in for `os` in the journal's module; breaks what it is told to."""

    def __init__(self) -> None:
        self.room_bytes = 2**40
        self.fails_to_sync = False
        self.fails_to_cut = False
        self.is_full_after_next_open = False
        self.num_syncs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def write(self, fd: int, data: bytes) -> int:
        if self.room_bytes <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(fd, data[: self.room_bytes])
        self.room_bytes -= written
        return written

    def open(self, path: Path, flags: int, mode: int) -> int:
        fd = os.open(path, flags, mode)
        if self.is_full_after_next_open:
            self.room_bytes = 0
        return fd

    def ftruncate(self, fd: int, length: int) -> None:
        if self.fails_to_cut:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.ftruncate(fd, length)

    def fsync(self, fd: int) -> None:
        self.num_syncs += 1
        if self.fails_to_sync:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> BrokenDisk:
    broken = BrokenDisk()
    monkeypatch.setattr("inference.gateway.journal.os", broken)
    return broken


def on_disk(folder: Path) -> tuple[set[str], set[str]]:
    """Ids of the requests opened and closed in a folder's segments."""
    opened: set[str] = set()
    closed: set[str] = set()
    for _, path in segments_of(folder):
        parsed = parse(path.read_bytes(), is_whole=True)
        assert parsed.bad == []
        opened |= {entry.request_id for entry in parsed.opened}
        closed |= {entry.request_id for entry in parsed.closed}
    return opened, closed


def test_both_records_are_in_the_file_when_the_calls_return(make: Make, ledger: MemoryLedger, tmp_path: Path) -> None:
    ledger.is_away = True
    journal = make()
    journal.open(draft("r1"))
    assert on_disk(tmp_path / "g1") == ({"r1"}, set())
    journal.close(draft("r1", "done"))
    assert on_disk(tmp_path / "g1") == ({"r1"}, {"r1"})
    assert journal.depth() == 1


def test_finished_requests_reach_the_ledger_and_a_clean_stop_leaves_nothing(
    make: Make, ledger: MemoryLedger, tmp_path: Path
) -> None:
    journal = make()
    for number in range(50):
        journal.open(draft(f"r{number}"))
        journal.close(draft(f"r{number}", "done", prompt_tokens=number))
    eventually(lambda: journal.depth() == 0, what="draining")
    assert ledger.records["r7"].prompt_tokens == 7
    journal.stop()
    assert len(ledger.records) == 50
    assert list(tmp_path.iterdir()) == []


def test_the_journal_says_which_gateway_and_counts_requests_up(make: Make, ledger: MemoryLedger) -> None:
    journal = make()
    for name in ("r1", "r2"):
        journal.open(draft(name))
    for name in ("r2", "r1", "never_opened"):
        journal.close(draft(name, "done", gateway="forged", journal_sequence=99))
    eventually(lambda: journal.depth() == 0)
    assert [(r.gateway, r.journal_sequence) for _, r in sorted(ledger.records.items())] == [("g1", 3), ("g1", 1), ("g1", 2)]


def test_every_write_is_made_durable_within_50_ms(make: Make, disk: BrokenDisk) -> None:
    journal = make()
    for number in range(3):
        before = disk.num_syncs
        journal.open(draft(f"r{number}"))
        started_s = time.monotonic()
        eventually(lambda before=before: disk.num_syncs > before, what="fsync")  # type: ignore[misc]
        # What is promised is 50 ms; the rest is for a test machine that does other things.
        assert time.monotonic() - started_s < 1.0


def test_a_long_running_request_outlives_its_segment_and_old_segments_go(
    make: Make, ledger: MemoryLedger, tmp_path: Path
) -> None:
    journal = make()
    journal.open(draft("long"))
    for number in range(60):
        journal.open(draft(f"r{number}"))
        journal.close(draft(f"r{number}", "done"))
        if number % 5 == 0:
            eventually(lambda: journal.depth() == 0)
    eventually(lambda: segments_of(tmp_path / "g1")[0][0] >= 5, what="dropping the first segments")
    eventually(lambda: len(segments_of(tmp_path / "g1")) == 1, what="dropping all but the current segment")
    assert "long" in on_disk(tmp_path / "g1")[0]
    journal.close(draft("long", "done"))
    eventually(lambda: ledger.ends().get("long") == "done")


def test_segments_are_kept_while_the_database_is_away_and_drained_when_it_is_back(
    make: Make, ledger: MemoryLedger, tmp_path: Path
) -> None:
    ledger.is_away = True
    journal = make()
    for number in range(40):
        journal.open(draft(f"r{number}"))
        journal.close(draft(f"r{number}", "done"))
        if number % 10 == 0:
            time.sleep(0.005)  # let it rotate in between, if it can; correctness does not hang on it
    eventually(lambda: len(segments_of(tmp_path / "g1")) > 1, what="rotation")
    assert journal.depth() == 40
    assert len(on_disk(tmp_path / "g1")[1]) == 40
    ledger.is_away = False
    eventually(lambda: journal.depth() == 0, what="draining")
    assert set(ledger.ends().values()) == {"done"}
    assert len(ledger.records) == 40
    eventually(lambda: len(segments_of(tmp_path / "g1")) == 1)


def test_stopping_with_the_database_away_leaves_the_records_to_the_next(
    make: Make, ledger: MemoryLedger, tmp_path: Path
) -> None:
    ledger.is_away = True
    journal = make()
    journal.open(draft("r1"))
    journal.close(draft("r1", "done"))
    journal.stop()
    assert on_disk(tmp_path / "g1")[1] == {"r1"}
    ledger.is_away = False
    make("g2")
    eventually(lambda: not (tmp_path / "g1").exists(), what="adoption")
    assert ledger.ends() == {"r1": "done"}


def test_stopping_with_a_request_open_leaves_it_to_be_lost(make: Make, ledger: MemoryLedger, tmp_path: Path) -> None:
    journal = make()
    journal.open(draft("r1"))
    journal.stop()
    make("g2")
    eventually(lambda: ledger.ends() == {"r1": "gateway_lost"}, what="adoption")


class TestDiskFull:
    def test_new_work_is_refused_and_taken_again_when_a_write_works(self, make: Make, disk: BrokenDisk) -> None:
        journal = make()
        disk.room_bytes = 0
        with pytest.raises(JournalUnavailable) as refused:
            journal.open(draft("r1"))
        assert (refused.value.http_status, refused.value.code) == (503, "journal_unavailable")
        assert refused.value.retry_after_s
        assert not journal.is_healthy
        with pytest.raises(JournalUnavailable):
            journal.open(draft("r2"))
        disk.room_bytes = 2**40
        eventually(lambda: journal.is_healthy, what="recovery")
        journal.open(draft("r1"))

    def test_a_final_record_is_kept_in_memory_and_written_later(
        self, make: Make, disk: BrokenDisk, ledger: MemoryLedger, tmp_path: Path
    ) -> None:
        ledger.is_away = True
        journal = make()
        journal.open(draft("r1"))
        disk.room_bytes = 0
        journal.close(draft("r1", "done"))
        assert not journal.is_healthy
        assert journal.depth() == 1
        disk.room_bytes = 2**40
        eventually(lambda: journal.is_healthy, what="recovery")
        assert on_disk(tmp_path / "g1") == ({"r1"}, {"r1"})
        assert journal.depth() == 1
        ledger.is_away = False
        eventually(lambda: journal.depth() == 0)
        assert ledger.ends() == {"r1": "done"}

    def test_a_final_record_that_the_disk_never_took_reaches_the_ledger_all_the_same(
        self, make: Make, disk: BrokenDisk, ledger: MemoryLedger
    ) -> None:
        journal = make()
        journal.open(draft("r1"))
        disk.room_bytes = 0
        journal.close(draft("r1", "done"))
        eventually(lambda: journal.depth() == 0, what="draining from memory")
        assert ledger.ends() == {"r1": "done"}
        assert not journal.is_healthy

    def test_a_record_of_which_only_a_part_fitted_is_cut_off_again(
        self, make: Make, disk: BrokenDisk, ledger: MemoryLedger, tmp_path: Path
    ) -> None:
        ledger.is_away = True
        journal = make()
        journal.open(draft("r1"))
        disk.room_bytes = 10
        with pytest.raises(JournalUnavailable):
            journal.open(draft("r2"))
        disk.room_bytes = 2**40
        eventually(lambda: journal.is_healthy, what="recovery")
        journal.close(draft("r1", "done"))
        assert on_disk(tmp_path / "g1") == ({"r1"}, {"r1"})

    def test_a_file_that_cannot_be_cut_is_left_and_another_begun(
        self, make: Make, disk: BrokenDisk, ledger: MemoryLedger, tmp_path: Path
    ) -> None:
        ledger.is_away = True
        journal = make()
        journal.open(draft("r1"))
        disk.fails_to_cut = True
        disk.room_bytes = 10
        with pytest.raises(JournalUnavailable):
            journal.open(draft("r2"))
        disk.room_bytes = 2**40
        eventually(lambda: journal.is_healthy, what="recovery")
        journal.close(draft("r1", "done"))
        # The open record stands in the second, and the first held nothing else.
        eventually(lambda: [number for number, _ in segments_of(tmp_path / "g1")] == [2], what="dropping the first")
        assert on_disk(tmp_path / "g1") == ({"r1"}, {"r1"})
        ledger.is_away = False
        eventually(lambda: journal.depth() == 0)
        assert ledger.ends() == {"r1": "done"}
        assert journal.num_corrupt == 0

    def test_a_segment_stays_until_its_open_requests_stand_in_the_next(
        self, make: Make, disk: BrokenDisk, ledger: MemoryLedger, tmp_path: Path
    ) -> None:
        journal = make()
        journal.open(draft("long"))
        disk.is_full_after_next_open = True
        while journal.is_healthy:  # until the segment is long enough and the next one finds the disk full
            journal.close(draft("short", "done"))
            time.sleep(0.001)
        eventually(lambda: journal.depth() == 0, what="draining")
        assert "long" in on_disk(tmp_path / "g1")[0]
        assert [number for number, _ in segments_of(tmp_path / "g1")] == [1, 2]
        disk.is_full_after_next_open = False
        disk.room_bytes = 2**40
        eventually(lambda: [number for number, _ in segments_of(tmp_path / "g1")] == [2], what="dropping the first")
        assert on_disk(tmp_path / "g1")[0] == {"long"}

    def test_a_disk_that_does_not_sync_is_unhealthy_until_another_file_does(
        self, make: Make, disk: BrokenDisk, ledger: MemoryLedger, tmp_path: Path
    ) -> None:
        journal = make()
        disk.fails_to_sync = True
        journal.open(draft("r1"))
        eventually(lambda: not journal.is_healthy, what="noticing")
        disk.fails_to_sync = False
        eventually(lambda: journal.is_healthy, what="recovery")
        eventually(lambda: [number for number, _ in segments_of(tmp_path / "g1")][-1] >= 2)
        assert "r1" in on_disk(tmp_path / "g1")[0]
        journal.close(draft("r1", "done"))
        eventually(lambda: ledger.ends() == {"r1": "done"})


def test_a_folder_that_another_process_holds_is_a_clear_mistake(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()
    monkeypatch.setattr("inference.gateway.journal.CLAIM_WITHIN_S", 0.05)
    with pytest.raises(ConfigurationError, match="another process"):
        make()


def test_a_disk_that_cannot_be_written_at_the_start_is_a_clear_mistake(make: Make, tmp_path: Path) -> None:
    (tmp_path / "g1").write_text("a file where the folder should be")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        make()


def test_after_the_stop_nothing_is_written_into_another_s_file(make: Make) -> None:
    journal = make()
    journal.stop()
    with pytest.raises(JournalUnavailable):
        journal.open(draft("r1"))
    journal.close(draft("r1", "done"))

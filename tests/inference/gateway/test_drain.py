import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from django.db import DataError, OperationalError, connection

from billing.models import UsageRecord
from billing.services.ledger import UsageDraft
from inference.gateway.drain import Drainer, DrainTunables, LedgerAway, LedgerWriter, Tail, commit_durably
from inference.gateway.segments import FolderLock, encode, parse
from tests.inference.gateway.usage_drafts import MemoryLedger, draft
from tests.inference.gateway.waiting import eventually

TUNABLES = DrainTunables(interval_s=0.005, adopt_interval_s=0.01, max_backoff_s=0.02)


class NothingOfOurOwn:
    def tails(self) -> list[Tail]:
        return []

    def consumed(self, number: int, offset: int, *, finals: int) -> None: ...

    def unwritten(self) -> list[UsageDraft]:
        return []

    def unwritten_committed(self, drafts: Sequence[UsageDraft]) -> None: ...


@pytest.fixture
def ledger() -> MemoryLedger:
    return MemoryLedger()


@pytest.fixture
def drainer(tmp_path: Path, ledger: MemoryLedger) -> Drainer:
    return Drainer(tmp_path, "me", NothingOfOurOwn(), TUNABLES, ledger)


def dead_gateway(root: Path, *segments: bytes, name: str = "dead") -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "lock").touch()
    for number, data in enumerate(segments, start=1):
        (folder / f"{number:08d}.seg").write_bytes(data)
    return folder


def opened(*names: str) -> bytes:
    return b"".join(encode("open", draft(name, gateway="dead")) for name in names)


def closed(*names: str, end_state: str = "done") -> bytes:
    return b"".join(encode("close", draft(name, end_state, prompt_tokens=9, gateway="dead")) for name in names)


class TestAdoption:
    def test_final_records_are_kept_and_the_others_are_lost(
        self, tmp_path: Path, drainer: Drainer, ledger: MemoryLedger
    ) -> None:
        folder = dead_gateway(tmp_path, opened("r1", "r2") + closed("r1"), opened("r3") + closed("r2", end_state="engine_died"))
        before_s = time.time()
        drainer.adopt_all()
        assert ledger.ends() == {"r1": "done", "r2": "engine_died", "r3": "gateway_lost"}
        lost = ledger.records["r3"]
        assert (lost.prompt_tokens, lost.usage_source, lost.gateway) == (0, "none", "dead")
        assert before_s <= lost.ended_at_s <= time.time()
        assert not folder.exists()

    def test_a_final_record_wins_wherever_it_stands(self, tmp_path: Path, drainer: Drainer, ledger: MemoryLedger) -> None:
        dead_gateway(tmp_path, closed("r1") + opened("r1"), opened("r1"))
        drainer.adopt_all()
        assert ledger.ends() == {"r1": "done"}

    def test_a_living_gateway_s_folder_is_left_alone(self, tmp_path: Path, drainer: Drainer, ledger: MemoryLedger) -> None:
        folder = dead_gateway(tmp_path, opened("r1"))
        lock = FolderLock.take(folder)
        assert lock is not None
        drainer.adopt_all()
        assert ledger.records == {}
        lock.release()
        drainer.adopt_all()
        assert ledger.ends() == {"r1": "gateway_lost"}

    def test_nothing_is_removed_before_the_ledger_has_it(self, tmp_path: Path, drainer: Drainer, ledger: MemoryLedger) -> None:
        folder = dead_gateway(tmp_path, opened("r1", "r2") + closed("r1"))
        ledger.is_away = True
        with pytest.raises(LedgerAway):
            drainer.adopt_all()
        assert (folder / "00000001.seg").exists()
        ledger.is_away = False
        drainer.adopt_all()
        assert ledger.ends() == {"r1": "done", "r2": "gateway_lost"}
        assert not folder.exists()

    def test_a_torn_tail_is_passed_over_and_a_damaged_record_kept_for_a_person(
        self, tmp_path: Path, drainer: Drainer, ledger: MemoryLedger
    ) -> None:
        first = bytearray(opened("r1") + closed("r1"))
        first[20] ^= 255
        dead_gateway(tmp_path, bytes(first) + opened("r2") + opened("torn")[:-3])
        drainer.adopt_all()
        assert ledger.ends() == {"r1": "done", "r2": "gateway_lost"}
        assert drainer.num_corrupt == 1
        (kept,) = tmp_path.glob("dead-00000001-0.corrupt")
        assert kept.read_bytes() == bytes(first[: len(opened("r1"))])

    def test_two_who_adopt_at_once_write_each_record_once(self, tmp_path: Path) -> None:
        committed: list[str] = []
        lock = threading.Lock()

        def commit(drafts: list[UsageDraft]) -> None:
            with lock:
                committed.extend(entry.request_id for entry in drafts)

        for number in range(30):
            dead_gateway(tmp_path, opened(f"a{number}", f"b{number}") + closed(f"a{number}"), name=f"dead{number}")
        drainers = [Drainer(tmp_path, f"me{n}", NothingOfOurOwn(), TUNABLES, commit) for n in range(3)]
        threads = [threading.Thread(target=drainer.adopt_all) for drainer in drainers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(committed) == sorted(f"{kind}{number}" for kind in "ab" for number in range(30))
        assert list(tmp_path.iterdir()) == []

    def test_one_folder_that_cannot_be_read_does_not_keep_the_others_waiting(
        self, tmp_path: Path, drainer: Drainer, ledger: MemoryLedger
    ) -> None:
        odd = dead_gateway(tmp_path, opened("r0"), name="a-odd")
        (odd / "00000002.seg").mkdir()
        dead_gateway(tmp_path, opened("r1"), name="b")
        drainer.adopt_all()
        assert ledger.ends().get("r1") == "gateway_lost"
        assert odd.exists()

    def test_the_thread_adopts_by_itself_and_survives_a_database_that_is_away(
        self, tmp_path: Path, drainer: Drainer, ledger: MemoryLedger
    ) -> None:
        ledger.is_away = True
        dead_gateway(tmp_path, opened("r1"))
        drainer.start()
        time.sleep(0.05)
        ledger.is_away = False
        eventually(lambda: ledger.ends() == {"r1": "gateway_lost"})
        assert drainer.stop(5.0)


class TestLedgerWriter:
    def test_one_record_that_is_refused_does_not_block_the_others(self, tmp_path: Path) -> None:
        taken: list[str] = []

        def commit(drafts: list[UsageDraft]) -> None:
            if any(entry.request_id in {"bad1", "bad2"} for entry in drafts):
                raise DataError("value too long")
            taken.extend(entry.request_id for entry in drafts)

        writer = LedgerWriter(tmp_path, commit, batch_records=16)
        names = [f"r{number}" for number in range(40)]
        names[7] = "bad1"
        names[23] = "bad2"
        writer.write([draft(name, "done", gateway="g1") for name in names])
        assert sorted(taken) == sorted(set(names) - {"bad1", "bad2"})
        assert writer.num_refused == 2
        kept = [parse(path.read_bytes(), is_whole=True).closed[0].request_id for path in tmp_path.glob("g1-*.refused")]
        assert sorted(kept) == ["bad1", "bad2"]

    def test_a_database_that_is_away_puts_nothing_aside(self, tmp_path: Path) -> None:
        def commit(_drafts: list[UsageDraft]) -> None:
            raise OperationalError("server closed the connection")

        with pytest.raises(LedgerAway):
            LedgerWriter(tmp_path, commit, batch_records=10).write([draft("r1", "done")])
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.django_db(transaction=True)
    def test_the_real_ledger_refuses_the_one_that_breaks_a_rule_and_takes_the_rest(self, tmp_path: Path) -> None:
        writer = LedgerWriter(tmp_path, commit_durably, batch_records=50)
        bad = [
            draft("bad1", "done", tenant_id="nobody"),
            draft("bad2", "done", total_ms=-5),
            draft("bad3", "done", attempts=2**66),
        ]
        writer.write([*(draft(f"r{number}", "done") for number in range(10)), *bad])
        assert sorted(UsageRecord.objects.values_list("request_id", flat=True)) == sorted(f"r{number}" for number in range(10))
        assert writer.num_refused == 3
        assert len(list(tmp_path.glob("*.refused"))) == 3


@pytest.fixture
def durability() -> Iterator[None]:
    yield
    connection.close()  # the pragma belongs to the connection


@pytest.mark.django_db(transaction=True)
def test_a_commit_is_on_disk_whatever_the_database_s_default_is(durability: None) -> None:
    commit_durably([draft("r1", "done")])
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous" if connection.vendor == "sqlite" else "SHOW synchronous_commit")
        assert cursor.fetchone()[0] in {2, "on"}
    assert UsageRecord.objects.count() == 1

"""The parent of several workers, over stubs: who is started, replaced, renewed, given up and killed."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from headway.processes import is_running
from inference.gateway import processes
from inference.gateway.processes import Parent, ProcessTunables
from inference.gateway.worker_metrics import SummedMetrics
from tests.inference.gateway.waiting import eventually

STUB = Path(__file__).with_name("worker_stub.py")


def _stub(folder: Path, place: int, listening: int, channel: int) -> list[str]:
    return [sys.executable, str(STUB), str(folder), str(place), str(listening), str(channel)]


class Running:
    """A parent in the main thread, as it needs for signals; `script` runs beside it and ends it."""

    def __init__(self, folder: Path, *, count: int, ready_s: float, num_companions: int = 0) -> None:
        self.folder, self.told = folder, 0
        self.beside = folder / "beside"
        self.beside.mkdir()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.parent = Parent(
            listening=[self.listening] * count,
            command=lambda place, listening, channel: _stub(folder, place, listening, channel),
            metrics=SummedMetrics(),
            tunables=ProcessTunables(ready_s=ready_s, drain_s=0.5),
            on_listening=self._tell,
            companions=[partial(_stub, self.beside, place, 0) for place in range(num_companions)],
        )
        self.problem: BaseException | None = None

    def _tell(self) -> None:
        self.told += 1

    def started(self, folder: Path | None = None) -> list[tuple[int, int]]:
        """(place, pid) of each worker so far, in order; of each companion, with their folder."""
        file = (folder or self.folder) / "started"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(place), int(pid)) for place, pid in (line.split() for line in lines)]

    def switch(self, name: str) -> None:
        (self.folder / name).touch()

    def signal(self, number: signal.Signals) -> None:
        os.kill(os.getpid(), number)

    def run(self, script: Callable[[], None]) -> int:
        """The parent's exit code, once the script has run; raises what the script raised."""

        def guarded() -> None:
            try:
                script()
            except BaseException as problem:  # noqa: BLE001  raised again below, in the test's thread
                self.problem = problem
            self.signal(signal.SIGTERM)

        thread = threading.Thread(target=guarded)
        thread.start()
        code = self.parent.run()
        thread.join()
        if self.problem is not None:
            raise self.problem
        return code


@contextmanager
def parent(folder: Path, *, count: int = 2, ready_s: float = 10.0, num_companions: int = 0) -> Iterator[Running]:
    running = Running(folder, count=count, ready_s=ready_s, num_companions=num_companions)
    with running.listening:
        yield running


def test_all_places_are_filled_told_once_and_emptied_on_sigterm(tmp_path: Path) -> None:
    with parent(tmp_path, count=3) as running:

        def script() -> None:
            eventually(lambda: running.told == 1)
            assert sorted(place for place, _ in running.started()) == [0, 1, 2]
            assert running.parent.num_running == 3

        assert running.run(script) == 0
        assert not any(is_running(pid) for _, pid in running.started())
        assert running.told == 1


def test_sighup_renews_one_place_after_the_other(tmp_path: Path) -> None:
    with parent(tmp_path) as running:

        def script() -> None:
            eventually(lambda: running.told == 1)
            old = [pid for _, pid in running.started()]
            running.signal(signal.SIGHUP)
            eventually(lambda: len(running.started()) == 4 and not any(map(is_running, old)))
            assert [place for place, _ in running.started()[2:]] == [0, 1]
            assert all(is_running(pid) for _, pid in running.started()[2:])

        assert running.run(script) == 0
        assert running.parent.num_restarts == 0


def test_sighup_renews_a_companion_only_while_another_one_is_up(tmp_path: Path) -> None:
    """One of them decides for all gateways: it must not go before somebody can take over, however long that one starts."""
    with parent(tmp_path, count=1, num_companions=2) as running:
        mute = running.beside / "mute"

        def beside() -> list[int]:
            return [pid for _, pid in running.started(running.beside)]

        def script() -> None:
            eventually(lambda: running.told == 1 and len(beside()) == 2)
            old = beside()
            mute.touch()
            running.signal(signal.SIGHUP)
            eventually(lambda: len(beside()) == 3)
            eventually(lambda: len(running.started()) == 2, within_s=20)  # the workers do not wait for them
            assert sum(map(is_running, old)) == 1
            mute.unlink()
            eventually(lambda: len(beside()) == 4 and not any(map(is_running, old)))

        assert running.run(script) == 0
        assert running.parent.num_restarts == 0


@pytest.mark.parametrize("fault", ["never-ready", "dies"])
def test_a_renewal_that_does_not_get_ready_is_given_up_and_the_old_ones_stay(tmp_path: Path, fault: str) -> None:
    with parent(tmp_path, ready_s=4.0 if fault == "never-ready" else 10.0) as running:

        def script() -> None:
            eventually(lambda: running.told == 1)
            old = [pid for _, pid in running.started()]
            running.switch("never-ready")
            running.switch(fault)
            running.signal(signal.SIGHUP)
            eventually(lambda: len(running.started()) == 3 and not is_running(running.started()[2][1]), within_s=20)
            assert all(map(is_running, old))
            assert len(running.started()) == 3

        assert running.run(script) == 0


def test_a_worker_that_dies_is_replaced_in_its_place(tmp_path: Path) -> None:
    with parent(tmp_path) as running:

        def script() -> None:
            eventually(lambda: running.told == 1)
            place, pid = running.started()[0]
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: len(running.started()) == 3)
            assert running.started()[2][0] == place
            eventually(lambda: running.parent.num_running == 2)

        assert running.run(script) == 0
        assert running.parent.num_restarts == 1


def test_one_that_goes_on_dying_is_started_ever_more_slowly(tmp_path: Path) -> None:
    with parent(tmp_path, count=1) as running:
        running.switch("dies")

        def script() -> None:
            eventually(lambda: len(running.started()) == 2)
            threading.Event().wait(1.5)
            assert len(running.started()) == 2, "the second pause is 2 s"

        assert running.run(script) == 0


def test_workers_that_fail_at_their_first_start_end_the_parent(tmp_path: Path) -> None:
    with parent(tmp_path) as running:
        running.switch("fails")
        code = running.parent.run()
    assert code == 1
    assert running.told == 0


def test_one_that_does_not_end_in_time_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "END_GRACE_S", 0.2)
    with parent(tmp_path, count=1) as running:
        running.switch("stubborn")
        assert running.run(lambda: eventually(lambda: running.told == 1)) == 0
        assert not is_running(running.started()[0][1])

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from headway.processes import end, environment_of, is_running, tagged

IGNORES_SIGTERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
ENDS_ON_SIGTERM = "import time; print('up', flush=True); time.sleep(60)"


def start(code: str, **environment: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **environment}, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_processes_are_found_by_their_tag(processes: list[subprocess.Popen[bytes]]) -> None:
    mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
    ours, excluded, other = (
        start(ENDS_ON_SIGTERM, HW_TEST_TAG=mark),
        start(ENDS_ON_SIGTERM, HW_TEST_TAG=mark, HW_NOT="1"),
        start(ENDS_ON_SIGTERM, HW_TEST_TAG=mark + "x"),
    )
    processes += [ours, excluded, other]
    assert tagged("HW_TEST_TAG", mark, without="HW_NOT") == [ours.pid]
    assert environment_of(ours.pid)["HW_TEST_TAG"] == mark


def test_one_that_ignores_sigterm_is_killed(processes: list[subprocess.Popen[bytes]]) -> None:
    stubborn, polite = start(IGNORES_SIGTERM), start(ENDS_ON_SIGTERM)
    processes += [stubborn, polite]
    end([stubborn.pid, polite.pid], grace_s=0.3)
    assert not is_running(stubborn.pid)
    assert not is_running(polite.pid)
    assert (stubborn.wait(), polite.wait()) == (-signal.SIGKILL, -signal.SIGTERM)


def test_a_zombie_counts_as_ended(processes: list[subprocess.Popen[bytes]]) -> None:
    child = start(ENDS_ON_SIGTERM)
    processes.append(child)
    child.kill()
    deadline_s = time.monotonic() + 5
    while is_running(child.pid) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not is_running(child.pid)  # nobody has waited for it yet: it is a zombie


def test_ending_nothing_and_ending_the_dead_is_no_error() -> None:
    end([], grace_s=1)
    end([2**22 - 1], grace_s=1)

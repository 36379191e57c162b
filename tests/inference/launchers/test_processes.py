import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from inference.engines.vllm import TAG_VARIABLE
from inference.launchers import processes

TAG = f"test-{os.getpid()}/node"
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def eventually(check: Callable[[], bool], within_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.01)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEP, env={TAG_VARIABLE: TAG}, start_new_session=True)
    eventually(lambda: processes.tag_of(process.pid) == TAG)
    yield process
    process.kill()
    process.wait()


def test_a_process_is_its_pid_and_its_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    stat = processes.read_stat(sleeper.pid)
    assert stat is not None
    assert processes.is_alive(sleeper.pid, stat.start_time)
    assert not processes.is_alive(sleeper.pid, stat.start_time + 1)


def test_a_zombie_counts_as_dead(sleeper: subprocess.Popen[bytes]) -> None:
    stat = processes.read_stat(sleeper.pid)
    assert stat is not None
    sleeper.kill()  # and not waited for
    eventually(lambda: not processes.is_alive(sleeper.pid, stat.start_time))
    zombie = processes.read_stat(sleeper.pid)
    assert zombie is not None
    assert zombie.is_dead
    assert processes.tagged(TAG) == []


def test_tagged_processes_are_found_by_the_whole_tag_or_its_beginning(sleeper: subprocess.Popen[bytes]) -> None:
    assert [stat.pid for stat in processes.tagged(TAG)] == [sleeper.pid]
    assert [stat.pid for stat in processes.tagged(TAG.split("/")[0] + "/")] == [sleeper.pid]
    assert processes.tagged(TAG[:-1]) == []


def test_members_of_a_session_need_the_tag_too(sleeper: subprocess.Popen[bytes]) -> None:
    assert [stat.pid for stat in processes.members(sleeper.pid, TAG)] == [sleeper.pid]
    assert processes.members(sleeper.pid, "another/tag") == []


def test_a_signal_meant_for_an_earlier_process_of_the_pid_reaches_nobody(sleeper: subprocess.Popen[bytes]) -> None:
    stat = processes.read_stat(sleeper.pid)
    assert stat is not None
    earlier = processes.ProcessStat(
        pid=stat.pid, state="S", parent_pid=stat.parent_pid, session=stat.session, start_time=stat.start_time - 1
    )
    processes.send_signal(earlier, signal.SIGKILL)
    assert sleeper.poll() is None
    processes.send_signal(stat, signal.SIGKILL)
    assert sleeper.wait(5) == -signal.SIGKILL

"""The server of workers and site that an installation has of its own, as the real program."""

import os
import subprocess
import sys
import time
from pathlib import Path

from headway.processes import end, environment_of, is_running, tagged

ROOT = Path(__file__).resolve().parents[2]
TAG = "HEADWAY_DAEMON_TAG"


def test_it_is_found_by_its_tag_when_whoever_started_it_was_killed(tmp_path: Path) -> None:
    """One that is not found would go on beside the next, over the same data."""
    mine = f"test-{os.getpid()}"
    environment = {**os.environ, "HEADWAY_HOME": str(tmp_path), TAG: mine}
    started = subprocess.Popen([sys.executable, str(ROOT / "manage.py"), "redis"], env=environment, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + 60
        while not (tmp_path / "redis" / "appendonlydir").exists():  # it has its title before
            assert started.poll() is None and time.monotonic() < deadline_s, "the server runs"
            time.sleep(0.05)
        found = tagged(TAG, mine)
        assert started.pid in found, "it is that process itself, or its child"
        assert all(environment_of(pid)["HEADWAY_HOME"] == str(tmp_path) for pid in found)
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found]
        assert any(b"-server" in command for command in commands), commands
    finally:
        end(tagged(TAG, mine) or [started.pid], grace_s=10)
        started.wait(10)
    assert not is_running(started.pid)

"""Processes of this machine, found by a mark in their environment (Linux: /proc).

A process id alone says little: ids are used again. Ours carry a tag in their environment, which forks inherit and
which nobody else has, so leftovers of a killed supervisor are found without trusting a pid file.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

POLL_EVERY_S = 0.05


def environment_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty when it is gone or not ours to read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(part.split("=", 1) for part in os.fsdecode(raw).split("\0") if "=" in part)


def is_running(pid: int) -> bool:
    """False for a process that is gone, and for a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def tagged(name: str, value: str, *, without: str = "") -> list[int]:
    """Pids of running processes whose environment has `name=value` (and not `without`), our own left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        environment = environment_of(int(entry.name))
        if environment.get(name) == value and without not in environment and is_running(int(entry.name)):
            found.append(int(entry.name))
    return sorted(found)


def end(pids: list[int], *, grace_s: float) -> None:
    """SIGTERM, wait up to `grace_s`, SIGKILL what is left."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline_s = time.monotonic() + wait_s
        while pids and time.monotonic() < deadline_s:
            pids = [pid for pid in pids if is_running(pid)]
            time.sleep(POLL_EVERY_S)
        if not pids:
            return

"""What /proc says about processes: who is alive, who belongs to a session, who carries a tag.

A pid alone names nothing: it is used again. A process is its pid together with its start time (field 22 of
/proc/PID/stat, in clock ticks since boot). A zombie counts as dead.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inference.engines.vllm import TAG_VARIABLE

PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessStat:
    pid: int
    state: str
    parent_pid: int
    session: int
    start_time: int

    @property
    def is_dead(self) -> bool:
        return self.state in "ZXx"


def read_stat(pid: int) -> ProcessStat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the name in brackets and may hold anything, brackets and blanks too.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(pid=pid, state=fields[0], parent_pid=int(fields[1]), session=int(fields[3]), start_time=int(fields[19]))


def is_alive(pid: int, start_time: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.start_time == start_time and not stat.is_dead


def all_processes() -> Iterator[ProcessStat]:
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            stat = read_stat(int(entry.name))
            if stat is not None and not stat.is_dead:
                yield stat


def tag_of(pid: int) -> str | None:
    """The value of TAG_VARIABLE that the process was started with; None where there is none, or it is not ours to read."""
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    prefix = f"{TAG_VARIABLE}=".encode()
    return next((item[len(prefix) :].decode() for item in environment.split(b"\0") if item.startswith(prefix)), None)


def tagged(tag: str) -> list[ProcessStat]:
    """Live processes that carry exactly this tag; with a trailing slash, every tag that begins with it."""
    found = []
    for stat in all_processes():
        value = tag_of(stat.pid)
        if value is not None and (value == tag or (tag.endswith("/") and value.startswith(tag))):
            found.append(stat)
    return found


def members(session: int, tag: str) -> list[ProcessStat]:
    """Live processes of the session that carry the tag. The tag guards against a session number that was used again."""
    return [stat for stat in all_processes() if stat.session == session and tag_of(stat.pid) == tag]


def send_signal(stat: ProcessStat, number: signal.Signals) -> None:
    """Signals that very process; nothing happens if it is gone."""
    try:
        handle = os.pidfd_open(stat.pid)
    except ProcessLookupError:
        return
    try:
        # With the handle held the pid cannot be used again between the look and the signal.
        if is_alive(stat.pid, stat.start_time):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)

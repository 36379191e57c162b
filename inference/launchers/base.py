"""Start engines and end them. An engine leads a session of its own and outlives whoever started it."""

import contextlib
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.errors import Unavailable
from inference.engines.environments import EngineEnvironment
from inference.launchers import processes


class LaunchFailed(Unavailable):
    """Retry after a while; the engine's process could not be started."""

    code = "launch_failed"


@dataclass(frozen=True)
class LaunchSpec:
    """`process_environment` is the whole environment, tag included; its output is appended to `log`."""

    replica_id: str
    environment: EngineEnvironment
    arguments: tuple[str, ...]
    process_environment: Mapping[str, str]
    log: Path


@dataclass(frozen=True)
class Running:
    """A started engine: its first process, which leads the session all the others are in."""

    pid: int
    start_time: int
    session: int


class Launcher(Protocol):
    def prepare(self, environment: EngineEnvironment, process_environment: Mapping[str, str]) -> None:
        """A launch in this environment is coming: get ready for it. Returns at once."""

    def refusal(self, environment: EngineEnvironment, process_environment: Mapping[str, str], arguments: Sequence[str]) -> str:
        """Why a server would not start with these arguments, in the words of the engine's own parser; empty if it would.

        Blocks. Raises LaunchFailed where nobody could be asked.
        """

    def launch(self, spec: LaunchSpec) -> Running:
        """Blocks until the process exists (not until it serves). Raises LaunchFailed."""

    def is_alive(self, running: Running) -> bool:
        """Whether its first process lives. A zombie does not."""

    def is_gone(self, running: Running) -> bool:
        """Whether no process of its session is left."""

    def terminate(self, running: Running) -> None:
        """Ask its first process to end (SIGTERM): it finishes open streams within its shutdown timeout."""

    def kill(self, running: Running) -> None:
        """SIGKILL to every process of its session."""

    def exit_status(self, running: Running) -> int | None:
        """How its first process ended, negative for a signal; None where nobody knows (it was adopted)."""

    def close(self) -> None:
        """Let go of what the launcher itself holds; engines live on."""


class LocalProcesses:
    """The part that is the same however a process of this machine was started. `tag` marks this node's processes."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def is_alive(self, running: Running) -> bool:
        return processes.is_alive(running.pid, running.start_time)

    def is_gone(self, running: Running) -> bool:
        return not processes.members(running.session, self.tag)

    def terminate(self, running: Running) -> None:
        stat = processes.read_stat(running.pid)
        if stat is not None and stat.start_time == running.start_time:
            processes.send_signal(stat, signal.SIGTERM)

    def kill(self, running: Running) -> None:
        for stat in processes.members(running.session, self.tag):
            with contextlib.suppress(PermissionError):
                processes.send_signal(stat, signal.SIGKILL)


def running_of(pid: int) -> Running:
    """Raises LaunchFailed if it is gone already."""
    stat = processes.read_stat(pid)
    if stat is None:
        raise LaunchFailed("the engine's process was gone as soon as it was started")
    # It becomes the leader of its session a moment after the fork, so what /proc says now may be too early.
    return Running(pid=pid, start_time=stat.start_time, session=pid)

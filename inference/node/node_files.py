"""What the agent keeps below HOME.node/<node>/, so that its next start finds and settles everything.

agent.lock            held while an agent runs
agent_id              tells its agent from others that were given the same name
desired.json          the replicas as last known, for a start with the database away
own/<replica>.json    tokens of the agent's own requests to that engine (own_work.py)
run/<replica>.json    an engine that was started: pid, start time, session, epoch
"""

import contextlib
import fcntl
import json
import re
import secrets
from dataclasses import asdict, dataclass
from typing import IO

from headway.errors import ConfigurationError
from headway.home import Home
from inference.launchers.base import Running
from inference.node.weight_files import write_json
from inference.services.node import Desired


@dataclass(frozen=True)
class RunFile:
    """`pid` is 0 from just before the start until the process is known."""

    replica_id: str
    epoch: int
    pid: int
    start_time: int
    session: int
    socket: str
    environment: str
    arguments: tuple[str, ...]
    log_start_bytes: int

    @property
    def running(self) -> Running:
        return Running(pid=self.pid, start_time=self.start_time, session=self.session)


@dataclass(frozen=True)
class Remembered:
    """A replica as the agent last knew it. `is_held`: it failed for good, until someone asks again."""

    desired: Desired
    is_held: bool


class NodeFiles:
    def __init__(self, home: Home, node: str) -> None:
        self.check_name(node)
        self.folder = home.node / node
        self.runs = self.folder / "run"
        self.own = self.folder / "own"
        for folder in (self.runs, self.own):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @staticmethod
    def check_name(node: str) -> None:
        """Raises ConfigurationError."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", node):
            raise ConfigurationError(f"{node!r} is no node name: letters, digits, dots and dashes, 100 at most")

    def lock(self, node: str) -> IO[str]:
        """Held until it is closed. Raises ConfigurationError if an agent of this name and home runs."""
        file = (self.folder / "agent.lock").open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConfigurationError(f"a node agent named {node!r} runs already on this HEADWAY_HOME; stop it first") from None
        return file

    def agent_id(self) -> str:
        """Made once, and kept: of two that make it at once the first has."""
        path = self.folder / "agent_id"
        if not path.exists():
            made = self.folder / f".agent_id-{secrets.token_hex(4)}"
            made.write_text(secrets.token_hex(16))
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(made)
            made.unlink()
        return path.read_text().strip()

    def write_run(self, run: RunFile) -> None:
        write_json(self.runs / f"{run.replica_id}.json", asdict(run))

    def read_runs(self) -> dict[str, RunFile]:
        found = {path.stem: self.read_run(path.stem) for path in self.runs.glob("*.json")}
        return {replica: run for replica, run in found.items() if run is not None}

    def read_run(self, replica_id: str) -> RunFile | None:
        try:
            values = json.loads((self.runs / f"{replica_id}.json").read_text())
        except FileNotFoundError:
            return None
        return RunFile(**{**values, "arguments": tuple(values["arguments"])})

    def forget_run(self, replica_id: str) -> None:
        (self.runs / f"{replica_id}.json").unlink(missing_ok=True)

    def remember(self, replicas: list[Remembered]) -> None:
        write_json(self.folder / "desired.json", [asdict(entry) for entry in replicas])

    def remembered(self) -> dict[str, Remembered]:
        try:
            entries = json.loads((self.folder / "desired.json").read_text())
        except FileNotFoundError:
            return {}
        found = [Remembered(desired=Desired(**entry["desired"]), is_held=entry["is_held"]) for entry in entries]
        return {entry.desired.replica_id: entry for entry in found}


def node_names(home: Home) -> list[str]:
    """Nodes that have ever run on this home."""
    return sorted(path.parent.name for path in home.node.glob("*/run"))

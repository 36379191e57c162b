"""Starts engines by forking a process that has imported vLLM already (engines/scripts/prefork.py): 3 s instead of 26.

One such process an engine environment, started when first needed and again when it has died. Engines do not depend on
it once forked. If it cannot be started, engines are started the plain way, with a warning.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from inference.engines.environments import EngineEnvironment
from inference.launchers.base import LaunchFailed, LaunchSpec, LocalProcesses, Running, running_of
from inference.launchers.exec_launcher import ExecLauncher
from inference.launchers.parser_child import SCRIPT as CHECK_SCRIPT
from inference.launchers.parser_child import refused_in

log = structlog.get_logger(__name__)
SCRIPT = Path(__file__).resolve().parents[1] / "engines" / "scripts" / "prefork.py"
START_TIMEOUT_S = 180.0
FORK_TIMEOUT_S = 20.0
CHECK_TIMEOUT_S = 120.0
EXIT_TOLD_WITHIN_S = 0.5


class PreforkFailed(LaunchFailed):
    """Retry after a while; the process that forks engines could not be started, or died."""

    code = "prefork_failed"


class PreforkProcess:
    """The other end of one prefork.py."""

    def __init__(self, python: Path, environment: Mapping[str, str], log_file: Path) -> None:
        self._control, theirs = socket.socketpair()
        try:
            with theirs, log_file.open("ab") as output:
                self._process = subprocess.Popen(
                    [str(python), str(SCRIPT), "--control-fd", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            self._control.close()
            raise PreforkFailed(f"cannot start {python}: {error.strerror}") from error
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._exits: dict[int, int] = {}
        self._forked: set[int] = set()
        self._is_ready = False
        threading.Thread(target=self._read, name="prefork-reader", daemon=True).start()

    def wait_ready(self) -> None:
        """Raises PreforkFailed."""
        if not self._is_ready:
            ready = self._answer(START_TIMEOUT_S)
            self._is_ready = True
            log.info("prefork_ready", pid=self.pid, import_s=ready["import_s"], threads=ready["threads"])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, spec: LaunchSpec) -> int:
        return self._order(
            {"launch": spec.replica_id, "argv": spec.arguments, "env": dict(spec.process_environment), "log": str(spec.log)}
        )

    def check(self, process_environment: Mapping[str, str], arguments: Sequence[str], answer: Path) -> int:
        """The pid of the child that writes the answer."""
        words = {"check": str(CHECK_SCRIPT), "argv": list(arguments), "answer": str(answer)}
        return self._order({"launch": answer.name, "env": dict(process_environment), **words})

    def _order(self, order: dict[str, Any]) -> int:
        try:
            self._control.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise PreforkFailed(f"the process that forks engines is gone: {error.strerror}") from error
        answer = self._answer(FORK_TIMEOUT_S)
        if "error" in answer:
            raise LaunchFailed(f"the engine could not be forked: {answer['error']}")
        pid = int(answer["pid"])
        self._forked.add(pid)
        return pid

    def exit_status(self, pid: int) -> int | None:
        """Its child's; /proc says that it died a moment before this is told, so a moment is waited."""
        if pid in self._forked and self.is_alive:
            deadline_s = time.monotonic() + EXIT_TOLD_WITHIN_S
            while pid not in self._exits and time.monotonic() < deadline_s:
                time.sleep(0.01)
        return self._exits.get(pid)

    def wait_for_exit(self, pid: int, limit_s: float) -> int | None:
        """None: it has not ended by then, and was killed."""
        deadline_s = time.monotonic() + limit_s
        while pid not in self._exits and self.is_alive and time.monotonic() < deadline_s:
            time.sleep(0.02)
        if pid not in self._exits:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        return self._exits.get(pid)

    def close(self) -> None:
        """It ends at our end of file."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control.close()

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            answer = None
        if answer is None:
            self.close()
            raise PreforkFailed(f"the process that forks engines gave no answer (exit status {self._process.returncode})")
        return answer

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._control.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "exited" in message:
                    self._exits[message["exited"]] = message["status"]
                else:
                    self._answers.put(message)
        self._answers.put(None)


class PreforkLauncher(LocalProcesses):
    """`logs` is the folder for the forking processes' own output."""

    def __init__(self, tag: str, logs: Path) -> None:
        super().__init__(tag)
        self._logs = logs
        self._plain = ExecLauncher(tag)
        self._preforks: dict[Path, PreforkProcess] = {}
        self._lock = threading.Lock()

    def prepare(self, environment: EngineEnvironment, process_environment: Mapping[str, str]) -> None:
        """Start the forking process, so that its imports run beside the staging of weights."""
        with self._lock, contextlib.suppress(PreforkFailed):  # launch() meets the same failure and deals with it
            self._prefork(environment, process_environment)

    def launch(self, spec: LaunchSpec) -> Running:
        with self._lock:
            try:
                prefork = self._prefork(spec.environment, spec.process_environment)
                prefork.wait_ready()
                return running_of(prefork.fork(spec))
            except PreforkFailed as failure:
                log.warning("prefork_failed", replica=spec.replica_id, reason=failure.message, instead="a process of its own")
        return self._plain.launch(spec)

    def refusal(self, environment: EngineEnvironment, process_environment: Mapping[str, str], arguments: Sequence[str]) -> str:
        """By a fork of the process that has imported the parser: a second in place of ten."""
        with tempfile.TemporaryDirectory(prefix="headway-check-") as folder:
            answer = Path(folder) / f"check-{uuid.uuid4().hex[:8]}"
            try:
                with self._lock:
                    prefork = self._prefork(environment, process_environment)
                    prefork.wait_ready()
                    pid = prefork.check(process_environment, arguments, answer)
                status = prefork.wait_for_exit(pid, CHECK_TIMEOUT_S)
            except PreforkFailed as failure:
                log.warning("prefork_failed", reason=failure.message, instead="a process of its own")
                return self._plain.refusal(environment, process_environment, arguments)
            said = f"exit status {status}; see {self._logs / f'prefork-{environment.name}.log'}"
            return refused_in(answer.read_text() if answer.exists() else "", said=said)

    def _prefork(self, environment: EngineEnvironment, process_environment: Mapping[str, str]) -> PreforkProcess:
        python = environment.python
        found = self._preforks.get(python)
        if found is None or not found.is_alive:
            if found is not None:
                log.warning("prefork_died", pid=found.pid)
                found.close()
            log_file = self._logs / f"prefork-{environment.name}.log"
            found = self._preforks[python] = PreforkProcess(python, process_environment, log_file)
        return found

    def prefork_pids(self) -> list[int]:
        return [prefork.pid for prefork in self._preforks.values() if prefork.is_alive]

    def is_alive(self, running: Running) -> bool:
        self._plain.is_alive(running)  # reaps what was started the plain way
        return super().is_alive(running)

    def exit_status(self, running: Running) -> int | None:
        for prefork in list(self._preforks.values()):
            status = prefork.exit_status(running.pid)
            if status is not None:
                return status
        return self._plain.exit_status(running)

    def close(self) -> None:
        with self._lock:
            for prefork in self._preforks.values():
                prefork.close()
            self._preforks.clear()

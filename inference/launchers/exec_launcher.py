"""Starts each engine as a program of its own: the plain way, and the only one on CUDA (which does not survive a fork)."""

import contextlib
import os
from collections.abc import Mapping, Sequence

from inference.engines.environments import EngineEnvironment
from inference.engines.vllm import SERVER_MODULE
from inference.launchers.base import LaunchFailed, LaunchSpec, LocalProcesses, Running, running_of
from inference.launchers.parser_child import ask_parser


class ExecLauncher(LocalProcesses):
    def __init__(self, tag: str) -> None:
        super().__init__(tag)
        self._children: set[int] = set()
        self._exits: dict[int, int] = {}

    def prepare(self, environment: EngineEnvironment, process_environment: Mapping[str, str]) -> None:
        """Nothing to do."""

    def refusal(self, environment: EngineEnvironment, process_environment: Mapping[str, str], arguments: Sequence[str]) -> str:
        return ask_parser(environment.python, process_environment, arguments)

    def launch(self, spec: LaunchSpec) -> Running:
        python = str(spec.environment.python)
        try:
            pid = os.posix_spawn(
                python,
                [python, "-m", SERVER_MODULE, *spec.arguments],
                dict(spec.process_environment),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(spec.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
            )
        except OSError as error:
            raise LaunchFailed(f"cannot start {python}: {error.strerror}") from error
        self._children.add(pid)
        return running_of(pid)

    def is_alive(self, running: Running) -> bool:
        self._reap()
        return super().is_alive(running)

    def exit_status(self, running: Running) -> int | None:
        self._reap()
        return self._exits.get(running.pid)

    def _reap(self) -> None:
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                reaped, status = os.waitpid(pid, os.WNOHANG)
                if not reaped:
                    continue
                self._exits[pid] = os.waitstatus_to_exitcode(status)
            self._children.discard(pid)

    def close(self) -> None:
        self._reap()

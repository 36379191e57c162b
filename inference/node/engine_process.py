"""One replica's engine on this machine: how it is started, why it ended, how it is made to end."""

import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from headway.errors import HeadwayError
from inference.engines.environments import EngineKind
from inference.engines.speculation import with_local_draft
from inference.engines.vllm import ServerSpec, process_environment, server_arguments
from inference.launchers.base import Launcher, LaunchSpec, Running
from inference.node.engine_log import last_words, size_of
from inference.node.jobs import Job
from inference.node.machine import number_format
from inference.node.node_files import RunFile
from inference.node.tools import Tools
from inference.services.node import Desired, ReferenceKey

log = structlog.get_logger(__name__)
POLL_S = 0.05
# The kernel needs a moment to take down a killed process; one that stays beyond it is in an uninterruptible wait.
KILL_LIMIT_S = 30.0
# Longer than the process that forks engines may take to import them.
LAUNCH_LIMIT_S = 300.0


class EngineProcess:
    def __init__(self, tools: Tools, run: RunFile, launcher: Launcher, log_file: Path) -> None:
        self.tools, self.run, self.launcher, self.log_file = tools, run, launcher, log_file

    @property
    def running(self) -> Running:
        return self.run.running

    def is_alive(self) -> bool:
        return self.launcher.is_alive(self.running)

    def crash_reason(self) -> str:
        status = self.launcher.exit_status(self.running)
        if status is None:
            how = "the engine's process ended"
        elif status < 0:
            how = f"the engine was killed by signal {-status} ({signal.Signals(-status).name})"
        else:
            how = f"the engine ended with exit status {status}"
        words = last_words(self.log_file, since_bytes=self.run.log_start_bytes)
        return f"{how}: {words}" if words else f"{how}; its log is {self.log_file}"

    def end(self, *, graceful_s: float, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """SIGTERM and up to `graceful_s` to end, then SIGKILL to all of its session; returns when nothing is left of it."""
        if graceful_s > 0 and self.is_alive():
            self.launcher.terminate(self.running)
            _wait(lambda: not self.is_alive() or is_hurried(), graceful_s)
        deadline_s = time.monotonic() + KILL_LIMIT_S
        while not self.launcher.is_gone(self.running):
            self.launcher.kill(self.running)
            if time.monotonic() > deadline_s:
                log.error("engine_does_not_die", replica=self.run.replica_id, pid=self.run.pid)
                break
            time.sleep(POLL_S)
        self.launcher.is_alive(self.running)  # reaps it where it is our child
        Path(self.run.socket).unlink(missing_ok=True)
        self.tools.files.forget_run(self.run.replica_id)


def end_of(process: EngineProcess | None, launched: Job[EngineProcess] | None, *, graceful_s: float) -> None:
    """Of an engine that runs, or of one that is being started by then: it must not come up when nobody knows of it any more."""
    if launched is not None and not launched.wait(LAUNCH_LIMIT_S):
        log.error("engine_start_does_not_end")
        return
    if launched is not None:
        with contextlib.suppress(HeadwayError, OSError):  # there is none then
            process = launched.result()
    if process is not None:
        process.end(graceful_s=graceful_s)


def _wait(is_so: Callable[[], bool], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def socket_of(tools: Tools, replica_id: str) -> Path:
    """The same for every start: gateways that cannot hear of a new one, the database being away, find it where it was."""
    return tools.sockets / f"{replica_id}.sock"


def launch(tools: Tools, desired: Desired, *, weights: Path, epoch: int) -> EngineProcess:
    """Start the engine. Raises LaunchFailed, InvalidInput (its arguments), ConfigurationError (its environment)."""
    environment = tools.find_environment(desired.engine_environment)
    socket = socket_of(tools, desired.replica_id)
    spec = _server_spec(tools, desired, environment.kind, weights=weights, socket=socket)
    arguments = server_arguments(spec, tools.settings.engine)
    log_file = tools.logs / f"{desired.replica_id}.log"
    run = RunFile(
        replica_id=desired.replica_id,
        epoch=epoch,
        pid=0,
        start_time=0,
        session=0,
        socket=str(socket),
        environment=environment.name,
        arguments=arguments,
        log_start_bytes=size_of(log_file),
    )
    socket.unlink(missing_ok=True)  # a stale one: the engine would find its address in use
    tools.files.write_run(run)
    launcher = tools.launcher(environment.kind)
    running = launcher.launch(
        LaunchSpec(
            replica_id=desired.replica_id,
            environment=environment,
            arguments=arguments,
            process_environment=environment_of(tools, environment.kind),
            log=log_file,
        )
    )
    run = replace(run, pid=running.pid, start_time=running.start_time, session=running.session)
    tools.files.write_run(run)
    log.info("engine_started", replica=desired.replica_id, pid=run.pid, epoch=epoch)
    return EngineProcess(tools, run, launcher, log_file)


def _server_spec(tools: Tools, desired: Desired, kind: EngineKind, *, weights: Path, socket: Path) -> ServerSpec:
    return ServerSpec(
        kind=kind,
        weights=weights,
        served_name=desired.served_name,
        socket=socket,
        dtype=number_format(desired.dtype, tools.machine_kind(kind)),
        max_num_seqs=desired.max_in_flight,
        engine_args=with_local_draft(tuple(desired.engine_args), tools.disk.folder),
    )


def reference_key(tools: Tools, desired: Desired) -> ReferenceKey:
    """What its log-probabilities are compared with."""
    machine_kind = tools.machine_kind(tools.find_environment(desired.engine_environment).kind)
    return ReferenceKey(
        version_id=desired.version_id,
        engine_environment=desired.engine_environment,
        dtype=number_format(desired.dtype, machine_kind),
        machine_kind=machine_kind,
    )


def environment_of(tools: Tools, kind: EngineKind) -> dict[str, str]:
    return process_environment(kind, tag=tools.tag, cache=tools.engine_cache, settings=tools.settings.engine)


def found(tools: Tools, desired: Desired, run: RunFile) -> EngineProcess:
    """An engine that an earlier agent started."""
    kind = tools.find_environment(run.environment).kind
    return EngineProcess(tools, run, tools.launcher(kind), tools.logs / f"{desired.replica_id}.log")

"""Puts a node agent together (the composition root of `manage.py node`)."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from headway.clock import Clock, SystemClock
from headway.home import Home
from headway.revocation import Revocations
from inference.engines.client import EngineClient
from inference.engines.environments import EngineKind, engines_dir, find_environment, installed
from inference.engines.speculation import uris_of
from inference.engines.verdicts import Question, check
from inference.launchers.base import Launcher
from inference.launchers.exec_launcher import ExecLauncher
from inference.launchers.prefork_launcher import PreforkLauncher
from inference.node.control_link import Call, ControlLink
from inference.node.database_thread import DatabaseThread
from inference.node.disk import WeightsDisk
from inference.node.engine_process import environment_of
from inference.node.jobs import Job, ThreadJobs
from inference.node.machine import machine_kind
from inference.node.node_files import NodeFiles
from inference.node.node_settings import NodeSettings
from inference.node.tokeniser_files import read_tokeniser, write_tokeniser
from inference.node.tools import Stageable, Tools
from inference.node.weight_files import Staged
from inference.node.weights import StagingTools, stage
from inference.services.engine_arguments import VERDICTS

log = structlog.get_logger(__name__)


def tag_of(home: Home, node: str) -> str:
    """What this node's processes carry in their environment."""
    return f"{home.installation_id}/{node}"


class Launchers:
    """One a kind of engine: forking on CPU (unless told not to), plain on CUDA."""

    def __init__(self, tag: str, logs: Path, *, is_prefork: bool) -> None:
        self.plain = ExecLauncher(tag)
        self.prefork = PreforkLauncher(tag, logs) if is_prefork else None

    def of(self, kind: EngineKind) -> Launcher:
        return self.prefork if kind is EngineKind.CPU and self.prefork is not None else self.plain

    def own_sessions(self) -> set[int]:
        return set(self.prefork.prefork_pids()) if self.prefork is not None else set()

    def close(self) -> None:
        for launcher in (self.plain, self.prefork):
            if launcher is not None:
                launcher.close()


def make_tools(
    home: Home,
    node: str,
    settings: NodeSettings,
    launchers: Launchers,
    wait_for_gateways: Callable[[int, float], bool],
    clock: Clock | None = None,
    call: Call | None = None,
    zone: str = "",
    address: str = "",
) -> Tools:
    clock = clock or SystemClock()
    files = NodeFiles(home, node)
    tools = Tools(
        settings=settings,
        clock=clock,
        link=ControlLink(node, clock, call or DatabaseThread(), files.agent_id()),
        jobs=ThreadJobs(),
        files=files,
        sockets=home.run,
        logs=home.logs,
        engine_cache=home.folder("engine-cache"),
        tag=tag_of(home, node),
        zone=zone,
        address=address,
        revocations=Revocations(home.tls),
        launcher=launchers.of,
        own_sessions=launchers.own_sessions,
        find_environment=functools.partial(find_environment, engines_dir=engines_dir()),
        installed_environments=lambda: installed(engines_dir()),
        disk=WeightsDisk(home.weights, home.node, settings.disk),
        stage=lambda wanted, job: _stage(tools, home.folder(VERDICTS), wanted, job),
        client=EngineClient,
        machine_kind=machine_kind,
        read_tokeniser=lambda desired: read_tokeniser(home.weights, desired),
        wait_for_gateways=wait_for_gateways,
    )
    return tools


def _stage(tools: Tools, verdicts: Path, wanted: Stageable, job: Job[Any]) -> Staged:
    """Once the engine's parser takes its arguments; with its draft model, if it has one.

    Raises BadEngineArguments, LaunchFailed and what `weights.stage` raises.
    """
    environment = tools.find_environment(wanted.engine_environment)
    variables = environment_of(tools, environment.kind)
    tools.launcher(environment.kind).prepare(environment, variables)
    job.say("asking the engine's parser about its arguments")
    question = Question(
        environment=environment,
        weights=tools.disk.folder,
        weights_uri=wanted.weights_uri,
        dtype=wanted.dtype,
        max_num_seqs=wanted.max_in_flight,
        engine_args=tuple(wanted.engine_args),
    )
    check(question, verdicts, functools.partial(tools.launcher(environment.kind).refusal, environment, variables))
    staging = StagingTools(
        folder=tools.disk.folder,
        python=environment.python,
        engine_environment=variables,
        expected_digest=wanted.weights_digest,
        progress=job.say,
        measured=job.measure,
        is_cancelled=job.is_cancelled,
        fetching=functools.partial(tools.disk.fetching, is_cancelled=job.is_cancelled, say=job.say),
    )
    staged = stage(wanted.weights_uri, staging)
    write_tokeniser(staged, wanted.engine_environment, staging)
    for draft in uris_of(wanted.weights_uri, wanted.engine_args)[1:]:
        stage(draft, replace(staging, expected_digest=""))
    return staged

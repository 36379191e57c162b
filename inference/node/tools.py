"""What a replica's run works with: handed over whole, so that tests can hand over other ones."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headway.clock import Clock
from headway.revocation import Revocations
from inference.engines.client import EngineClient
from inference.engines.environments import EngineEnvironment, EngineKind
from inference.launchers.base import Launcher
from inference.node.control_link import ControlLink
from inference.node.disk import WeightsDisk
from inference.node.jobs import Job, Jobs
from inference.node.node_files import NodeFiles
from inference.node.node_settings import NodeSettings
from inference.node.weight_files import Staged
from inference.services.node import Desired
from inference.tokenising.bundle import TokeniserBundle


class Stageable(Protocol):
    """A replica or a copy, as far as its weights are concerned."""

    @property
    def weights_uri(self) -> str: ...
    @property
    def weights_digest(self) -> str: ...
    @property
    def engine_environment(self) -> str: ...
    @property
    def engine_args(self) -> list[str]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def max_in_flight(self) -> int: ...


@dataclass(frozen=True)
class Tools:
    settings: NodeSettings
    clock: Clock
    link: ControlLink
    jobs: Jobs
    files: NodeFiles
    sockets: Path
    logs: Path
    engine_cache: Path
    tag: str
    zone: str
    address: str
    """host:port of this node's front (front.py); empty: it has none."""
    revocations: Revocations
    """What its front, a process of its own, refuses."""
    launcher: Callable[[EngineKind], Launcher]
    own_sessions: Callable[[], set[int]]
    """Sessions of processes of ours that carry the tag and are no engines (the forking ones)."""
    find_environment: Callable[[str], EngineEnvironment]
    installed_environments: Callable[[], list[str]]
    disk: WeightsDisk
    stage: Callable[[Stageable, Job[Any]], Staged]
    client: Callable[[str, str], EngineClient]
    machine_kind: Callable[[EngineKind], str]
    read_tokeniser: Callable[[Desired], TokeniserBundle | None]
    """What staging found of the version's tokeniser: unchecked; None where it has none that can be read."""
    wait_for_gateways: Callable[[int, float], bool]
    """(change id, seconds) -> whether all live gateways have applied the change by then."""

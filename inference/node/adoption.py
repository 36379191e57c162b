"""After the agent's own restart: which engines to keep, and what to kill."""

import signal
import time

import structlog

from inference.launchers import processes
from inference.models import ReplicaState
from inference.node.node_files import RunFile
from inference.services.node import Desired

log = structlog.get_logger(__name__)
ENGINE_STATES = frozenset(
    {
        ReplicaState.STARTING,
        ReplicaState.CERTIFYING,
        ReplicaState.WARM,
        ReplicaState.READY,
        ReplicaState.DRAINING,
    }
)
KILL_LIMIT_S = 30.0
POLL_S = 0.05


def why_not_adopt(desired: Desired, run: RunFile | None, *, is_alive: bool) -> str:
    """Empty if the engine that the run file names can be kept as it is."""
    if run is None or not run.pid:
        return "its engine was not there when the node agent started"
    if not is_alive:
        return "its engine had died when the node agent started"
    if run.epoch != desired.epoch or desired.state not in ENGINE_STATES:
        return "its engine is from another start than the one the registry knows"
    return ""


def kill_leftovers(tag: str, *, kept_sessions: set[int]) -> int:
    """SIGKILL to every process that carries this node's tag and is in no kept session. Returns how many there were.

    Engines of replicas that are gone, forking processes of an earlier agent, converters that were under way.
    """
    deadline_s = time.monotonic() + KILL_LIMIT_S
    killed: set[int] = set()
    while True:
        left = [stat for stat in processes.tagged(tag) if stat.session not in kept_sessions]
        if not left or time.monotonic() > deadline_s:
            break
        for stat in left:
            killed.add(stat.pid)
            processes.send_signal(stat, signal.SIGKILL)
        time.sleep(POLL_S)
    if killed:
        log.warning("leftovers_killed", tag=tag, pids=sorted(killed))
    return len(killed)

"""Twice a second, how each ready engine does, to whoever decides about requests. Nobody there: nothing is told, or kept."""

import asyncio
import threading
from collections.abc import Callable, Mapping

import structlog

from inference.dispatch.address import Address
from inference.dispatch.visitor import push_states
from inference.engines.vllm import EngineLoad
from inference.policy.decisions import StateFrame

log = structlog.get_logger(__name__)

PUSH_EVERY_S = 0.5
RETRY_S = 1.0
STOP_LIMIT_S = 3.0


def frame_of(load: EngineLoad) -> StateFrame:
    return StateFrame(
        running=load.num_running,
        waiting=load.num_waiting,
        kv_used_ratio=load.kv_usage_ratio,
        acceptance_ratio=load.acceptance_ratio,
    )


class StatePush:
    """A thread of the agent. `loads` is asked from it: the last scrape of each ready engine by replica id."""

    def __init__(
        self,
        loads: Callable[[], Mapping[str, EngineLoad]],
        find_dispatcher: Callable[[], Address | None],
        *,
        secret: str = "",
        every_s: float = PUSH_EVERY_S,
    ) -> None:
        """`find_dispatcher` may block for a moment; None: there is none."""
        self._loads, self._find, self._secret, self._every_s = loads, find_dispatcher, secret, every_s
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="state-push", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping.set()
        self._thread.join(STOP_LIMIT_S)

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                address = self._find()
                if address is not None and self._loads():
                    asyncio.run(push_states(address, self._frames, every_s=self._every_s, secret=self._secret))
            except Exception:
                # The thread's boundary: without frames routing goes by what gateways report, and engines go on.
                log.exception("state_push_failed")
            self._is_stopping.wait(RETRY_S)

    def _frames(self) -> dict[str, StateFrame] | None:
        """None: stop."""
        if self._is_stopping.is_set():
            return None
        return {replica: frame_of(load) for replica, load in self._loads().items()}

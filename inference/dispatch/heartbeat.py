"""Between machines a connection can be dead without anybody saying so.

The dispatcher says that it lives, the gateway says it back, and each hangs up on a peer that is silent for too long. What
a gateway says back also tells the dispatcher that it was attached after that beat was sent (mandate.py).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from inference.dispatch.wire import Beat, FrameConnection


@dataclass(frozen=True, slots=True)
class HeartbeatTunables:
    every_s: float = 0.5
    silent_s: float = 2.5
    """A peer that has said nothing for so long has gone, or the network has."""


class Heartbeat:
    """Of one connection, from its welcome on. Belongs to the event loop."""

    def __init__(
        self,
        connection: FrameConnection,
        tunables: HeartbeatTunables,
        now_s: Callable[[], float] | None = None,
        *,
        hangs_up: bool = True,
    ) -> None:
        """`now_s`: of the side that says it first. On a Unix socket nobody hangs up: silence is no death there."""
        self._connection, self._tunables, self._now_s, self._hangs_up = connection, tunables, now_s, hangs_up
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._hangs_up and loop.time() - self._connection.heard_s > self._tunables.silent_s:
            self._connection.abandon()
            return
        if self._now_s is not None:
            self._connection.say(Beat(self._now_s()))
        self._timer = loop.call_later(self._tunables.every_s, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

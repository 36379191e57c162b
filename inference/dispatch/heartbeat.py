"""Between machines a connection can be dead without anybody saying so: each side says that it lives, and hangs up on silence."""

import asyncio
from dataclasses import dataclass

from inference.dispatch.wire import Beat, FrameConnection


@dataclass(frozen=True, slots=True)
class HeartbeatTunables:
    every_s: float = 0.5
    silent_s: float = 2.5
    """A peer that has said nothing for so long has gone, or the network has."""


class Heartbeat:
    """Of one connection, from its welcome on. Belongs to the event loop."""

    def __init__(self, connection: FrameConnection, tunables: HeartbeatTunables) -> None:
        self._connection, self._tunables = connection, tunables
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._connection.heard_s > self._tunables.silent_s:
            self._connection.abandon()
            return
        self._connection.say(Beat())
        self._timer = loop.call_later(self._tunables.every_s, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

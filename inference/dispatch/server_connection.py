"""One connection to a dispatcher: who it is of, and what comes over it."""

import asyncio
import hmac
import secrets
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from inference.dispatch.gateway_session import GatewaySession
from inference.dispatch.heartbeat import Heartbeat
from inference.dispatch.wire import (
    PROTOCOL,
    Beat,
    Challenge,
    FrameConnection,
    Hello,
    Observe,
    Observed,
    ReplicaState,
    Role,
    Said,
    SaidMessage,
    TurnedAway,
    Welcome,
    WireError,
    prove,
)

if TYPE_CHECKING:
    from inference.dispatch.server import DispatcherServer

log = structlog.get_logger(__name__)


class DispatcherConnection(FrameConnection):
    def __init__(self, server: "DispatcherServer", *, is_local: bool) -> None:
        super().__init__(SaidMessage)
        self.is_local = is_local
        self._server = server
        self._nonce = secrets.token_bytes(16)
        self._role: Role | None = None
        self._session: GatewaySession | None = None
        self._observing: asyncio.TimerHandle | None = None
        self._heartbeat = Heartbeat(self, server.tunables.heartbeat, server.host.now_s, hangs_up=not is_local)

    def epoch(self) -> int:
        return self._server.epoch

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.came(self)
        if not self.is_local:
            _notice_dead_peers(transport.get_extra_info("socket"))
        self.say(Challenge(PROTOCOL, self._nonce))

    def heard(self, epoch: int, frames: Sequence[Said]) -> None:
        now_s = self._server.host.now_s()
        self._server.saw_epoch(epoch)
        for frame in frames:
            if self.is_closing:
                return
            if self._role is None:
                self._hello(frame)
            elif self._session is not None:
                self._session.hear(frame, now_s)
            elif isinstance(frame, Observe):
                self._observe(frame.every_s)
            elif isinstance(frame, ReplicaState) and self._role is Role.AGENT:
                self._server.host.frame(frame.replica, frame.frame)
            elif isinstance(frame, Beat) and self._role is Role.STANDBY:
                pass
            else:
                raise WireError(f"{type(frame).__name__} of {self._role}")

    def lost(self) -> None:
        self._heartbeat.stop()
        if self._observing is not None:
            self._observing.cancel()
        self._server.gone(self, self._session)

    def _hello(self, hello: Said) -> None:
        if not isinstance(hello, Hello):
            raise WireError("no hello")
        reason = self._why_not(hello)
        if reason:
            log.warning("dispatcher_turned_away", name=hello.name, reason=reason)
            self.say(TurnedAway(reason))
            self.close()
            return
        self._role = hello.role
        if hello.role is Role.GATEWAY:
            self._session = self._server.attach(hello.name, self)
        self.say(Welcome(self._server.epoch, self._session.settled_through if self._session else 0))
        if self._session is not None and (not self.is_local or self._server.claim is not None):
            self._heartbeat.start()
        if self._session is not None and self._server.standbys().addresses:
            self.say(self._server.standbys())
        if hello.role is Role.STANDBY:
            self._server.standby_came(self, hello.address)
            if not self.is_local:
                self._heartbeat.start()

    def _why_not(self, hello: Hello) -> str:
        if hello.protocol != PROTOCOL:
            return f"this dispatcher speaks version {PROTOCOL} of the protocol"
        if self.is_local:
            return ""  # the folder's mode has said who may come
        proof = prove(self._server.secret, self._nonce, hello.name, hello.role)
        return "" if hmac.compare_digest(proof, hello.proof) else "the secret is another one"

    def _observe(self, every_s: float) -> None:
        self.say(Observed(self._server.next_sequence(), self._server.observe()))
        if every_s > 0:
            self._observing = self._loop.call_later(max(every_s, 0.1), self._observe, every_s)


def _notice_dead_peers(connected: socket.socket) -> None:
    """A machine that is gone without a word is noticed within seconds, not hours."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5000}.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

"""The brain's door for other processes: a Unix socket, and TCP for other machines. Each gateway's connection is a session.

A connection's end is its gateway's death: on a Unix socket at once; over TCP it may be the network, so the session is
frozen first, and freed when the gateway has not come back in time. After a takeover nothing is granted until the
gateways that are known to live have said what they hold, or a stated time is over.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from headway import env
from inference.dispatch.gateway_session import GatewaySession
from inference.dispatch.heartbeat import HeartbeatTunables
from inference.dispatch.host import BrainHost
from inference.dispatch.lost_records import NoRecords, RecordKeeper
from inference.dispatch.mandate import Claim
from inference.dispatch.observing import observed
from inference.dispatch.server_connection import DispatcherConnection
from inference.dispatch.wire import Members, Standbys, Told

log = structlog.get_logger(__name__)

_BACKLOG = 1024
CLAIM_LOOK_S = 0.1
HELD_AT_MOST_S = 5.0
"""How long a request waits for a dispatcher that may not decide yet."""
# How many gateways that are gone are remembered by the number of their last settled request.
_MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class ServerTunables:
    grace_s: float = 1.0
    """After a takeover: how long gateways that are known to live are waited for."""
    freeze_s: float = 5.0
    """How long a gateway that is cut off over TCP keeps its slots."""
    heartbeat: HeartbeatTunables = field(default_factory=HeartbeatTunables)

    @classmethod
    def from_env(cls) -> "ServerTunables":
        default = cls()
        return cls(
            grace_s=env.seconds("HEADWAY_DISPATCHER_GRACE_S", default.grace_s),
            freeze_s=env.seconds("HEADWAY_DISPATCHER_FREEZE_S", default.freeze_s),
        )


class DispatcherServer:
    """Of one epoch; its methods belong to the event loop."""

    def __init__(
        self,
        host: BrainHost,
        *,
        epoch: int,
        name: str,
        tunables: ServerTunables | None = None,
        secret: str = "",
        records: RecordKeeper | None = None,
        claim: Claim | None = None,
        on_newer_epoch: Callable[[int], None] = lambda epoch: None,
        on_unfit: Callable[[], None] = lambda: None,
    ) -> None:
        """`secret`: what is asked of those who come over TCP. `on_newer_epoch`: a gateway has seen another dispatcher.

        `claim`: of one that shares an installation with other machines; `on_unfit`: it has lost its right to decide.
        """
        self.host, self.epoch, self.name = host, epoch, name
        self.secret = secret
        self.tunables = tunables or ServerTunables()
        self.records: RecordKeeper = records or NoRecords()
        self.gateways: dict[str, GatewaySession] = {}
        self._on_newer_epoch = on_newer_epoch
        self._settled_through: dict[str, int] = {}
        self._connections: set[DispatcherConnection] = set()
        self._servers: list[asyncio.AbstractServer] = []
        self._awaited: set[str] = set()
        self._grace: asyncio.TimerHandle | None = None
        self._sequence = 0
        self._is_closed = False
        self.claim, self._on_unfit = claim, on_unfit
        self._is_grace_over = False
        self._standbys: dict[DispatcherConnection, str] = {}
        self._said_members: Members | None = None
        self._looking: asyncio.TimerHandle | None = None
        if claim is not None:
            host.decide_only_with(claim.mandate, self._unfit)

    def begin(self, known: Iterable[str]) -> None:
        """Grants begin when these gateways, or the grace, are through."""
        self._awaited = set(known) - {name for name, its in self.gateways.items() if its.has_announced}
        if self._awaited or self.claim is not None:
            self.host.hold()
            self._grace = asyncio.get_running_loop().call_later(self.tunables.grace_s, self._grace_over)
        self.host.start()
        if self.claim is not None:
            self._look_at_claim()

    def _grace_over(self) -> None:
        self._is_grace_over = True
        self._open_if_may()

    def _open_if_may(self) -> None:
        may = self.claim is None or self.claim.may_open(self.host.now_s())
        if self.host.is_holding and may and (self._is_grace_over or not self._awaited):
            self._open()

    def _look_at_claim(self) -> None:
        """Whether it may decide yet; or not any more, though nobody asks."""
        assert self.claim is not None
        self._looking = asyncio.get_running_loop().call_later(CLAIM_LOOK_S, self._look_at_claim)
        self._tell_members()
        self._open_if_may()
        if self.host.is_holding:
            self.host.refuse_held(HELD_AT_MOST_S)
        if not self.host.is_holding and not self.claim.mandate.holds(self.host.now_s()):
            self._unfit()

    def _unfit(self) -> None:
        if not self._is_closed:
            log.error("dispatcher_without_mandate", epoch=self.epoch, gateways=len(self.gateways))
            self.close()
            self._on_unfit()

    async def listen_unix(self, path: Path) -> None:
        """The caller holds the lock: what is at `path` was left by the dead. Its folder is private."""
        loop = asyncio.get_running_loop()
        bound = _bind_unix(path)
        self._servers.append(
            await loop.create_unix_server(lambda: DispatcherConnection(self, is_local=True), sock=bound, backlog=_BACKLOG)
        )

    async def listen_tcp(self, host: str, port: int, context: ssl.SSLContext | None = None) -> int:
        """The port; `context`: encrypted. Raises OSError."""
        assert self.secret, "without a secret anybody could take slots"
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: DispatcherConnection(self, is_local=False), host, port, backlog=_BACKLOG, ssl=context
        )
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def close(self) -> None:
        """Decide nothing more and hang up."""
        self._is_closed = True
        self.host.close()
        for timer in (self._grace, self._looking):
            if timer is not None:
                timer.cancel()
        for server in self._servers:
            server.close()
        for session in self.gateways.values():
            session.thaw()
        for connection in list(self._connections):
            connection.close()

    def is_idle(self) -> bool:
        return not self.gateways

    def observe(self) -> dict[str, Any]:
        snapshot = observed(self.host.snapshot())
        return {
            "holder": self.name,
            "pid": os.getpid(),
            "epoch": self.epoch,
            "is_open": not self.host.is_holding,
            "gateways": sorted(self.gateways),
            **snapshot,
        }

    # What connections do

    def standbys(self) -> Standbys:
        return Standbys(sorted({address for address in self._standbys.values() if address}))

    def standby_came(self, connection: "DispatcherConnection", address: str) -> None:
        self._standbys[connection] = address
        if self.claim is not None:
            connection.say(self._members(self.claim, self.claim.told))
        self._tell_gateways(self.standbys())

    def _tell_gateways(self, frame: Told) -> None:
        for session in self.gateways.values():
            if session.connection is not None:
                session.connection.say(frame)

    def _tell_members(self) -> None:
        """Standbys hear of them before the row does; what they heard last before stays true until then."""
        claim = self.claim
        if claim is None or claim.proposed is None or len(claim.mandate.member_sets) > 1:
            return
        frame = self._members(claim, claim.proposed)
        if frame != self._said_members:
            self._said_members = frame
            for connection in self._standbys:
                connection.say(frame)
                connection.flush()
        claim.told = claim.proposed

    def _members(self, claim: Claim, next_set: frozenset[str] | None) -> Members:
        sets = dict.fromkeys([*claim.mandate.member_sets, *([next_set] if next_set is not None else [])])
        return Members([sorted(members) for members in sets])

    def came(self, connection: "DispatcherConnection") -> None:
        self._connections.add(connection)

    def attach(self, name: str, connection: "DispatcherConnection") -> "GatewaySession":
        known = self.gateways.get(name)
        if known is None:
            known = self.gateways[name] = GatewaySession(self, name, self._settled_through.pop(name, 0))
        known.attach(connection)
        self.records.came_back(name)
        log.info("gateway_attached", gateway=name, epoch=self.epoch)
        return known

    def saw_epoch(self, epoch: int) -> None:
        if epoch > self.epoch:
            self._on_newer_epoch(epoch)

    def announced(self, session: "GatewaySession") -> None:
        self._awaited.discard(session.name)
        if self.claim is not None and session.connection is not None:
            self.claim.came(session.name, self.host.now_s())
        if not self.host.is_holding:
            session.open()
        else:
            self._open_if_may()

    def _open(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
        log.info("dispatcher_grants", epoch=self.epoch, gateways=len(self.gateways), missing=sorted(self._awaited))
        self._awaited.clear()
        if self.claim is not None:
            self.claim.on_open()
        self.host.let_go()
        for session in self.gateways.values():
            if session.has_announced:
                session.open()

    def gone(self, connection: "DispatcherConnection", session: "GatewaySession | None") -> None:
        self._connections.discard(connection)
        if self._standbys.pop(connection, ""):
            self._tell_gateways(self.standbys())
        if session is not None and session.connection is connection:
            session.detach(freeze_s=0.0 if connection.is_local else self.tunables.freeze_s)

    def settle_lost(self, session: "GatewaySession") -> None:
        """Its requests' records go to the ledger in a while, and are acknowledged to the brain then as if it had done so."""
        if self._is_closed:
            return  # it is us who go: what it holds it tells the next
        brain = self.host.brain
        drafts = session.records.lost(brain.usage_so_far, unix_s=self.host.unix_s())
        self.records.keep(session.name, drafts, lambda: self.host.acknowledge(drafts, session.name))

    def freed(self, session: "GatewaySession") -> None:
        if self.gateways.get(session.name) is session:
            del self.gateways[session.name]
            self._settled_through[session.name] = session.settled_through
            if len(self._settled_through) > _MAX_REMEMBERED:
                self._settled_through.pop(next(iter(self._settled_through)))
        log.info("gateway_gone", gateway=session.name, epoch=self.epoch)
        if session.name in self._awaited:
            self.announced(session)

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence


def _bind_unix(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(str(path))
    path.chmod(0o600)
    bound.setblocking(False)
    return bound

"""The brain's door for other processes: a Unix socket, and TCP for other machines. Each gateway's connection is a session.

A connection's end is its gateway's death: on a Unix socket at once; over TCP it may be the network, so the session is
frozen first, and freed when the gateway has not come back in time. After a takeover nothing is granted until the
gateways that are known to live have said what they hold, or a stated time is over.
"""

import asyncio
import hmac
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from headway import env
from inference.dispatch.heartbeat import Heartbeat, HeartbeatTunables
from inference.dispatch.host import BrainHost, Session
from inference.dispatch.lost_records import NoRecords, RecordKeeper
from inference.dispatch.mandate import Claim
from inference.dispatch.observing import observed
from inference.dispatch.provisional import ProvisionalRecords
from inference.dispatch.wire import (
    PROTOCOL,
    Acknowledged,
    Announced,
    AskRates,
    Away,
    Beat,
    Challenge,
    Drafts,
    End,
    Final,
    FirstToken,
    FrameConnection,
    Hello,
    InLedger,
    Members,
    Observe,
    Observed,
    Open,
    Parked,
    Progress,
    RatesFrame,
    ReplicaState,
    Role,
    Running,
    Said,
    SaidMessage,
    Settled,
    Standbys,
    Submit,
    Told,
    TurnedAway,
    Waiting,
    Welcome,
    WireError,
    frame_of,
    incoming,
    prove,
)
from inference.policy.decisions import Decision

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
        self._connections: set[_Connection] = set()
        self._servers: list[asyncio.AbstractServer] = []
        self._awaited: set[str] = set()
        self._grace: asyncio.TimerHandle | None = None
        self._sequence = 0
        self._is_closed = False
        self.claim, self._on_unfit = claim, on_unfit
        self._is_grace_over = False
        self._standbys: dict[_Connection, str] = {}
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
            await loop.create_unix_server(lambda: _Connection(self, is_local=True), sock=bound, backlog=_BACKLOG)
        )

    async def listen_tcp(self, host: str, port: int) -> int:
        """The port. Raises OSError."""
        assert self.secret, "without a secret anybody could take slots"
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self, is_local=False), host, port, backlog=_BACKLOG)
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

    def standby_came(self, connection: "_Connection", address: str) -> None:
        self._standbys[connection] = address
        if self.claim is not None:
            sets = [*self.claim.mandate.member_sets, *([self.claim.told] if self.claim.told is not None else [])]
            connection.say(Members([sorted(members) for members in sets[-2:]]))
        self._tell_gateways(self.standbys())

    def _tell_gateways(self, frame: Told) -> None:
        for session in self.gateways.values():
            if session.connection is not None:
                session.connection.say(frame)

    def _tell_members(self) -> None:
        """Standbys hear of them before the row does; what they heard last before stays true until then."""
        claim = self.claim
        if claim is None or claim.proposed is None or claim.proposed == claim.told:
            return
        sets = [*claim.mandate.member_sets[-1:], claim.proposed]
        for connection in self._standbys:
            connection.say(Members([sorted(members) for members in sets]))
            connection.flush()
        claim.told = claim.proposed

    def came(self, connection: "_Connection") -> None:
        self._connections.add(connection)

    def attach(self, name: str, connection: "_Connection") -> "GatewaySession":
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

    def gone(self, connection: "_Connection", session: "GatewaySession | None") -> None:
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


class GatewaySession:
    """What a gateway holds here; over TCP it may outlive a connection."""

    def __init__(self, server: DispatcherServer, name: str, settled_through: int) -> None:
        self.name, self.settled_through = name, settled_through
        self.connection: _Connection | None = None
        self.has_announced = self._is_open = False
        self._server = server
        self._session: Session = server.host.open(self._deliver)
        self._unannounced: set[str] = set()
        self.records = ProvisionalRecords()
        self._thaw: asyncio.TimerHandle | None = None

    def attach(self, connection: "_Connection") -> None:
        """Of two connections the newer is the gateway's."""
        self.thaw()
        before, self.connection = self.connection, connection
        if before is not None:
            before.close()
        self.has_announced = self._is_open = False
        self._unannounced = set(self._session.ids)

    def open(self) -> None:
        if not self._is_open and self.connection is not None:
            self._is_open = True
            self.connection.say(Open())

    def detach(self, *, freeze_s: float) -> None:
        if self._server.claim is not None:
            self._server.claim.mandate.left(self.name)
        self.connection, self.has_announced, self._is_open = None, False, False
        if freeze_s:
            log.warning("gateway_frozen", gateway=self.name, freeze_s=freeze_s)
            self._thaw = asyncio.get_running_loop().call_later(freeze_s, self._free)
        else:
            self._free()

    def thaw(self) -> None:
        if self._thaw is not None:
            self._thaw.cancel()
            self._thaw = None

    def _free(self) -> None:
        self._thaw = None
        self._server.settle_lost(self)
        self._session.close()
        self._server.freed(self)

    def _deliver(self, decisions: list[Decision]) -> None:
        """What is decided while it is cut off is lost, and put right by what it announces."""
        if self.connection is not None:
            for decision in decisions:
                self.connection.say(frame_of(decision, self._server.host.brain.reserved_tokens))

    def _say(self, frame: Told) -> None:
        if self.connection is not None:
            self.connection.say(frame)

    def hear(self, frame: Said, now_s: float) -> None:
        """Raises WireError."""
        session = self._session
        match frame:
            case Submit(ask):
                session.submit(incoming(ask, now_s))
            case End(number, request_id, ending, usage):
                session.end(request_id, ending, usage)
                self.settled_through = max(self.settled_through, number)
                if usage is not None:
                    self.records.ended(request_id)
            case Drafts(drafts):
                self.records.told(drafts)
            case Final(draft):
                self.records.final(draft)
            case InLedger(request_ids):
                self.records.in_ledger(request_ids)
            case Progress(tokens):
                session.progress(tokens)
            case FirstToken(request_id):
                session.first_token(request_id)
            case Parked(request_id, ask):
                session.parked(request_id, incoming(ask, now_s))
            case Announced():
                self._announced()
            case Beat(sent_s):
                if self._server.claim is not None:
                    self._server.claim.mandate.echoed(self.name, sent_s)
            case AskRates(number, tenant, key, model):
                session.rates(tenant, key, model, lambda rates: self._say(RatesFrame(number, rates)))
            case Acknowledged(tenant, key, model, amount_micros):
                self._server.host.brain.acknowledged(tenant, amount_micros, key=key, model=model)
            case Running() | Waiting() | Away() | Settled():
                self._restore(frame, now_s)
            case _:
                raise WireError(f"{type(frame).__name__} of a gateway")

    def _restore(self, frame: Running | Waiting | Away | Settled, now_s: float) -> None:
        session, ask = self._session, incoming(frame.ask, now_s)
        self._unannounced.discard(ask.id)
        match frame:
            case Running():
                session.restore_running(ask, frame.replica, age_s=frame.age_s, completion_tokens=frame.completion_tokens)
            case Waiting():
                session.restore_waiting(ask, age_s=frame.age_s, waited_s=frame.waited_s)
            case Away():
                session.restore_away(ask, age_s=frame.age_s)
            case Settled():
                session.restore_settled(ask, age_s=frame.age_s, usage=frame.usage, is_acknowledged=frame.is_acknowledged)
                self.settled_through = max(self.settled_through, frame.number)

    def _announced(self) -> None:
        self._session.lose(self._unannounced)  # it was refused, or its ask never had an answer
        for request_id in self._unannounced:
            self.records.ended(request_id)
        self._unannounced.clear()
        self.has_announced = True
        self._server.announced(self)


class _Connection(FrameConnection):
    def __init__(self, server: DispatcherServer, *, is_local: bool) -> None:
        super().__init__(SaidMessage)
        self.is_local = is_local
        self._server = server
        self._nonce = secrets.token_bytes(16)
        self._role: Role | None = None
        self._session: GatewaySession | None = None
        self._observing: asyncio.TimerHandle | None = None
        self._heartbeat = Heartbeat(self, server.tunables.heartbeat, server.host.now_s)

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


def _bind_unix(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(str(path))
    path.chmod(0o600)
    bound.setblocking(False)
    return bound


def _notice_dead_peers(connected: socket.socket) -> None:
    """A machine that is gone without a word is noticed within seconds, not hours."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 5000}.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

"""What one gateway holds at a dispatcher; over TCP it may outlive a connection."""

import asyncio
from typing import TYPE_CHECKING

import structlog

from inference.dispatch.provisional import ProvisionalRecords
from inference.dispatch.session import Session
from inference.dispatch.wire import (
    Acknowledged,
    Announced,
    AskRates,
    Away,
    Beat,
    Drafts,
    End,
    Final,
    FirstToken,
    InLedger,
    Open,
    Parked,
    Progress,
    RatesFrame,
    Running,
    Said,
    Settled,
    Submit,
    Told,
    Waiting,
    WireError,
    frame_of,
    incoming,
)
from inference.policy.decisions import Decision

if TYPE_CHECKING:
    from inference.dispatch.server import DispatcherServer
    from inference.dispatch.server_connection import DispatcherConnection

log = structlog.get_logger(__name__)


class GatewaySession:
    """What a gateway holds here; over TCP it may outlive a connection."""

    def __init__(self, server: "DispatcherServer", name: str, settled_through: int) -> None:
        self.name, self.settled_through = name, settled_through
        self.connection: DispatcherConnection | None = None
        self.has_announced = self._is_open = False
        self._server = server
        self._session: Session = server.host.open(self._deliver)
        self._unannounced: set[str] = set()
        self.records = ProvisionalRecords()
        self._thaw: asyncio.TimerHandle | None = None

    def attach(self, connection: "DispatcherConnection") -> None:
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
            case Acknowledged(tenant, key, model, amount_picos):
                self._server.host.brain.acknowledged(tenant, amount_picos, key=key, model=model)
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

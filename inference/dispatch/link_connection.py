"""One connection of a gateway to a dispatcher."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from inference.dispatch.heartbeat import Heartbeat
from inference.dispatch.wire import (
    PROTOCOL,
    Beat,
    Challenge,
    FrameConnection,
    GrantedFrame,
    Hello,
    Open,
    ParkFrame,
    QueuedFrame,
    RatesFrame,
    RefusedFrame,
    Role,
    Standbys,
    Told,
    ToldMessage,
    TurnedAway,
    Welcome,
    WireError,
    prove,
)
from inference.policy.decisions import Decision

if TYPE_CHECKING:
    from inference.dispatch.remote import RemoteLink

log = structlog.get_logger(__name__)


class LinkConnection(FrameConnection):
    def __init__(self, link: "RemoteLink", *, is_local: bool) -> None:
        super().__init__(ToldMessage)
        self.is_local = is_local
        self._heartbeat = Heartbeat(self, link.tunables.heartbeat)
        self.welcomed: asyncio.Future[bool] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._link = link
        self._is_welcome = False

    def epoch(self) -> int:
        return self._link.highest_epoch

    def heard(self, epoch: int, frames: Sequence[Told]) -> None:
        decisions: list[Decision] = []
        now_s, book = self._link.clock.monotonic_s(), self._link.book
        is_stale = epoch < self._link.highest_epoch
        for frame in frames:
            match frame:
                case GrantedFrame(decision):
                    granted = None if is_stale else book.granted(decision, now_s)
                    if granted is not None:
                        decisions.append(granted)
                case QueuedFrame(decision, max_tokens):
                    book.queued(decision.id, max_tokens, now_s)
                    decisions.append(decision)
                case RefusedFrame(decision):
                    book.refused(decision.id, now_s)
                    decisions.append(decision)
                case ParkFrame(decision):
                    decisions.append(decision)
                case _:
                    self._hear_other(frame)
        if decisions and self._is_welcome:
            self._link.decided(decisions)

    def _hear_other(self, frame: Told) -> None:
        """Raises WireError."""
        link = self._link
        match frame:
            case Challenge(protocol, nonce):
                if protocol != PROTOCOL:
                    raise WireError(f"version {protocol} of the protocol")
                proof = prove(link.secret, nonce, link.gateway, Role.GATEWAY) if link.secret else b""
                self.say(Hello(PROTOCOL, link.gateway, Role.GATEWAY, proof))
            case Welcome():
                self._is_welcome = link.welcomed(self, frame)
                self._settle(self._is_welcome)
                if self._is_welcome and not self.is_local:
                    self._heartbeat.start()
            case TurnedAway(reason):
                log.error("dispatcher_turned_us_away", reason=reason)
                self._settle(False)
            case Open() if self._is_welcome:
                link.opened(self)
            case Beat(sent_s):
                self.say(Beat(sent_s))
                link.look_for_newer(self)
            case Standbys(addresses):
                link.standbys_are(addresses)
            case RatesFrame(number, rates):
                link.rates_told(number, rates)
            case _:
                raise WireError(type(frame).__name__)

    def _settle(self, is_welcome: bool) -> None:
        if not self.welcomed.done():
            self.welcomed.set_result(is_welcome)

    def lost(self) -> None:
        self._heartbeat.stop()
        self._settle(False)
        if not self.ended.done():
            self.ended.set_result(None)
        self._link.lost(self)

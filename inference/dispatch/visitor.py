"""Connections to a dispatcher that ask for no grant: a standby waits for its end, an observer looks, an agent tells."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inference.dispatch.address import Address
from inference.dispatch.heartbeat import Heartbeat, HeartbeatTunables
from inference.dispatch.wire import (
    PROTOCOL,
    Beat,
    Challenge,
    FrameConnection,
    Hello,
    Members,
    Observe,
    Observed,
    ReplicaState,
    Role,
    Told,
    ToldMessage,
    TurnedAway,
    Welcome,
    WireError,
    prove,
)
from inference.policy.decisions import StateFrame

DYING_LOOKS = 10
DYING_PAUSE_S = 0.05


class _Visit(FrameConnection):
    def __init__(self, role: Role, secret: str, own_address: str = "") -> None:
        super().__init__(ToldMessage)
        self.members: list[list[str]] = []
        """As the dispatcher has told a standby last."""
        self._own_address = own_address
        self._heartbeat = Heartbeat(self, HeartbeatTunables())
        self.welcomed: asyncio.Future[Welcome | None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.observed: asyncio.Queue[Observed] = asyncio.Queue()
        self._role, self._secret = role, secret

    def epoch(self) -> int:
        return 0

    def heard(self, epoch: int, frames: Sequence[Told]) -> None:
        for frame in frames:
            match frame:
                case Challenge(protocol, nonce):
                    if protocol != PROTOCOL:
                        raise WireError(f"version {protocol} of the protocol")
                    name = f"{self._role.value}-{os.getpid()}"
                    proof = prove(self._secret, nonce, name, self._role) if self._secret else b""
                    self.say(Hello(PROTOCOL, name, self._role, proof, self._own_address))
                case Welcome():
                    self._settle(frame)
                    if self._role is Role.STANDBY and self._secret:
                        self._heartbeat.start()
                case TurnedAway():
                    self._settle(None)
                case Beat():
                    self.say(frame)
                case Members(sets):
                    self.members = sets
                case Observed():
                    self.observed.put_nowait(frame)
                case _:
                    raise WireError(type(frame).__name__)

    def lost(self) -> None:
        self._heartbeat.stop()
        self._settle(None)
        if not self.ended.done():
            self.ended.set_result(None)

    def _settle(self, welcome: Welcome | None) -> None:
        if not self.welcomed.done():
            self.welcomed.set_result(welcome)


async def _visit(address: Address, role: Role, secret: str, connect_s: float, own_address: str = "") -> _Visit | None:
    """None: nobody is there, or he has no time for us."""
    visit = _Visit(role, secret, own_address)
    try:
        async with asyncio.timeout(connect_s):
            await address.connect(lambda: visit)
            if await visit.welcomed is not None:
                return visit
    except (OSError, TimeoutError):
        pass
    visit.close()
    return None


async def end_of(address: Address, *, secret: str = "", connect_s: float = 2.0) -> bool:
    """Returns when the dispatcher there has ended; false: nobody was there."""
    visit = await _visit(address, Role.STANDBY, secret, connect_s)
    if visit is None:
        return False
    try:
        await visit.ended
    finally:
        visit.close()
    return True


async def members_at_end_of(
    address: Address, *, own_address: str, secret: str = "", connect_s: float = 2.0
) -> list[list[str]] | None:
    """Of another machine: when the dispatcher there has ended, the sets of gateways that it had named last.

    None: nobody was there, or its machine does not say that it has ended: the network may have.
    """
    visit = await _visit(address, Role.STANDBY, secret, connect_s, own_address)
    if visit is None:
        return None
    try:
        await visit.ended
    finally:
        visit.close()
    return visit.members if await _nobody_listens(address, connect_s) else None


async def _nobody_listens(address: Address, connect_s: float) -> bool:
    """A process that is killed loses its connections a moment before it loses the socket it listens on."""
    for _ in range(DYING_LOOKS):
        try:
            async with asyncio.timeout(connect_s):
                await address.connect(_Passer)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        await asyncio.sleep(DYING_PAUSE_S)
    return False


class _Passer(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def look_at(address: Address, *, secret: str = "", timeout_s: float = 2.0) -> dict[str, Any] | None:
    """The dispatcher's snapshot, with its `sequence`; None: nobody answers."""
    visit = await _visit(address, Role.OBSERVER, secret, timeout_s)
    if visit is None:
        return None
    try:
        visit.say(Observe(0.0))
        seen = await asyncio.wait_for(visit.observed.get(), timeout_s)
    except TimeoutError:
        return None
    finally:
        visit.close()
    return {"sequence": seen.sequence, **seen.snapshot}


async def push_states(
    address: Address,
    frames: Callable[[], Mapping[str, StateFrame] | None],
    *,
    every_s: float,
    secret: str = "",
    connect_s: float = 2.0,
) -> None:
    """Tell `frames()` (by replica) again and again; returns when that is None, or the dispatcher has gone or was not there."""
    visit = await _visit(address, Role.AGENT, secret, connect_s)
    if visit is None:
        return
    try:
        while not visit.ended.done():
            states = frames()
            if states is None:
                return
            for replica, frame in states.items():
                visit.say(ReplicaState(replica, frame))
            await asyncio.wait([visit.ended], timeout=every_s)
    finally:
        visit.close()

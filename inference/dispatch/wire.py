"""What gateways and a dispatcher say to each other: frames in msgpack, several in one message, behind a length of four bytes.

A message is `[epoch, [frame, ...]]`: of a dispatcher its own epoch, of a gateway the highest it has seen. Frames are tagged
arrays around the policy's own values. Times in them are spans, as the two clocks are not one: an `Ask.deadline_s` on the
wire is how long from now (`outgoing`, `incoming`).

    dispatcher  Challenge                                    Welcome ...... Open, decisions, Observed
    gateway               Hello                                      Running, Waiting, Away, Settled, Announced, Submit ...
    standby               Hello, and then waits for the end of the connection
    observer              Hello, Observe
"""

import asyncio
import hashlib
import hmac
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, cast

import msgspec

from billing.services.ledger import UsageDraft
from inference.policy.decisions import Ask, Decision, Ending, Granted, Park, Queued, RateView, Refused, StateFrame, Usage

PROTOCOL = 4
MAX_MESSAGE_BYTES = 32 * 1024 * 1024
FRAMES_A_MESSAGE = 1000
# A peer that takes nothing for so long that this much waits for it is as good as gone.
MAX_UNSENT_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")


class WireError(Exception):
    """Close the connection: what came is not of this protocol."""


class Role(StrEnum):
    GATEWAY = "gateway"
    STANDBY = "standby"
    OBSERVER = "observer"
    AGENT = "agent"


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    pass


# From a gateway


class Hello(_Frame, frozen=True, tag=0):
    protocol: int
    name: str
    role: Role
    proof: bytes
    """Of knowing the secret, over TCP: `prove`."""
    address: str = ""
    """Of a standby: where it will be, should it lead."""


class Running(_Frame, frozen=True, tag=1):
    """It holds a grant."""

    ask: Ask
    """As it was first granted: what is reserved."""
    replica: str
    age_s: float
    """Since its reservation."""
    completion_tokens: int


class Waiting(_Frame, frozen=True, tag=2):
    """It was reserved, and is queued."""

    ask: Ask
    age_s: float
    waited_s: float


class Away(_Frame, frozen=True, tag=3):
    """Its attempt has ended; it will ask again."""

    ask: Ask
    age_s: float


class Settled(_Frame, frozen=True, tag=4):
    """It has ended; the last minute's, and older ones that the ledger has not acknowledged."""

    number: int
    ask: Ask
    age_s: float
    usage: Usage
    is_acknowledged: bool


class Announced(_Frame, frozen=True, tag=5):
    """That was all."""


class Submit(_Frame, frozen=True, tag=6):
    ask: Ask


class FirstToken(_Frame, frozen=True, tag=7):
    id: str


class Progress(_Frame, frozen=True, tag=8):
    tokens: list[tuple[str, int]]


class End(_Frame, frozen=True, tag=9):
    number: int
    """Counts the final ends of a gateway, so that one told again is known; 0: not final."""
    id: str
    ending: Ending
    usage: Usage | None


class Parked(_Frame, frozen=True, tag=10):
    id: str
    ask: Ask


class ReplicaState(_Frame, frozen=True, tag=11):
    replica: str
    frame: StateFrame


class Observe(_Frame, frozen=True, tag=12):
    every_s: float
    """0: once."""


class Acknowledged(_Frame, frozen=True, tag=13):
    """The ledger has what was settled."""

    tenant: str
    key: str
    model: str
    amount_picos: int


class AskRates(_Frame, frozen=True, tag=14):
    """How do the limits of this key stand?"""

    number: int
    tenant: str
    key: str
    model: str


class Drafts(_Frame, frozen=True, tag=15):
    """The records of requests that have begun, as they stand; once each. `Progress` says how far they are from then on."""

    drafts: list[UsageDraft]


class Final(_Frame, frozen=True, tag=16):
    """The record of a request that has ended: a second copy, until `InLedger`."""

    draft: UsageDraft


class InLedger(_Frame, frozen=True, tag=17):
    """The ledger has these requests' records."""

    ids: list[str]


class Beat(_Frame, frozen=True, tag=18):
    """I live: of a dispatcher, now and then; a gateway says the same back."""

    sent_s: float


Said = (
    Hello
    | Running
    | Waiting
    | Away
    | Settled
    | Announced
    | Submit
    | FirstToken
    | Progress
    | End
    | Parked
    | ReplicaState
    | Observe
    | Acknowledged
    | AskRates
    | Drafts
    | Final
    | InLedger
    | Beat
)


# From a dispatcher


class Challenge(_Frame, frozen=True, tag=32):
    protocol: int
    nonce: bytes


class Welcome(_Frame, frozen=True, tag=33):
    epoch: int
    settled_through: int
    """The number of the last final end that this dispatcher has of this gateway; 0: none."""


class TurnedAway(_Frame, frozen=True, tag=34):
    reason: str


class Open(_Frame, frozen=True, tag=35):
    """From now on there are decisions."""


class GrantedFrame(_Frame, frozen=True, tag=36):
    decision: Granted


class QueuedFrame(_Frame, frozen=True, tag=37):
    decision: Queued
    max_tokens: int
    """What is reserved for it: no more than it asked for."""


class RefusedFrame(_Frame, frozen=True, tag=38):
    decision: Refused


class ParkFrame(_Frame, frozen=True, tag=39):
    decision: Park


class Observed(_Frame, frozen=True, tag=40):
    sequence: int
    snapshot: dict[str, Any]


class RatesFrame(_Frame, frozen=True, tag=41):
    number: int
    """Of the AskRates that it answers."""
    rates: RateView


class Standbys(_Frame, frozen=True, tag=43):
    """To gateways: who may follow, should this one end while the lease row cannot be read."""

    addresses: list[str]


class Members(_Frame, frozen=True, tag=44):
    """To standbys: the gateways that the row names, or is about to; two sets while that is not sure."""

    sets: list[list[str]]


Told = (
    Challenge
    | Welcome
    | TurnedAway
    | Open
    | GrantedFrame
    | QueuedFrame
    | RefusedFrame
    | ParkFrame
    | Observed
    | RatesFrame
    | Beat
    | Standbys
    | Members
)


def frame_of(decision: Decision, reserved_tokens: Callable[[str], int]) -> Told:
    match decision:
        case Granted():
            return GrantedFrame(decision)
        case Queued():
            return QueuedFrame(decision, reserved_tokens(decision.id))
        case Refused():
            return RefusedFrame(decision)
        case Park():
            return ParkFrame(decision)


class SaidMessage(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    frames: list[Said]


class ToldMessage(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    frames: list[Told]


_encode = msgspec.msgpack.Encoder().encode


def encode(epoch: int, frames: Sequence[Said | Told]) -> bytes:
    """As many messages as it takes."""
    parts: list[bytes] = []
    for start in range(0, len(frames), FRAMES_A_MESSAGE):
        body = _encode((epoch, frames[start : start + FRAMES_A_MESSAGE]))
        parts += (_LENGTH.pack(len(body)), body)
    return b"".join(parts)


def outgoing(ask: Ask, now_s: float) -> Ask:
    return ask if ask.deadline_s is None else replace(ask, deadline_s=ask.deadline_s - now_s)


def incoming(ask: Ask, now_s: float) -> Ask:
    return ask if ask.deadline_s is None else replace(ask, deadline_s=ask.deadline_s + now_s)


def prove(secret: str, nonce: bytes, name: str, role: Role) -> bytes:
    return hmac.digest(secret.encode(), b"%b\0%b\0%b" % (nonce, role.value.encode(), name.encode()), hashlib.sha256)


class FrameConnection(asyncio.Protocol):
    """One connection, of either side: what is said within a turn of the loop leaves in one write."""

    def __init__(self, message: type[SaidMessage] | type[ToldMessage]) -> None:
        self._decode = msgspec.msgpack.Decoder(message).decode
        self._data = bytearray()
        self._unsaid: list[Said | Told] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.heard_s = self._loop.time()
        """When its peer has said anything last, by the loop's clock."""

    def epoch(self) -> int:
        """Goes out with every message."""
        raise NotImplementedError

    def heard(self, epoch: int, frames: Sequence[Any]) -> None:
        raise NotImplementedError

    def lost(self) -> None:
        """The connection has ended. Called once."""
        raise NotImplementedError

    def say(self, frame: Said | Told) -> None:
        """Nothing happens where the connection has ended."""
        if not self._unsaid:
            self._loop.call_soon(self.flush)
        self._unsaid.append(frame)

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def flush(self) -> None:
        unsaid, self._unsaid = self._unsaid, []
        if not unsaid or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(encode(self.epoch(), unsaid))
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._transport.abort()

    def close(self) -> None:
        """After what was said."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abandon(self) -> None:
        """At once; what was not sent is lost."""
        if self._transport is not None:
            self._transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance

    def data_received(self, data: bytes) -> None:
        self._data += data
        self.heard_s = self._loop.time()
        try:
            for message in self._messages():
                self.heard(message.epoch, message.frames)
        except (WireError, msgspec.MsgspecError):
            # Of another version, or not of ours at all.
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._unsaid.clear()
        self.lost()

    def _messages(self) -> "list[Any]":
        """Raises WireError, msgspec.MsgspecError."""
        messages, at = [], 0
        with memoryview(self._data) as view:
            while len(view) - at >= _LENGTH.size:
                length = _LENGTH.unpack_from(view, at)[0]
                if length > MAX_MESSAGE_BYTES:
                    raise WireError("a message that is too long")
                end = at + _LENGTH.size + length
                if len(view) < end:
                    break
                messages.append(self._decode(view[at + _LENGTH.size : end]))
                at = end
        if at:
            del self._data[:at]
        return messages

"""Frames: what is said is what is heard, however the bytes are cut; what is not of the protocol ends the connection."""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import ConfigurationError
from inference.dispatch import wire
from inference.dispatch.address import Address, parse_address
from inference.policy import decisions
from inference.policy.decisions import Ask

PLAIN = [wire.Hello, wire.FirstToken, wire.Progress, wire.End, wire.Announced, wire.Observe, wire.Acknowledged]
SAID = [*PLAIN, wire.Running, wire.Waiting, wire.Away, wire.Settled, wire.Submit, wire.Parked, wire.ReplicaState]
TOLD = [
    wire.Challenge,
    wire.Welcome,
    wire.TurnedAway,
    wire.Open,
    wire.GrantedFrame,
    wire.QueuedFrame,
    wire.RefusedFrame,
    wire.ParkFrame,
]

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
numbers = st.integers(-(2**53), 2**53)
asks = st.builds(
    Ask,
    id=st.text(max_size=5),
    deadline_s=st.none() | finite,
    blocks=st.lists(st.integers(0, 2**64 - 1), max_size=3).map(tuple),
    price=st.builds(decisions.TokenPrice, numbers, numbers, numbers),
    prompt_tokens=numbers,
    max_tokens=numbers,
)
st.register_type_strategy(Ask, asks)
st.register_type_strategy(int, numbers)
st.register_type_strategy(float, finite)


@pytest.fixture(scope="module", autouse=True)
def _plain_types_again() -> Any:
    """Registered above for `from_type`: other tests of this run must not meet them."""
    yield
    st.register_type_strategy(int, st.integers())
    st.register_type_strategy(float, st.floats())


def frames_of(kinds: Sequence[type[Any]]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.one_of([st.from_type(kind) for kind in kinds]), max_size=4)


class Heard(wire.FrameConnection):
    def __init__(self, message: Any) -> None:
        super().__init__(message)
        self.messages: list[tuple[int, list[Any]]] = []
        self.is_lost = False

    def epoch(self) -> int:
        return 7

    def heard(self, epoch: int, frames: Sequence[Any]) -> None:
        self.messages.append((epoch, list(frames)))

    def lost(self) -> None:
        self.is_lost = True


async def hear(message: Any, *pieces: bytes) -> tuple[Heard, MagicMock]:
    connection, transport = Heard(message), MagicMock(spec=asyncio.Transport)
    connection.connection_made(transport)
    for piece in pieces:
        connection.data_received(piece)
    return connection, transport


@settings(max_examples=60, deadline=None)
@given(frames_of(SAID), frames_of(TOLD), st.integers(0, 2**40), st.data())
def test_frames_are_heard_as_they_were_said_however_the_bytes_are_cut(
    said: list[Any], told: list[Any], epoch: int, data: st.DataObject
) -> None:
    for message, frames in ((wire.SaidMessage, said), (wire.ToldMessage, told)):
        whole = wire.encode(epoch, frames)
        cut = data.draw(st.integers(0, len(whole)))
        connection, transport = asyncio.run(hear(message, whole[:cut], whole[cut:], b""))
        assert connection.messages == ([(epoch, frames)] if frames else [])
        transport.abort.assert_not_called()


@given(asks, finite)
def test_a_deadline_travels_as_a_span(ask: Ask, offset_s: float) -> None:
    there = wire.incoming(wire.outgoing(ask, 100.0), 100.0)
    if ask.deadline_s is None:
        assert there == ask
    else:
        assert there.deadline_s == pytest.approx(ask.deadline_s, abs=1e-3, rel=1e-6)


async def test_many_frames_are_several_messages_in_their_order() -> None:
    frames = [wire.FirstToken(str(number)) for number in range(2500)]
    connection, _ = await hear(wire.SaidMessage, wire.encode(1, frames))
    assert [len(message) for _, message in connection.messages] == [1000, 1000, 500]
    assert [frame for _, message in connection.messages for frame in message] == frames


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", wire.MAX_MESSAGE_BYTES + 1),
        struct.pack(">I", 3) + b"abc",
        struct.pack(">I", 1) + b"\xc1",
        wire.encode(1, [wire.Open()]),  # of the other side
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_what_is_not_of_the_protocol_ends_the_connection(data: bytes) -> None:
    connection, transport = await hear(wire.SaidMessage, data)
    transport.abort.assert_called()
    assert connection.messages == []


async def test_what_is_said_in_one_turn_leaves_in_one_write() -> None:
    connection, transport = await hear(wire.SaidMessage)
    transport.is_closing.return_value = False
    transport.get_write_buffer_size.return_value = 0
    for number in range(10):
        connection.say(wire.FirstToken(str(number)))
    transport.write.assert_not_called()
    await asyncio.sleep(0)
    (data,) = transport.write.call_args.args
    message = msgspec.msgpack.decode(data[4:], type=wire.SaidMessage)
    assert (message.epoch, len(message.frames), transport.write.call_count) == (7, 10, 1)


async def test_a_peer_that_takes_nothing_is_let_go() -> None:
    connection, transport = await hear(wire.SaidMessage)
    transport.is_closing.return_value = False
    transport.get_write_buffer_size.return_value = wire.MAX_UNSENT_BYTES + 1
    connection.say(wire.Announced())
    connection.flush()
    transport.abort.assert_called_once()


@pytest.mark.parametrize(
    "text", ["unix:/run/d.sock", "tcp://10.0.0.1:9102", "tcp://[::1]:9102", "tls://a.b:9102", "tls://[::1]:1"]
)
def test_an_address_reads_as_it_is_written(text: str) -> None:
    assert str(parse_address(text)) == text


def test_host_and_port_are_an_address_and_anything_else_is_an_error() -> None:
    assert parse_address("dispatch.internal:9102") == Address(host="dispatch.internal", port=9102)
    assert parse_address("tls://h:1") == Address(host="h", port=1, is_tls=True) != parse_address("tcp://h:1")
    for text in ("", "nowhere", "tls://host", "host:", ":1", "host:99999", "host:x"):
        with pytest.raises(ConfigurationError):
            parse_address(text)

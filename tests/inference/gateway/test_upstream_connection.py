"""What arrives is taken once and in order, whichever of the two ways each read goes and wherever the reads are cut."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.gateway.upstream_connection import Connection, UpstreamResponse
from tests.fakes.replica import EVENT_STREAM_HEAD, LAST_PIECE, piece


class Owner:
    buffer_bytes = 1 << 30

    def keep(self, url: str, connection: Connection) -> None:
        pass

    def forget(self, url: str, connection: Connection) -> None:
        pass


class Silent(asyncio.Transport):
    def writelines(self, _data: Any) -> None:
        pass

    def abort(self) -> None:
        pass


class Taker:
    """Takes everything, and a read that looks like a whole chunk as one."""

    is_ready = True

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.num_framed = 0

    def pass_framed(self, data: bytes) -> bool:
        size, _, rest = data.partition(b"\r\n")
        if not rest.endswith(b"\r\n") or len(rest) == 2 or size != b"%x" % (len(rest) - 2):
            return False
        self.got.append(rest[:-2])
        self.num_framed += 1
        return True

    def take(self, data: bytes) -> bytes:
        self.got.append(data)
        return b""


async def answering() -> tuple[Connection, UpstreamResponse]:
    connection = Connection(Owner(), "http://engine", asyncio.get_running_loop())
    connection.connection_made(Silent())
    sending = asyncio.ensure_future(connection.send([b"POST"], 5.0))
    await asyncio.sleep(0)
    connection.data_received(EVENT_STREAM_HEAD)
    return connection, await sending


async def taken(reads: list[bytes]) -> Taker:
    connection, response = await answering()
    taker = Taker()
    reading = asyncio.ensure_future(response.read(5.0, taker))
    await asyncio.sleep(0)
    for read in reads:
        connection.data_received(read)
    connection.data_received(LAST_PIECE)
    assert await reading == b""
    assert response.is_complete
    return taker


LIKE_FRAMING = st.sampled_from([b"data: x\n\n", b"5\r\nhello\r\n", b"\r\n", b"a\r\n\r\n", b"5", b"0\r\n"])


@settings(max_examples=300, deadline=None)
@given(payloads=st.lists(LIKE_FRAMING, min_size=1, max_size=8), cuts=st.lists(st.integers(1, 12), max_size=30))
def test_a_body_is_taken_whole_however_its_reads_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(piece, payloads))
    reads: list[bytes] = []
    for size in cuts:
        reads, stream = [*reads, stream[:size]], stream[size:]
    taker = asyncio.run(taken([read for read in [*reads, stream] if read]))
    assert b"".join(taker.got) == b"".join(payloads)


async def test_a_read_that_is_one_chunk_is_offered_as_it_came() -> None:
    taker = await taken([piece(b"one"), piece(b"two"), piece(b"three")[:4], piece(b"three")[4:], piece(b"four")])
    assert (taker.num_framed, b"".join(taker.got)) == (3, b"onetwothreefour")


async def test_what_was_left_to_its_reader_is_not_overtaken() -> None:
    class TakesNoNumbers(Taker):
        def pass_framed(self, data: bytes) -> bool:
            return b"1" not in data and super().pass_framed(data)

        def take(self, data: bytes) -> bytes:
            return data if b"1" in data else super().take(data)

    connection, response = await answering()
    taker = TakesNoNumbers()
    reading = asyncio.ensure_future(response.read(5.0, taker))
    await asyncio.sleep(0)
    for text in (b"a", b"1", b"b"):
        connection.data_received(piece(text))
    assert (await reading, taker.got) == (b"1b", [b"a"])

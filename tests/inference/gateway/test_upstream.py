import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from inference.gateway.upstream import UpstreamPool, UpstreamTunables
from inference.gateway.upstream_connection import ConnectFailed, UpstreamClosed, UpstreamResponse, UpstreamTimeout
from tests.fakes.gateway import until
from tests.fakes.replica import CLOSE, EVENT_STREAM_HEAD, LAST_PIECE, RESET, ScriptedReplica, answered, piece, streamed

TUNABLES = UpstreamTunables(connect_s=0.5, headers_s=2.0)


@pytest.fixture
async def pool() -> AsyncIterator[UpstreamPool]:
    pool = UpstreamPool(TUNABLES)
    yield pool
    pool.close()
    await until(lambda: pool.num_open() == 0)


@pytest.fixture
async def replica() -> AsyncIterator[ScriptedReplica]:
    async with ScriptedReplica() as replica:
        yield replica


async def post(pool: UpstreamPool, replica: ScriptedReplica, body: bytes = b"{}") -> UpstreamResponse:
    return await pool.request(replica.url, "POST", "/v1/completions", [("x-test", "1")], body)


async def whole(response: UpstreamResponse) -> bytes:
    return await response.read_all(2.0, 10**9)


async def test_a_request_reaches_the_engine_as_it_was_given(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    replica.script(answered(b'{"a":1}', 201))
    response = await post(pool, replica, b'{"b":2}')
    assert (response.status, response.headers["content-type"], await whole(response)) == (201, "application/json", b'{"a":1}')
    seen = replica.requests[0]
    assert (seen.method, seen.path, seen.headers["x-test"], seen.body) == ("POST", "/v1/completions", "1", b'{"b":2}')


async def test_a_unix_socket_is_spoken_to_like_a_port(pool: UpstreamPool, short_folder: Path) -> None:
    async with ScriptedReplica(uds=short_folder / "engine.sock") as replica:
        replica.script(answered(b'{"a":1}'))
        assert await whole(await post(pool, replica)) == b'{"a":1}'
        assert replica.requests[0].headers["host"] == "localhost"


async def test_what_has_arrived_is_read_at_once_and_the_end_is_empty(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    replica.script(streamed([b"one", b"two", go, b"three"]))
    response = await post(pool, replica)
    got = b""
    while len(got) < 6:
        got += await response.read(2.0)
    assert got == b"onetwo"
    go.set()
    assert await response.read(2.0) == b"three"
    assert await response.read(2.0) == b""
    assert response.is_complete


async def test_a_connection_is_kept_after_a_whole_message_and_used_again(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    for _ in range(3):
        await whole(await post(pool, replica))
    assert replica.num_connections == 1
    assert pool.num_idle(replica.url) == 1


async def test_a_connection_whose_message_is_not_whole_is_not_kept(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    replica.script(streamed([b"one", asyncio.Event()]))
    response = await post(pool, replica)
    await response.read(2.0)
    assert pool.num_idle(replica.url) == 0
    response.abort()
    await asyncio.wait_for(replica.requests[0].peer_closed.wait(), 1.0)
    await whole(await post(pool, replica))
    assert replica.num_connections == 2


async def test_a_connection_that_the_engine_will_close_is_not_kept(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    replica.script([*answered(b"{}", headers=["connection: close"]), CLOSE])
    assert await whole(await post(pool, replica)) == b"{}"
    assert pool.num_idle(replica.url) == 0


async def test_requests_at_once_use_connections_of_their_own(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    replica.script(streamed([go, b"one"]), streamed([go, b"two"]))
    first, second = await post(pool, replica), await post(pool, replica)
    go.set()
    assert (await whole(first), await whole(second)) == (b"one", b"two")
    assert replica.num_connections == 2


async def test_a_connection_that_went_stale_is_replaced_once_and_silently(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    await whole(await post(pool, replica))
    replica.script([CLOSE], answered(b'{"fresh":1}'))
    assert await whole(await post(pool, replica)) == b'{"fresh":1}'
    assert (replica.num_connections, len(replica.requests)) == (2, 3)


async def test_a_fresh_connection_that_is_closed_is_not_tried_again(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    replica.script([CLOSE])
    with pytest.raises(UpstreamClosed) as caught:
        await post(pool, replica)
    assert caught.value.before_headers
    assert len(replica.requests) == 1


async def test_a_kept_connection_that_breaks_after_the_first_byte_is_not_tried_again(
    pool: UpstreamPool, replica: ScriptedReplica
) -> None:
    await whole(await post(pool, replica))
    replica.script([b"HTTP/1.1 200", RESET])
    with pytest.raises(UpstreamClosed) as caught:
        await post(pool, replica)
    assert caught.value.before_headers
    assert len(replica.requests) == 2


async def test_a_connection_that_was_idle_for_too_long_is_not_used(replica: ScriptedReplica) -> None:
    pool = UpstreamPool(UpstreamTunables(idle_s=-0.001))  # the loop counts in milliseconds
    await whole(await post(pool, replica))
    await whole(await post(pool, replica))
    assert replica.num_connections == 2
    pool.close()
    await until(lambda: pool.num_open() == 0)


async def test_no_more_connections_are_kept_than_allowed(replica: ScriptedReplica) -> None:
    pool = UpstreamPool(UpstreamTunables(max_idle=1))
    go = asyncio.Event()
    replica.script(streamed([go]), streamed([go]))
    responses = [await post(pool, replica), await post(pool, replica)]
    go.set()
    for response in responses:
        await whole(response)
    assert pool.num_idle(replica.url) == 1
    pool.close()
    await until(lambda: pool.num_open() == 0)


@pytest.mark.parametrize("end", [CLOSE, RESET])
async def test_an_engine_that_dies_inside_the_body_is_noticed(
    pool: UpstreamPool, replica: ScriptedReplica, end: object
) -> None:
    replica.script([EVENT_STREAM_HEAD, piece(b"one"), 0.05, end])  # type: ignore[list-item]
    response = await post(pool, replica)
    assert await response.read(2.0) == b"one"
    with pytest.raises(UpstreamClosed) as caught:
        await response.read(2.0)
    assert not caught.value.before_headers


async def test_a_body_without_framing_ends_with_the_connection(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    replica.script([b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\none", 0.01, b"two", CLOSE])
    assert await whole(await post(pool, replica)) == b"onetwo"


async def test_interim_responses_are_passed_over(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    replica.script([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", *answered(b"{}")])
    response = await post(pool, replica)
    assert (response.status, await whole(response)) == (200, b"{}")


async def test_what_is_not_http_counts_as_closed(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    replica.script([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"])
    with pytest.raises(UpstreamClosed, match="not HTTP"):
        await post(pool, replica)


async def test_an_engine_that_cannot_be_reached_fails_to_connect(pool: UpstreamPool, short_folder: Path) -> None:
    async with ScriptedReplica() as replica:
        url = replica.url
    for unreachable in (url, f"unix:{short_folder}/none.sock", "http://name.invalid:80"):
        with pytest.raises(ConnectFailed):
            await pool.request(unreachable, "POST", "/", [], b"")


async def test_headers_that_do_not_come_time_out_and_close_the_connection(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    replica.script([asyncio.Event()])
    with pytest.raises(UpstreamTimeout) as caught:
        await pool.request(replica.url, "POST", "/", [], b"", headers_s=0.05)
    assert caught.value.phase == "headers"
    await asyncio.wait_for(replica.requests[0].peer_closed.wait(), 1.0)


async def test_a_body_that_stalls_times_out_for_each_silence_alone(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    replica.script(streamed([b"a", 0.08, b"b", 0.08, b"c", asyncio.Event()]))
    response = await post(pool, replica)
    got = b""
    with pytest.raises(UpstreamTimeout):
        while True:
            got += await response.read(0.2)
    assert got == b"abc"
    response.abort()


async def test_giving_up_on_headers_closes_the_connection(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    replica.script([asyncio.Event()])
    asking = asyncio.create_task(post(pool, replica))
    seen = await replica.wait_for_request()
    asking.cancel()
    await asyncio.wait_for(seen.peer_closed.wait(), 1.0)


async def test_a_response_that_is_finished_early_keeps_its_connection_if_it_ends_soon(
    pool: UpstreamPool, replica: ScriptedReplica
) -> None:
    go = asyncio.Event()
    replica.script(streamed([b"all there is"], after=[go, LAST_PIECE]))
    response = await post(pool, replica)
    await response.read(2.0)
    response.finish(5.0)
    go.set()
    await until(lambda: pool.num_idle(replica.url) == 1)


async def test_a_response_that_is_finished_early_and_does_not_end_is_aborted(
    pool: UpstreamPool, replica: ScriptedReplica
) -> None:
    replica.script(streamed([b"all there is", asyncio.Event()]))
    response = await post(pool, replica)
    await response.read(2.0)
    response.finish(0.05)
    await asyncio.wait_for(replica.requests[0].peer_closed.wait(), 1.0)


async def test_reading_from_the_engine_stops_while_nobody_reads_and_goes_on_after(replica: ScriptedReplica) -> None:
    pool = UpstreamPool(UpstreamTunables(buffer_bytes=64 * 1024))
    block = b"x" * 65536
    replica.script(streamed([block] * 400))
    response = await post(pool, replica)
    await until(lambda: response._connection._is_paused)
    assert response._buffered_bytes < 2 * 1024 * 1024
    assert not replica.requests[0].answered.is_set()
    assert len(await whole(response)) == 400 * len(block)
    pool.close()
    await until(lambda: pool.num_open() == 0)


async def test_an_answer_larger_than_allowed_is_dropped(pool: UpstreamPool, replica: ScriptedReplica) -> None:
    replica.script(answered(b"x" * 5000))
    response = await post(pool, replica)
    with pytest.raises(UpstreamClosed, match="larger"):
        await response.read_all(2.0, 1000)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hw") as folder:
        yield Path(folder)

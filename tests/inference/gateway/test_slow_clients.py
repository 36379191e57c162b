"""Clients that do not read, and engines that take long: who waits for whom, for how long, and what is held meanwhile."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import websockets

from inference.gateway.edge import EdgeTunables
from inference.gateway.parts import GatewayTunables
from tests.fakes.gateway import GatewayUnderTest, basic, model_changes, running_gateway, until
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import ScriptedReplica, SeenRequest, Step, chat_chunk, chat_events, piece, refused, streamed

NUM_STALLED = 200
PIECE = chat_chunk({"content": "x" * 32_000})
AFTER = "client_gone_after_first_token"


FRAMED = piece(PIECE)
START, *MIDDLE = streamed(chat_events()[:2], after=())
*END, LAST = streamed(chat_events()[2:])[1:]


def endless(seen: SeenRequest) -> list[Step]:
    """20 MB of an answer, of which the engine holds one piece."""
    return [START, *MIDDLE, *[FRAMED] * 620, *END, LAST]


def deaf_client(port: int, head: bytes) -> socket.socket:
    """Sends a request and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(head)
    return client


def request_bytes(gateway: GatewayUnderTest, **more: object) -> bytes:
    body = json.dumps(basic(**more)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {gateway.key}\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def rss_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


@contextlib.contextmanager
def closing(clients: list[socket.socket]) -> Iterator[None]:
    try:
        yield
    finally:
        for client in clients:
            client.close()


async def test_b99_clients_that_do_not_read_are_cut_and_hold_neither_memory_nor_slots(replica: ScriptedReplica) -> None:
    async with (
        ScriptedReplica(default=endless) as engine,
        running_gateway(
            model_changes("m", [engine.url], max_in_flight=NUM_STALLED), edge=EdgeTunables(client_stall_s=3.0)
        ) as gateway,
    ):
        before, peak = rss_bytes(), 0

        def all_closed() -> bool:
            nonlocal peak
            peak = max(peak, rss_bytes())
            return len(gateway.journal.closed) == NUM_STALLED

        clients = [deaf_client(gateway.port, request_bytes(gateway, stream=True)) for _ in range(NUM_STALLED)]
        with closing(clients):
            await until(all_closed, 60.0)
            assert peak - before < 200e6
        assert gateway.in_flight() == 0
        assert {record.end_state for record in gateway.journal.closed} == {AFTER}
        assert all(record.completion_tokens >= 1 for record in gateway.journal.closed)
        await until(lambda: all(seen.peer_closed.is_set() for seen in engine.requests))
        assert (await gateway.http.get("/healthz")).status_code == 200


async def test_b99_a_slow_client_that_reads_gets_everything() -> None:
    async with (
        ScriptedReplica(default=endless) as engine,
        running_gateway(model_changes("m", [engine.url]), edge=EdgeTunables(client_stall_s=0.5)) as gateway,
    ):
        client = deaf_client(gateway.port, request_bytes(gateway, stream=True))
        client.setblocking(False)
        loop, received = asyncio.get_running_loop(), 0
        with closing([client]):
            tail = b""
            while not tail.endswith(b"0\r\n\r\n"):
                data = await loop.sock_recv(client, 262_144)
                assert data, "cut"
                received, tail = received + len(data), (tail + data)[-16:]
        assert received > 19e6
        assert (await gateway.only_record()).end_state == "done"


async def test_b99_a_whole_answer_that_nobody_takes_does_not_keep_the_connection(replica: ScriptedReplica) -> None:
    replica.script(streamed([b"".join([chat_events()[0], *[PIECE] * 300, *chat_events()[1:]])]))
    edge = EdgeTunables(client_stall_s=0.3)
    async with running_gateway(model_changes("m", [replica.url]), edge=edge) as gateway:
        with closing([deaf_client(gateway.port, request_bytes(gateway))]):
            assert (await gateway.only_record()).end_state == "done"
            assert gateway.in_flight() == 0
            await asyncio.wait_for(gateway.stop(), 5.0)


async def test_b99_a_websocket_that_is_not_read_is_cut() -> None:
    async with (
        ScriptedReplica(default=endless) as engine,
        running_gateway(model_changes("m", [engine.url]), edge=EdgeTunables(client_stall_s=0.5)) as gateway,
    ):
        url = f"ws://127.0.0.1:{gateway.port}/v1/generate"
        client = await websockets.connect(url, additional_headers=gateway.auth, max_queue=1, ping_interval=None)
        await client.send(json.dumps(basic()))
        record = await gateway.only_record(10.0)
        assert record.end_state == AFTER
        assert gateway.in_flight() == 0
        client.transport.abort()


# -- an engine that takes long


@pytest.fixture
async def talkative(replica: ScriptedReplica) -> AsyncIterator[GatewayUnderTest]:
    """Comments after 0.2 s of silence."""
    tunables = GatewayTunables(drain_s=0.2)
    edge = EdgeTunables(comment_s=0.2)
    async with running_gateway(model_changes("m", [replica.url], max_in_flight=1), tunables=tunables, edge=edge) as gateway:
        yield gateway


async def start(gateway: GatewayUnderTest, **more: object) -> RawClient:
    client = await RawClient.connect(gateway.port)
    client.writer.write(request_bytes(gateway, **more))
    return client


async def test_b14_b07_a_silent_stream_gets_headers_and_comments_within_the_bound(
    talkative: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    go = asyncio.Event()
    replica.script([go, *streamed(chat_events())])
    client = await start(talkative, stream=True)
    started_s = asyncio.get_running_loop().time()
    status, headers = await client.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert asyncio.get_running_loop().time() - started_s < 2 * 0.2 + 0.3
    await client.read_until(b": keep-alive\n\n")
    await client.read_until(b": keep-alive\n\n")
    go.set()
    rest = await client.read_until(b"0\r\n\r\n")
    lines = [line for line in rest.split(b"\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]"
    assert all(json.loads(line[6:])["choices"] for line in lines[:-1])
    assert b"error" not in rest
    record = await talkative.only_record()
    assert (record.end_state, record.completion_tokens) == ("done", 3)
    await client.close()


async def test_b14_comments_go_on_inside_an_answer_and_while_a_request_waits(
    talkative: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    go = asyncio.Event()
    first, *rest = chat_events()
    replica.script(streamed([first, rest[0], go, *rest[1:]]))
    running, waiting = await start(talkative, stream=True), await start(talkative, stream=True)
    await running.read_until(b"Hel")
    for client in (running, waiting):
        await client.read_until(b": keep-alive\n\n")
        await client.read_until(b": keep-alive\n\n")
    go.set()
    for client in (running, waiting):
        await client.read_until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await client.close()


async def test_b14_before_the_first_comment_an_error_has_its_true_status(
    talkative: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    replica.script([0.05, *refused(400, "too long", param="messages")])
    refusal = await talkative.post(body=basic(stream=True))
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "messages")


async def test_b14_after_a_comment_an_error_is_an_event(talkative: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script([0.5, *refused(400, "too long", param="messages")])
    answer = await talkative.post(body=basic(stream=True))
    assert answer.status_code == 200
    *comments, last = answer.text.strip().split("\n\n")
    assert set(comments) == {": keep-alive"}
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "too long"
    assert (await talkative.only_record()).end_state == "refused"


async def test_b14_after_a_comment_another_replica_can_still_take_over() -> None:
    async with (
        ScriptedReplica() as one,
        ScriptedReplica() as two,
        running_gateway(model_changes("m", [one.url, two.url]), edge=EdgeTunables(comment_s=0.2)) as gateway,
    ):
        for replica in (one, two):
            replica.script([0.5, *refused(500, "broken")])
        answer = await gateway.post(body=basic(stream=True))
        assert answer.status_code == 200
        record = await gateway.only_record()
        assert record.attempts == 2
        assert record.end_state == "engine_error"
        assert answer.text.count('"error"') == 1
        one.script([0.5, *refused(500, "broken")])
        answers = [await gateway.post(body=basic(stream=True)) for _ in range(2)]
        assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)


async def test_b14_an_answer_that_is_not_streamed_gets_no_comment(
    talkative: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    replica.script([0.5, *refused(400, "too long")])
    assert (await talkative.post()).status_code == 400


async def test_b14_a_drain_after_a_comment_ends_with_an_error_event(
    talkative: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    replica.script([asyncio.Event()])
    client = await start(talkative, stream=True)
    await client.read_until(b": keep-alive\n\n")
    await talkative.stop()
    rest = await client.read_until(b"0\r\n\r\n")
    assert b'"gateway_stopping"' in rest
    assert (await talkative.only_record()).end_state == "cut_by_drain"
    await client.close()


# -- memory of bodies


async def test_b94_large_bodies_at_once_are_refused_and_memory_stays_flat(replica: ScriptedReplica) -> None:
    async with running_gateway(model_changes("m", [replica.url]), edge=EdgeTunables(linger_s=0.3)) as gateway:
        before, peak, is_over = rss_bytes(), 0, False

        async def watch() -> None:
            nonlocal peak
            while not is_over:
                peak = max(peak, rss_bytes())
                await asyncio.sleep(0.02)

        watching = asyncio.create_task(watch())
        declared = [_large(gateway, key, is_chunked=False) for key in ("nobody", gateway.key) for _ in range(10)]
        chunked = [_large(gateway, gateway.key, is_chunked=True) for _ in range(30)]
        statuses = await asyncio.gather(*declared, *chunked)
        is_over = True
        await watching
        assert statuses[:20] == [401] * 10 + [413] * 10
        assert set(statuses[20:]) <= {413, 503}
        assert peak - before < 100e6 + gateway.parts.edge.max_bodies_bytes
        await until(lambda: gateway.parts.bodies.used_bytes == 0)
        assert (await gateway.post()).status_code == 200


async def _large(gateway: GatewayUnderTest, key: str, *, is_chunked: bool) -> int:
    """Send 100 MB as fast as they are taken; the status of the answer."""
    client = await RawClient.connect(gateway.port)
    framing = "transfer-encoding: chunked" if is_chunked else "content-length: 100000000"
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\n{framing}\r\n\r\n"
    client.writer.write(head.encode())
    answer = asyncio.create_task(client.head(20.0))
    data = b" " * 65_536
    with contextlib.suppress(ConnectionError, RuntimeError):
        for _ in range(1526):
            if answer.done() or client.writer.is_closing():
                break
            client.writer.write(b"10000\r\n" + data + b"\r\n" if is_chunked else data)
            await client.writer.drain()
            await asyncio.sleep(0)
    status, headers = await answer
    assert headers["connection"] == "close"
    client.drop()
    return status


async def test_b95_many_prompts_of_legal_size_cost_a_stated_factor_and_others_are_served(replica: ScriptedReplica) -> None:
    """The budget bounds how many are held; each may cost four times its size (received, decoded, encoded, written)."""
    async with running_gateway(model_changes("m", [replica.url], max_in_flight=64, max_queued=64)) as gateway:
        body = json.dumps(basic(messages=[{"role": "user", "content": "a" * 8_000_000}])).encode()
        before, peak, is_over = rss_bytes(), 0, False

        async def watch() -> list[int]:
            nonlocal peak
            statuses = []
            while not is_over:
                peak = max(peak, rss_bytes())
                statuses.append((await gateway.post()).status_code)
            return statuses

        watching = asyncio.create_task(watch())
        answers = await asyncio.gather(*(gateway.post(body=body) for _ in range(40)))
        is_over = True
        assert set(await watching) == {200}
        assert {answer.status_code for answer in answers} <= {200, 503}
        assert any(answer.status_code == 200 for answer in answers)
        budget = gateway.parts.edge.max_bodies_bytes
        assert peak - before < 4 * budget + 40 * 2 * len(body), "of which the client and the engine, in this process, are part"


async def test_b95_messages_of_websockets_count_while_they_arrive_key_or_none(replica: ScriptedReplica) -> None:
    edge = EdgeTunables(max_bodies_bytes=300_000)
    async with running_gateway(model_changes("m", [replica.url]), edge=edge) as gateway:
        url = f"ws://127.0.0.1:{gateway.port}/v1/generate"
        async with websockets.connect(url) as stranger, websockets.connect(url) as other:
            sending = asyncio.create_task(stranger.send(_unfinished([b" " * 100_000, b" " * 100_000])))
            await until(lambda: gateway.parts.bodies.used_bytes > 200_000)
            with contextlib.suppress(websockets.ConnectionClosed):
                await other.send(" " * 200_000)
            with pytest.raises(websockets.ConnectionClosed):
                await other.recv()
            assert other.close_code == 1013
            sending.cancel()
            await asyncio.wait({sending})
        await until(lambda: gateway.parts.bodies.used_bytes == 0)


async def _unfinished(pieces: list[bytes]) -> AsyncIterator[bytes]:
    """The pieces of a message that does not end."""
    for part in pieces:
        yield part
    await asyncio.Event().wait()

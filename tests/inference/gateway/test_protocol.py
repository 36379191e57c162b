"""The edge below the application, byte by byte: what is refused, in what order, and that the process lives on."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from inference.gateway.edge import EdgeTunables
from inference.gateway.parts import GatewayTunables
from tests.fakes.gateway import GatewayUnderTest, basic, model_changes, running_gateway, until
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import ScriptedReplica, chat_events, streamed

CHAT = "/v1/chat/completions"


@pytest.fixture
async def quick(replica: ScriptedReplica) -> AsyncIterator[GatewayUnderTest]:
    """A gateway that loses its patience soon."""
    edge = EdgeTunables(head_s=0.3, body_grace_s=0.3, idle_connection_s=0.5, linger_s=0.3)
    async with running_gateway(model_changes("m", [replica.url]), edge=edge) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
async def clients() -> AsyncIterator[list[RawClient]]:
    """Whatever a test has opened with `raw` is closed after it."""
    _clients.clear()
    yield _clients
    for client in _clients:
        client.drop()


_clients: list[RawClient] = []


async def raw(gateway: GatewayUnderTest, data: bytes) -> RawClient:
    client = await RawClient.connect(gateway.port)
    _clients.append(client)
    client.writer.write(data)
    return client


async def assert_refused(client: RawClient, status: int, code: str) -> None:
    """An error object, and the connection ends."""
    got, headers, answer = await client.answer()
    assert (got, answer["error"]["code"], headers["connection"]) == (status, code, "close")
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert headers["x-request-id"].startswith("req_")
    assert await asyncio.wait_for(client.reader.read(), 5.0) == b""
    await client.close()


async def assert_alive(gateway: GatewayUnderTest) -> None:
    assert (await gateway.http.get("/healthz")).status_code == 200


def post(gateway: GatewayUnderTest, body: bytes = b"", *lines: str, version: str = "1.1", framed: bool = True) -> bytes:
    head = [f"POST {CHAT} HTTP/{version}", "host: test", f"authorization: Bearer {gateway.key}", *lines]
    if framed:
        head.append(f"content-length: {len(body)}")
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


BASIC = json.dumps(basic()).encode()
STREAM = json.dumps(basic(stream=True)).encode()


# -- connections


async def test_a_connection_too_many_is_told_so_and_the_others_go_on(replica: ScriptedReplica) -> None:
    async with running_gateway(model_changes("m", [replica.url]), edge=EdgeTunables(max_connections=2)) as gateway:
        first, second = await raw(gateway, b""), await raw(gateway, b"")
        third = await raw(gateway, b"GET /healthz HTTP/1.1\r\n\r\n")
        await assert_refused(third, 503, "too_many_connections")
        first.writer.write(post(gateway, BASIC))
        assert (await first.answer())[0] == 200
        await second.close()
        await third.close()
        for _ in range(100):  # until the gateway has seen them go
            if (await gateway.http.get("/healthz")).status_code == 200:
                break
        await assert_alive(gateway)


# -- heads


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"GET /healthz HTTP/1.1\r\n" + b"x: " + b"a" * 65_536 + b"\r\n\r\n", 431, "headers_too_large"),
        (b"GET /healthz HTTP/1.1\r\n" + b"x: " + b"a" * 300_000, 431, "headers_too_large"),
        (b"GET /healthz HTTP/1.1\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(2000)) + b"\r\n", 431, "headers_too_large"),
        (b"GET /" + b"a" * 16_384 + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
        (b"GET /" + b"a" * 300_000, 414, "url_too_long"),
        (b"GET /healthz HTTP/1.1\r\nx: \x00\r\n\r\n", 400, "bad_http"),
        (b"GET /healthz HTTP/1.1\r\nx : y\r\n\r\n", 400, "bad_http"),
        (b"GET /healthz HTTP/1.1\r\nx: y\r\n folded\r\n\r\n", 400, "bad_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_http"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_http"),
        (b"GET /healthz HTTP/2.0\r\n\r\n", 505, "unsupported_http_version"),
        (b"GET /healthz HTTP/0.9\r\n\r\n", 505, "unsupported_http_version"),
        (b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400, "bad_http"),
        (b"POST /v1/generate HTTP/1.1\r\nexpect: a miracle\r\ncontent-length: 2\r\n\r\n", 417, "unsupported_expectation"),
    ],
)
async def test_x05_b33_a_head_that_is_not_fit_is_refused_and_others_are_served(
    gateway: GatewayUnderTest, head: bytes, status: int, code: str
) -> None:
    await assert_refused(await raw(gateway, head), status, code)
    await assert_alive(gateway)


async def test_x05_a_head_may_come_in_any_pieces_up_to_the_limits(gateway: GatewayUnderTest) -> None:
    client = await raw(gateway, b"")
    head = b"GET /healthz?" + b"q" * 8000 + b" HTTP/1.1\r\nhost: test\r\n" + b"x: " + b"a" * 30_000 + b"\r\n\r\n"
    for start in range(0, len(head), 1000):
        client.writer.write(head[start : start + 1000])
        await client.writer.drain()
        await asyncio.sleep(0)
    assert (await client.answer())[0] == 200
    await client.close()


async def test_a_path_without_a_path_is_the_root(gateway: GatewayUnderTest) -> None:
    client = await raw(gateway, b"GET http://test HTTP/1.1\r\nhost: test\r\n\r\n")
    assert (await client.answer())[2]["error"]["code"] == "unknown_url"
    await client.close()


async def test_x06_a_head_that_trickles_is_a_408_and_others_are_not_held_up(quick: GatewayUnderTest) -> None:
    client = await raw(quick, b"GET /healthz HTTP/1.1\r\n")
    trickle = asyncio.create_task(_trickle(client, b"x: y\r\n" * 1000, every_s=0.05))
    await assert_alive(quick)
    got, _, answer = await client.answer()
    trickle.cancel()
    assert (got, answer["error"]["code"]) == (408, "request_timeout")
    client.drop()


async def test_x06_a_connection_that_says_nothing_is_closed(quick: GatewayUnderTest) -> None:
    client = await raw(quick, b"")
    assert await asyncio.wait_for(client.reader.read(), 5.0) == b""
    await client.close()


async def test_x06_blank_lines_do_not_keep_a_connection(quick: GatewayUnderTest) -> None:
    client = await raw(quick, b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n")
    assert (await client.answer())[0] == 200
    trickle = asyncio.create_task(_trickle(client, b"\r\n" * 500, every_s=0.02))
    with contextlib.suppress(ConnectionResetError):  # by what was sent after it was closed
        assert await asyncio.wait_for(client.reader.read(), 15.0) == b""
    trickle.cancel()
    client.drop()


async def _trickle(client: RawClient, data: bytes, *, every_s: float) -> None:
    for start in range(len(data)):
        client.writer.write(data[start : start + 1])
        await asyncio.sleep(every_s)


# -- bodies


async def test_x06_a_body_that_trickles_is_a_408_and_recorded_as_refused(quick: GatewayUnderTest) -> None:
    client = await raw(quick, post(quick, b" " * 1000)[:-999])
    trickle = asyncio.create_task(_trickle(client, b" " * 900, every_s=0.05))
    status, headers, answer = await client.answer()
    trickle.cancel()
    assert (status, answer["error"]["code"], headers["connection"]) == (408, "body_too_slow", "close")
    assert (await quick.only_record()).end_state == "refused"
    assert quick.parts.bodies.used_bytes == 0


async def test_x06_a_large_body_that_makes_progress_has_more_time(replica: ScriptedReplica) -> None:
    edge = EdgeTunables(body_grace_s=0.3, min_body_bytes_per_s=10_000)
    async with running_gateway(model_changes("m", [replica.url]), edge=edge) as gateway:
        body = json.dumps(basic(messages=[{"role": "user", "content": "a" * 20_000}])).encode()
        whole = post(gateway, body)
        client = await raw(gateway, b"")
        for start in range(0, len(whole), 1500):
            client.writer.write(whole[start : start + 1500])
            await asyncio.sleep(0.05)
        assert (await client.answer())[0] == 200
        await client.close()


async def test_x04_a_chunked_body_may_come_byte_by_byte_with_extensions_and_trailers(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    pieces = b"".join(b"1;name=value\r\n%c\r\n" % byte for byte in BASIC)
    trailers = b"0\r\nauthorization: Bearer other\r\nx-api-key: other\r\n\r\n"
    client = await raw(gateway, post(gateway, b"", "transfer-encoding: chunked", framed=False) + pieces + trailers)
    assert (await client.answer())[0] == 200
    assert replica.requests[0].json["messages"] == basic()["messages"]
    await client.close()


@pytest.mark.parametrize(
    "lines",
    [
        ["content-length: 3", "transfer-encoding: chunked"],
        ["transfer-encoding: chunked", "content-length: 3"],
        ["content-length: 3", "content-length: 4"],
        ["content-length: -3"],
        ["content-length: 3, 3"],
        ["transfer-encoding: gzip, chunked"],
        ["transfer-encoding: chunked, identity"],
        ["transfer-encoding: xchunked"],
    ],
)
async def test_x04_framing_that_could_be_read_in_two_ways_is_refused_and_the_connection_ends(
    gateway: GatewayUnderTest, replica: ScriptedReplica, lines: list[str]
) -> None:
    smuggled = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: test\r\n\r\n"
    await assert_refused(await raw(gateway, post(gateway, b"", *lines, framed=False) + smuggled), 400, "bad_http")
    assert not replica.requests
    assert not gateway.journal.opened


async def test_x04_a_broken_chunk_is_a_400_and_the_connection_ends(gateway: GatewayUnderTest) -> None:
    client = await raw(gateway, post(gateway, b"", "transfer-encoding: chunked", framed=False) + b"zz\r\n")
    await assert_refused(client, 400, "bad_http")
    await until(lambda: not gateway.parts.running)


async def test_b94_the_rest_of_a_refused_body_is_not_taken_for_a_request(gateway: GatewayUnderTest) -> None:
    hidden = b"GET /v1/models HTTP/1.1\r\nhost: test\r\n\r\n"
    head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer nobody\r\ncontent-length: 100000\r\n\r\n".encode()
    client = await raw(gateway, head)
    status, headers, _ = await client.answer()
    client.writer.write(hidden)
    assert (status, headers["connection"]) == (401, "close")
    assert await asyncio.wait_for(client.reader.read(), 5.0) == b""
    await client.close()


async def test_b94_a_client_that_sends_all_before_it_reads_gets_the_refusal(gateway: GatewayUnderTest) -> None:
    headers = {"authorization": "Bearer hw_live_bad"}
    refused = await gateway.http.post(CHAT, content=b"x" * 4_000_000, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
async def test_x01_an_encoded_body_is_a_415_whatever_it_would_open_to(
    gateway: GatewayUnderTest, replica: ScriptedReplica, encoding: str
) -> None:
    refused = await gateway.post(body=b"\x1f\x8b\x08" + b"\0" * 10_000, headers={"content-encoding": encoding})
    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_content_encoding")
    assert not replica.requests
    assert (await gateway.post(headers={"content-encoding": "identity"})).status_code == 200


async def test_b95_bodies_are_counted_together_and_small_ones_always_pass(replica: ScriptedReplica) -> None:
    edge = EdgeTunables(max_bodies_bytes=300_000)
    async with running_gateway(model_changes("m", [replica.url]), edge=edge) as gateway:
        slow = await raw(gateway, post(gateway, b" " * 200_000)[:-1])
        await until(lambda: gateway.parts.bodies.used_bytes == 200_000)
        refused = await gateway.post(body=b" " * 200_000)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_bytes_in_flight")
        assert refused.headers["retry-after"] == "1"
        chunked = await gateway.http.post(CHAT, content=_pieces(4, 60_000), headers=gateway.auth)
        assert chunked.status_code == 503
        assert (await gateway.post()).status_code == 200
        slow.drop()
        await until(lambda: gateway.parts.bodies.used_bytes == 0)
        assert (await gateway.post(body=b" " * 200_000)).status_code == 400


async def _pieces(count: int, size_bytes: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b" " * size_bytes


# -- Expect


async def test_x02_a_good_key_is_told_to_go_on(gateway: GatewayUnderTest) -> None:
    whole = post(gateway, BASIC, "expect: 100-continue")
    client = await raw(gateway, whole[: -len(BASIC)])
    assert await client.read_until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.writer.write(BASIC)
    assert (await client.answer())[0] == 200
    await client.close()


async def test_x02_who_sends_the_body_at_once_is_not_told_to_go_on(gateway: GatewayUnderTest) -> None:
    client = await raw(gateway, post(gateway, BASIC, "expect: 100-continue"))
    assert (await client.answer())[0] == 200
    await client.close()


@pytest.mark.parametrize(("key", "length", "status"), [("nobody", 100, 401), ("", 10**9, 413)])
async def test_x02_a_bad_key_or_a_large_body_is_refused_without_a_body(
    gateway: GatewayUnderTest, key: str, length: int, status: int
) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key or gateway.key}\r\nexpect: 100-continue\r\n"
    client = await raw(gateway, head.encode() + b"content-length: %d\r\n\r\n" % length)
    got, headers, answer = await client.answer()
    assert (got, headers["connection"]) == (status, "close")
    assert answer["error"]["code"]
    assert await asyncio.wait_for(client.reader.read(), 5.0) == b""
    await client.close()


# -- HTTP/1.0


async def test_x03_a_stream_to_http_1_0_has_no_chunks_and_ends_with_the_connection(gateway: GatewayUnderTest) -> None:
    for line in ("x: y", "connection: keep-alive"):
        client = await raw(gateway, post(gateway, STREAM, line, version="1.0"))
        status, headers = await client.head()
        assert (status, headers["connection"]) == (200, "close")
        assert not {"transfer-encoding", "content-length"} & headers.keys()
        body = await asyncio.wait_for(client.reader.read(), 5.0)
        assert body.startswith(b"data: {")
        assert body.endswith(b"data: [DONE]\n\n")
        await client.close()


async def test_x03_http_1_0_keeps_a_connection_that_it_asks_for_where_the_length_is_known(gateway: GatewayUnderTest) -> None:
    client = await raw(gateway, post(gateway, BASIC, "connection: keep-alive", version="1.0"))
    status, headers, _answer = await client.answer()
    assert (status, headers["connection"]) == (200, "keep-alive")
    client.writer.write(post(gateway, BASIC, version="1.0"))
    status, headers, _answer = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await asyncio.wait_for(client.reader.read(), 5.0) == b""
    await client.close()


async def test_x03_chunks_from_http_1_0_are_refused(gateway: GatewayUnderTest) -> None:
    head = post(gateway, b"", "transfer-encoding: chunked", version="1.0", framed=False)
    await assert_refused(await raw(gateway, head + b"0\r\n\r\n"), 400, "bad_http")


# -- an upgrade nobody takes


async def test_an_offer_of_http_2_is_passed_over_and_the_body_read(gateway: GatewayUnderTest) -> None:
    """Java's and curl's clients make it with each request."""
    offer = ["connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA"]
    client = await raw(gateway, b"")
    for _ in range(2):
        client.writer.write(post(gateway, BASIC, *offer))
        assert (await client.answer())[0] == 200
    await client.close()


# -- several requests on one connection


async def test_b96_pipelined_requests_are_answered_in_order_however_slow(replica: ScriptedReplica) -> None:
    edge = EdgeTunables(idle_connection_s=0.1, head_s=0.1)
    async with running_gateway(model_changes("m", [replica.url]), edge=edge) as gateway:
        for text in ("one", "two", "three"):
            replica.script(streamed([0.4, *chat_events([text])]))
        client = await raw(gateway, post(gateway, BASIC) * 2)
        await replica.wait_for_request()
        client.writer.write(post(gateway, BASIC))
        for text in ("one", "two", "three"):
            assert (await client.answer())[2]["choices"][0]["message"]["content"] == text
        await client.close()


async def test_b96_what_cannot_be_read_is_refused_after_the_answers_before_it(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    go = asyncio.Event()
    replica.script(streamed([go, *chat_events(["one"])]))
    client = await raw(gateway, post(gateway, BASIC) + b"nonsense\r\n\r\n")
    await replica.wait_for_request()
    go.set()
    assert (await client.answer())[2]["choices"][0]["message"]["content"] == "one"
    await assert_refused(client, 400, "bad_http")


async def test_b96_too_many_at_once_are_refused_after_those_that_were_taken(replica: ScriptedReplica) -> None:
    async with running_gateway(model_changes("m", [replica.url]), edge=EdgeTunables(max_pipelined=2)) as gateway:
        client = await raw(gateway, b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n" * 1000)
        answers = [await client.answer() for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 200]
        await assert_refused(client, 400, "too_many_pipelined")


async def test_b19_a_client_that_leaves_while_a_second_request_waits_frees_the_first(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    replica.script([asyncio.Event()])
    client = await raw(gateway, post(gateway, BASIC) * 3)
    seen = await replica.wait_for_request()
    client.writer.write(post(gateway, BASIC))
    await client.writer.drain()
    client.drop()
    await asyncio.wait_for(seen.peer_closed.wait(), 1.0)
    await until(lambda: gateway.in_flight() == 0 and len(gateway.journal.closed) == 1, 1.0)
    assert len(replica.requests) == 1


async def test_b97_an_idle_connection_lives_as_long_as_it_should_and_no_longer(quick: GatewayUnderTest) -> None:
    client = await raw(quick, b"")
    for _ in range(3):
        await client.send("GET", "/healthz")
        assert (await client.answer())[0] == 200
        await asyncio.sleep(0.35)  # head_s has passed, idle_connection_s has not
    assert await asyncio.wait_for(client.reader.read(), 5.0) == b""
    await client.close()
    assert EdgeTunables().idle_connection_s > 60, "load balancers close first"


async def test_b98_an_answer_has_one_framing_and_its_length_is_true(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    rewritten = json.dumps(basic(tools=[tool])).encode()  # the engine's own answer and length, with another id and model
    for body, framing in (
        (BASIC, "content-length"),
        (STREAM, "transfer-encoding"),
        (b"{", "content-length"),
        (rewritten, "content-length"),
    ):
        client = await raw(gateway, post(gateway, body, "connection: close"))
        _, headers = await client.head()
        assert {"content-length", "transfer-encoding"} & headers.keys() == {framing}
        rest = await asyncio.wait_for(client.reader.read(), 5.0)
        assert framing != "content-length" or len(rest) == int(headers["content-length"])
        assert framing != "transfer-encoding" or rest.endswith(b"0\r\n\r\n")
        await client.close()
    assert "stream" not in replica.requests[-1].json or not replica.requests[-1].json["stream"]


async def test_b101_many_large_bodies_on_reused_connections_get_a_status_each(replica: ScriptedReplica) -> None:
    tunables = GatewayTunables(max_body_bytes=2**20, drain_s=0.2)
    async with running_gateway(model_changes("m", [replica.url]), tunables=tunables) as gateway:
        body = json.dumps(basic(messages=[{"role": "user", "content": "a" * 1_000_000}])).encode()
        for _ in range(3):
            answers = await asyncio.gather(*(gateway.post(body=body) for _ in range(8)), gateway.post(body=b"x" * 2**21))
            assert {answer.status_code for answer in answers} <= {200, 413, 429}
            assert answers[-1].status_code == 413


# -- a drain


@pytest.fixture
async def draining(replica: ScriptedReplica) -> AsyncIterator[GatewayUnderTest]:
    edge = EdgeTunables(drain_idle_s=0.4)
    async with running_gateway(model_changes("m", [replica.url]), edge=edge, tunables=GatewayTunables(drain_s=5.0)) as gateway:
        yield gateway


async def warm(gateway: GatewayUnderTest) -> RawClient:
    client = await raw(gateway, b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n")
    status, headers, _ = await client.answer()
    assert status == 200
    assert "connection" not in headers
    return client


async def test_b125_a_drain_answers_what_comes_over_warm_connections_and_closes_the_idle_ones(
    draining: GatewayUnderTest,
) -> None:
    idle, busy, new = await warm(draining), await warm(draining), await raw(draining, b"")
    await asyncio.sleep(0.05)
    stopping = asyncio.create_task(draining.stop())
    await until(lambda: draining.parts.is_draining)
    for client in (busy, new):
        client.writer.write(post(draining, BASIC))
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await asyncio.wait_for(client.reader.read(), 1.0) == b""
    assert await asyncio.wait_for(idle.reader.read(), 2.0) == b""
    await asyncio.wait_for(stopping, 3.0)
    assert [record.end_state for record in draining.journal.closed] == ["done", "done"]


async def test_b125_running_answers_end_their_connections_in_a_drain(
    draining: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    go = asyncio.Event()
    replica.script(streamed([go, *chat_events()]), streamed([*chat_events()[:2], go, *chat_events()[2:]]))
    folded = await raw(draining, post(draining, BASIC))
    await replica.wait_for_request()
    streaming = await raw(draining, post(draining, STREAM))
    await streaming.read_until(b"Hel")
    stopping = asyncio.create_task(draining.stop())
    await until(lambda: draining.parts.is_draining)
    await asyncio.sleep(0.6)
    go.set()
    status, headers, _ = await folded.answer()
    assert (status, headers["connection"]) == (200, "close")
    assert await asyncio.wait_for(folded.reader.read(), 2.0) == b""
    rest = await asyncio.wait_for(streaming.reader.read(), 2.0)
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    await asyncio.wait_for(stopping, 3.0)


async def test_a_request_that_is_half_sent_when_a_drain_begins_is_answered(draining: GatewayUnderTest) -> None:
    whole = post(draining, BASIC)
    client = await raw(draining, whole[:30])
    await asyncio.sleep(0.05)
    stopping = asyncio.create_task(draining.stop())
    await until(lambda: draining.parts.is_draining)
    await asyncio.sleep(0.6)
    client.writer.write(whole[30:])
    status, headers, _ = await client.answer()
    assert (status, headers["connection"]) == (200, "close")
    await asyncio.wait_for(stopping, 3.0)

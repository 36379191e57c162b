"""What an attacker, a careless client or a broken engine tried on the HTTP edge, and what comes of it."""

import asyncio
import json
import logging
import socket
import struct
from typing import Any

import pytest

from inference.gateway.cycle import EdgeCycle
from inference.gateway.edge import EdgeTunables
from inference.gateway.parts import GatewayTunables
from inference.gateway.upstream import UpstreamTunables
from tests.fakes.gateway import GatewayUnderTest, basic, model_changes, running_gateway, until
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import (
    DONE,
    EVENT_STREAM_HEAD,
    RESET,
    ScriptedReplica,
    answered,
    chat_answer,
    chat_chunk,
    chat_events,
    piece,
    refused,
    running_usage,
    sse,
    streamed,
)
from tests.inference.gateway.test_slow_clients import closing, deaf_client, request_bytes

SECRET = "/root/secret/path"


def no_errors(caplog: pytest.LogCaptureFixture) -> bool:
    return not [record for record in caplog.records if record.levelno >= logging.ERROR]


def one_attempt() -> GatewayTunables:
    return GatewayTunables(max_attempts=1, drain_s=0.2)


# -- upgrades


async def test_a_chunked_body_behind_an_offer_of_http_2_is_read(gateway: GatewayUnderTest) -> None:
    body = json.dumps(basic()).encode()
    client = await RawClient.connect(gateway.port)
    for offer in ("connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c", "connection: upgrade\r\nupgrade: foo/2, websocket"):
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n{offer}\r\n"
        client.writer.write(head.encode() + b"transfer-encoding: chunked\r\n\r\n" + piece(body[:9]))
        await asyncio.sleep(0)
        client.writer.write(piece(body[9:]) + b"0\r\n\r\n")
        assert (await client.answer())[0] == 200
    await client.close()


async def test_a_post_that_asks_for_a_websocket_is_refused_without_a_traceback(
    gateway: GatewayUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    body = json.dumps(basic()).encode()
    for method, version in (("POST", "1.1"), ("GET", "1.0"), ("HEAD", "1.1")):
        client = await RawClient.connect(gateway.port)
        head = f"{method} /v1/generate HTTP/{version}\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\n"
        upgrade = f"connection: Upgrade, close\r\nupgrade: websocket\r\ncontent-length: {len(body)}\r\n\r\n"
        client.writer.write((head + upgrade).encode() + body)
        data = await asyncio.wait_for(client.reader.read(), 5.0)
        assert data.startswith(b"HTTP/1."), data
        assert b" 500 " not in data.split(b"\r\n")[0], data
        await client.close()
    assert no_errors(caplog)
    assert (await gateway.http.get("/healthz")).status_code == 200


# -- clients that do not read, and many answers


async def test_small_answers_that_nobody_reads_give_their_slots_back_when_the_engine_is_done(replica: ScriptedReplica) -> None:
    async with running_gateway(model_changes("m", [replica.url], max_in_flight=16)) as gateway:
        clients = [deaf_client(gateway.port, request_bytes(gateway, stream=True)) for _ in range(16)]
        with closing(clients):
            await until(lambda: len(gateway.journal.closed) == 16)
            await until(lambda: gateway.in_flight() == 0)
            gateway.parts.sample_metrics()
        assert {record.end_state for record in gateway.journal.closed} == {"done"}


async def test_more_answers_than_one_request_may_have_are_refused_on_every_way_in(replica: ScriptedReplica) -> None:
    tunables = GatewayTunables(max_choices=3, drain_s=0.2)
    async with running_gateway(model_changes("m", [replica.url]), tunables=tunables) as gateway:
        for path, body in (
            ("/v1/chat/completions", basic(n=4)),
            ("/v1/completions", {"model": "m", "prompt": ["a", "b"], "n": 2}),
            ("/v1/generate", {"model": "m", "prompt": ["a"] * 4}),
        ):
            answer = await gateway.post(path, body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
            assert "at most 3" in answer.json()["error"]["message"]
    assert replica.requests == []


# -- a drain while bodies come


async def test_a_body_that_is_not_whole_when_a_drain_begins_is_a_503_and_one_record(
    replica: ScriptedReplica, caplog: pytest.LogCaptureFixture
) -> None:
    edge, tunables = EdgeTunables(drain_idle_s=0.1), GatewayTunables(drain_s=5.0)
    async with running_gateway(model_changes("m", [replica.url]), edge=edge, tunables=tunables) as gateway:
        client = await RawClient.connect(gateway.port)
        head = f"POST /v1/generate HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.key}\r\ncontent-length: 1000\r\n\r\n{{"
        client.writer.write(head.encode())
        await until(lambda: len(gateway.parts.on_draining) == 1)
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await gateway.stop()
        assert loop.time() - started_s < 3.0
        status, headers, answer = await client.answer()
        assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "gateway_stopping", "1")
        assert headers["connection"] == "close"
        await client.close()
        record = await gateway.only_record()
        assert (record.end_state, record.attempts) == ("refused", 0)
        assert gateway.parts.on_draining == []
    assert no_errors(caplog)


async def test_a_body_that_was_nearly_whole_when_a_drain_began_is_still_answered(replica: ScriptedReplica) -> None:
    tunables = GatewayTunables(drain_s=5.0)
    async with running_gateway(model_changes("m", [replica.url]), tunables=tunables) as gateway:
        client = await RawClient.connect(gateway.port)
        request = request_bytes(gateway)
        client.writer.write(request[:-5])
        await until(lambda: len(gateway.parts.on_draining) == 1)
        stopping = asyncio.create_task(gateway.stop())
        await until(lambda: gateway.parts.is_draining)
        client.writer.write(request[-5:])
        assert (await client.answer())[0] == 200
        await client.close()
        await stopping


# -- clients that reset or half-close


@pytest.mark.parametrize(
    "error", [RuntimeError("unable to perform operation on <TCP>; the handler is closed"), OSError(32, "x")]
)
async def test_a_write_to_a_connection_that_was_reset_is_a_client_that_left(
    replica: ScriptedReplica,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """uvloop raises it from `write` when the reset is noticed there, before it calls connection_lost."""
    replica.script(streamed([*chat_events()[:2], asyncio.Event()]))
    send_body = EdgeCycle._send_body

    def broken(self: EdgeCycle, body: bytes, *, is_last: bool) -> None:
        if b"Hel" in body:
            raise error
        send_body(self, body, is_last=is_last)

    monkeypatch.setattr(EdgeCycle, "_send_body", broken)
    async with running_gateway(model_changes("m", [replica.url])) as gateway:
        client = deaf_client(gateway.port, request_bytes(gateway, stream=True))
        with closing([client]):
            record = await gateway.only_record()
        assert record.end_state == "client_gone_after_first_token"
        await until(lambda: gateway.in_flight() == 0)
        await asyncio.wait_for(replica.requests[0].peer_closed.wait(), 1.0)
    assert no_errors(caplog)


async def test_resets_at_any_moment_are_clients_that_left_or_answers_that_ended(
    replica: ScriptedReplica, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        ScriptedReplica(default=lambda _seen: streamed([0.01, *chat_events(["x"] * 20)])) as engine,
        running_gateway(model_changes("m", [engine.url], max_in_flight=64)) as gateway,
    ):
        for number in range(60):
            client = deaf_client(gateway.port, request_bytes(gateway, stream=number % 2 == 0))
            await asyncio.sleep(0.001 * (number % 16))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        await until(lambda: gateway.in_flight() == 0 and len(gateway.journal.closed) == len(gateway.journal.opened))
        states = {record.end_state for record in gateway.journal.closed}
        assert states <= {"done", "client_gone_before_first_token", "client_gone_after_first_token"}
    assert no_errors(caplog)


async def test_b96_a_client_that_closes_its_sending_side_has_left(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script([EVENT_STREAM_HEAD, asyncio.Event()])
    client = await RawClient.connect(gateway.port)
    client.writer.write(request_bytes(gateway))
    seen = await replica.wait_for_request()
    client.writer.write_eof()
    await asyncio.wait_for(seen.peer_closed.wait(), 1.0)
    assert (await gateway.only_record()).end_state == "client_gone_before_first_token"
    assert await asyncio.wait_for(client.reader.read(), 5.0) == b""
    await client.close()


# -- engines that send what is no answer


def delta(**fields: Any) -> bytes:
    return chat_chunk(fields)


def call(**fields: Any) -> bytes:
    return delta(tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, **fields}])


BAD_EVENTS: dict[str, bytes] = {
    "a tool call far away": call(index=2_000_000),
    "a tool call before the first": call(index=-1),
    "a tool call's index is a text": call(index="a"),
    "a tool call's index is null": call(index=None),
    "a tool call's index is a truth": call(index=True),
    "a tool call is a text": delta(tool_calls=["x"]),
    "tool calls are an object": delta(tool_calls={"a": 1}),
    "too many tool calls": delta(tool_calls=[{"index": 0}] * 2000),
    "a function is a text": call(index=0, function="f"),
    "arguments are an object": call(index=0, function={"name": "f", "arguments": {}}),
    "an id is a number": call(index=0, id=5),
    "content is a number": delta(content=5),
    "content is a list": delta(content=["x"]),
    "reasoning is a number": delta(reasoning_content=5),
    "a delta is a text": sse({"choices": [{"index": 0, "delta": "x"}]}),
    "a choice's index is a text": chat_chunk({"content": "x"}, index="a"),  # type: ignore[arg-type]
    "a choice's index is null": chat_chunk({"content": "x"}, index=None),  # type: ignore[arg-type]
    "a choice that was not asked for": chat_chunk({"content": "x"}, index=1),
    "a finish reason is a number": chat_chunk({"content": "x"}, 5),  # type: ignore[arg-type]
    "a number beyond JSON": sse(b'{"choices":[{"index":0,"delta":{"content":"x"}}],"created":' + b"9" * 5000 + b"}"),
    "an error's code of 5000 digits": sse({"error": {"message": "x", "code": "9" * 5000}}),
}


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("name", BAD_EVENTS)
async def test_a_bad_event_is_the_engines_fault_and_never_ours(
    replica: ScriptedReplica, caplog: pytest.LogCaptureFixture, name: str, is_streamed: bool
) -> None:
    replica.script(streamed([chat_chunk({"role": "assistant"}), BAD_EVENTS[name], *chat_events()]))
    async with running_gateway(model_changes("m", [replica.url]), tunables=one_attempt()) as gateway:
        answer = await asyncio.wait_for(gateway.post(body=basic(stream=is_streamed)), 2.0)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_error")
        assert (await gateway.only_record()).end_state == "engine_error"
    assert no_errors(caplog)


@pytest.mark.parametrize("choice", [{"index": "a"}, {"message": "x"}, {"message": {"content": 5}}, {"finish_reason": 5}])
async def test_a_bad_whole_answer_is_the_engines_fault_as_well(replica: ScriptedReplica, choice: dict[str, Any]) -> None:
    replica.script(answered(chat_answer(**choice)))
    async with running_gateway(model_changes("m", [replica.url]), tunables=one_attempt()) as gateway:
        answer = await gateway.post(body=basic(n=2))
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_error")


async def test_tool_calls_far_apart_are_folded_in_order(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script(streamed([call(index=1000), call(index=3), chat_chunk({}, "tool_calls"), DONE]))
    answer = (await gateway.post()).json()
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 2


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_half_a_surrogate_pair_is_never_a_fault_of_ours(replica: ScriptedReplica, is_streamed: bool) -> None:
    replica.script(streamed([sse('{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}'), *chat_events()]))
    async with running_gateway(model_changes("m", [replica.url]), tunables=one_attempt()) as gateway:
        assert (await gateway.post(body=basic(stream=is_streamed))).status_code in (200, 502)
        assert (await gateway.only_record()).end_state in ("done", "engine_error")


# -- engines that lie about usage


async def test_tokens_beyond_what_was_asked_for_are_neither_billed_nor_shown(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    lie = {"prompt_tokens": 7, "completion_tokens": 10**9, "prompt_tokens_details": {"cached_tokens": 50}}
    for script, n in ((streamed(chat_events(usage=lie)), 1), (answered(chat_answer(usage=lie)), 2)):
        replica.script(script)
        shown = (await gateway.post(body=basic(n=n))).json()["usage"]
        record = gateway.journal.closed[-1]
        assert shown["completion_tokens"] == record.completion_tokens == 8 * n
        assert (record.cached_tokens, record.usage_source) == (7, "engine")


async def test_final_figures_that_cannot_be_read_give_way_to_the_running_ones(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    bad: dict[str, Any] = {"prompt_tokens": "7", "completion_tokens": 2.5}
    replica.script(streamed(chat_events(usage=bad)))
    shown = (await gateway.post()).json()["usage"]
    assert shown == running_usage(3)
    record = await gateway.only_record()
    assert (record.prompt_tokens, record.completion_tokens, record.usage_source) == (7, 3, "partial")


async def test_only_final_figures_are_called_the_engines(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script(streamed(chat_events(usage=None)), streamed(chat_events()))
    for source in ("partial", "engine"):
        await gateway.post(body=basic(stream=True))
        assert gateway.journal.closed[-1].usage_source == source


# -- what engines say of themselves


@pytest.mark.parametrize("way", ["a status", "an event first", "an event later"])
async def test_what_an_engine_says_of_its_own_failure_stays_with_us(
    replica: ScriptedReplica, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    error = {"error": {"message": f"CUDA oom at {SECRET}", "type": "OutOfMemory", "code": 500}}
    replica.script(
        {
            "a status": refused(500, f"CUDA oom at {SECRET}", kind="OutOfMemory"),
            "an event first": streamed([sse(error)]),
            "an event later": streamed([*chat_events()[:2], 0.05, sse(error)]),
        }[way]
    )
    async with running_gateway(model_changes("m", [replica.url]), tunables=one_attempt()) as gateway:
        with caplog.at_level(logging.WARNING):
            answer = await gateway.post(body=basic(stream=True))
        assert '"message":"The engine failed."' in answer.text
        assert "CUDA" not in answer.text
        assert "status 500 OutOfMemory" in caplog.text
        assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set", "not set up for"),
        (f"cannot read {SECRET}/template.jinja", "not set up for"),
        ("max_tokens is too large -- at most 5; see /v1/models", "max_tokens is too large -- at most 5; see /v1/models"),
    ],
)
async def test_a_refusal_of_an_engine_says_nothing_of_its_flags_and_files(
    gateway: GatewayUnderTest, replica: ScriptedReplica, said: str, shown: str
) -> None:
    replica.script(refused(400, said, param="body.max_tokens"))
    error = (await gateway.post()).json()["error"]
    assert shown in error["message"]
    assert "--enable" not in error["message"]
    assert SECRET not in error["message"]
    assert error["param"] == "max_tokens"


async def test_a_refusal_without_a_word_is_not_said_to_be_a_failure(replica: ScriptedReplica) -> None:
    for script in (answered({}, 502), streamed([chat_events()[1], 0.05, sse({"error": {"code": 400}})])):
        replica.script(script)
        async with running_gateway(model_changes("m", [replica.url]), tunables=one_attempt()) as gateway:
            assert "The engine failed: The engine refused" not in (await gateway.post(body=basic(stream=True))).text


# -- names and keys


async def test_an_unknown_model_is_shown_in_part_however_long_its_name(gateway: GatewayUnderTest) -> None:
    by_body = await gateway.post(body=basic(model="m" * 1000))
    by_path = await gateway.http.get("/v1/models/" + "m" * 5000, headers=gateway.auth)
    for answer in (by_body, by_path):
        assert answer.status_code == 404
        assert answer.text.count("m" * 200) == 1
        assert len(answer.text) < 500


async def test_an_unknown_model_of_100_kilobytes_is_refused_in_a_few_words(gateway: GatewayUnderTest) -> None:
    answer = await gateway.post(body=basic(model="m" * 100_000))
    assert answer.status_code == 400
    assert len(answer.text) < 1000


@pytest.mark.parametrize("value", ["", "Bearer"])
async def test_an_empty_authorization_is_an_empty_key(gateway: GatewayUnderTest, value: str) -> None:
    answer = await gateway.http.get("/v1/models", headers={"authorization": value})
    assert answer.status_code == 401
    assert answer.json()["error"]["message"].startswith("The API key is empty.")


# -- connections to engines, and metrics


async def test_idle_connections_to_engines_are_closed_without_being_asked_for(replica: ScriptedReplica) -> None:
    async with running_gateway(model_changes("m", [replica.url]), upstream=UpstreamTunables(idle_s=0.05)) as gateway:
        await gateway.post()
        assert gateway.parts.upstream.num_idle(replica.url) == 1
        await until(lambda: gateway.parts.upstream.num_open() == 0)
        await asyncio.wait_for(replica.requests[0].peer_closed.wait(), 1.0)
        assert (await gateway.post()).status_code == 200


async def test_the_state_of_the_journal_is_told(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script([asyncio.Event()])
    client = await RawClient.connect(gateway.port)
    client.writer.write(request_bytes(gateway))
    await replica.wait_for_request()
    gateway.journal.num_refused, gateway.journal.num_corrupt, gateway.journal.is_healthy = 2, 1, False
    for _ in range(2):
        gateway.parts.sample_metrics()
    values = {sample.name: sample.value for family in gateway.parts.metrics.registry.collect() for sample in family.samples}
    assert values["headway_journal_open"] == 1
    assert values["headway_journal_unhealthy"] == 1
    assert values["headway_journal_refused_total"] == 2
    assert values["headway_journal_corrupt_total"] == 1
    client.drop()


async def test_an_engine_that_resets_is_no_client_that_left(replica: ScriptedReplica) -> None:
    replica.script([EVENT_STREAM_HEAD, piece(b"".join(chat_events()[:2])), 0.05, RESET])
    async with running_gateway(model_changes("m", [replica.url]), tunables=one_attempt()) as gateway:
        await gateway.post(body=basic(stream=True))
        assert (await gateway.only_record()).end_state == "engine_died"

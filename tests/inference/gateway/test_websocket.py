"""WS /v1/generate over a real socket, with the websockets client."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from inference.gateway.parts import GatewayTunables
from inference.gateway.state import Change
from tests.fakes.gateway import ACME, GatewayUnderTest, model_changes, running_gateway, until
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import CLOSE, EVENT_STREAM_HEAD, ScriptedReplica, chat_events, piece, refused

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


@asynccontextmanager
async def socket_to(
    gateway: GatewayUnderTest, path: str = "/v1/generate", headers: dict[str, str] | None = None
) -> AsyncIterator[ClientConnection]:
    async with connect(
        f"ws://127.0.0.1:{gateway.port}{path}", additional_headers=headers, compression=None, proxy=None
    ) as socket:
        yield socket


async def send(socket: ClientConnection, message: dict[str, Any]) -> None:
    await socket.send(json.dumps(message))


async def receive(socket: ClientConnection) -> Any:
    message = await asyncio.wait_for(socket.recv(), 5.0)
    assert isinstance(message, str)
    return message if message == "[DONE]" else json.loads(message)


async def answer(socket: ClientConnection) -> list[Any]:
    """All messages up to [DONE]."""
    messages = [await receive(socket)]
    while messages[-1] != "[DONE]":
        messages.append(await receive(socket))
    return messages


def text_of(messages: list[Any]) -> str:
    return "".join(message["choices"][0]["delta"].get("content") or "" for message in messages[:-1])


async def closed_with(socket: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed):
        await asyncio.wait_for(socket.recv(), 5.0)
    assert socket.close_code is not None
    return socket.close_code


async def test_the_first_message_brings_key_and_request_and_others_may_follow(gateway: GatewayUnderTest) -> None:
    async with socket_to(gateway) as socket:
        await send(socket, {"api_key": gateway.key, "request": ASK})
        assert text_of(await answer(socket)) == "Hello!"
        await send(socket, {"request": ASK})
        assert text_of(await answer(socket)) == "Hello!"
        await send(socket, ASK)
        assert text_of(await answer(socket)) == "Hello!"
    records = gateway.journal.closed
    assert [(record.end_state, record.route, record.completion_tokens) for record in records] == [
        ("done", "WS /v1/generate", 3)
    ] * 3
    assert len({record.request_id for record in records}) == 3


async def test_a_key_in_the_handshake_lets_the_request_come_bare(gateway: GatewayUnderTest) -> None:
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await send(socket, {"model": "m", "prompt": "hi", "stream": False})
        messages = await answer(socket)
        assert "".join(message["choices"][0]["text"] for message in messages[:-1]) == "Hello!"


async def test_the_events_are_those_of_a_stream(gateway: GatewayUnderTest) -> None:
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await send(socket, {**ASK, "stream_options": {"include_usage": True}})
        *chunks, usage, done = await answer(socket)
        assert done == "[DONE]"
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)


async def test_b75_a_bad_key_in_the_first_message_is_an_error_and_a_close(gateway: GatewayUnderTest) -> None:
    for message in ({"api_key": "hw_live_no", "request": ASK}, {"request": ASK}, {"api_key": "k\u00e9y", "request": ASK}):
        async with socket_to(gateway) as socket:
            await send(socket, message)
            assert (await receive(socket))["error"]["code"] == "invalid_api_key"
            assert await closed_with(socket) == 4401
    assert gateway.journal.opened == {}


async def test_a_bad_key_in_the_handshake_is_a_401(gateway: GatewayUnderTest) -> None:
    for path, headers in (("/v1/generate", {"authorization": "Bearer no"}), (f"/v1/generate?api_key={gateway.key}", {})):
        with pytest.raises(InvalidStatus) as caught:
            async with socket_to(gateway, path, headers):
                pass
        assert caught.value.response.status_code == 401
        assert json.loads(caught.value.response.body)["error"]["code"] == "invalid_api_key"


async def test_a_handshake_that_is_refused_leaves_a_line_in_the_access_log(
    gateway: GatewayUnderTest, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidStatus):
        async with socket_to(gateway, "/v1/generate", {"authorization": "Bearer hw_live_secret"}):
            pass
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line["event"] == "request_ended"]
    assert (line["route"], line["status"]) == ("WS /v1/generate", 401)
    assert "secret" not in json.dumps(line)


async def test_there_is_no_socket_at_another_path(gateway: GatewayUnderTest) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with socket_to(gateway, "/v1/nope", gateway.auth):
            pass
    assert caught.value.response.status_code == 404


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", 4400),
        ("[]", 4400),
        (json.dumps({"request": "x"}), 4400),
        (json.dumps({**ASK, "n": 0}), 4400),
        (json.dumps({**ASK, "model": "nope"}), 4404),
    ],
)
async def test_an_error_is_a_message_and_a_close_with_its_status(gateway: GatewayUnderTest, message: str, code: int) -> None:
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await socket.send(message)
        assert set(await receive(socket)) == {"error"}
        assert await closed_with(socket) == code


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ('{"request":%s,"priority":"batch"}', "priority"),
        ('{"request":null}', "request"),
        ('{"request":[]}', "request"),
        ('{"request":%s,"request":{}}', "request"),
        ('{"request":{"model":"m","messages":[]}}', "messages"),
        ('{"request":{"model":"m","prompt":"x","max_tokens":"8"}}', "max_tokens"),
        ('{"request":{"model":"m","prompt":"x","cache_salt":"8"}}', "cache_salt"),
        ('{"model":"m","prompt":"\\ud83d"}', None),
    ],
)
async def test_x08_x09_x10_the_fields_of_a_message_are_those_of_the_description(
    gateway: GatewayUnderTest, message: str, param: str | None
) -> None:
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await socket.send(message.replace("%s", json.dumps(ASK)))
        assert (await receive(socket))["error"]["param"] == param
        assert await closed_with(socket) == 4400


async def test_a_failure_inside_an_answer_is_an_error_and_a_close(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script([EVENT_STREAM_HEAD, piece(b"".join(chat_events()[:2])), 0.05, CLOSE])
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await send(socket, ASK)
        assert (await receive(socket))["choices"][0]["delta"]["role"] == "assistant"
        assert (await receive(socket))["choices"][0]["delta"]["content"] == "Hel"
        assert (await receive(socket))["error"]["code"] == "engine_died"
        assert await closed_with(socket) == 4502
    assert (await gateway.only_record()).end_state == "engine_died"


async def test_another_replica_takes_over_here_as_well(replica: ScriptedReplica) -> None:
    async with ScriptedReplica() as broken:
        broken.script(refused(503))
        async with (
            running_gateway(model_changes("m", [broken.url, replica.url])) as gateway,
            socket_to(gateway, headers=gateway.auth) as socket,
        ):
            await send(socket, ASK)
            assert text_of(await answer(socket)) == "Hello!"
            assert gateway.journal.closed[0].attempts == 2


@pytest.mark.parametrize("has_text", [True, False])
async def test_a_cancel_frees_the_engine_and_the_socket_goes_on(
    gateway: GatewayUnderTest, replica: ScriptedReplica, has_text: bool
) -> None:
    replica.script([EVENT_STREAM_HEAD, *([piece(b"".join(chat_events()[:2]))] if has_text else []), asyncio.Event()])
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await send(socket, ASK)
        seen = await replica.wait_for_request()
        if has_text:
            await receive(socket)
            await receive(socket)
        await send(socket, {"type": "cancel"})
        assert await receive(socket) == {"type": "cancelled"}
        await asyncio.wait_for(seen.peer_closed.wait(), 1.0)
        record = await gateway.only_record()
        assert record.end_state == f"client_gone_{'after' if has_text else 'before'}_first_token"
        await send(socket, ASK)
        assert text_of(await answer(socket)) == "Hello!"
        await send(socket, {"type": "cancel"})
        assert await receive(socket) == {"type": "cancelled"}


async def test_a_client_that_leaves_cancels(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script([EVENT_STREAM_HEAD, piece(b"".join(chat_events()[:2])), asyncio.Event()])
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await send(socket, ASK)
        await receive(socket)
        seen = await replica.wait_for_request()
        socket.transport.abort()
    await asyncio.wait_for(seen.peer_closed.wait(), 1.0)
    assert (await gateway.only_record()).end_state == "client_gone_after_first_token"
    await until(lambda: gateway.in_flight() == 0 and not gateway.parts.running)


async def test_two_requests_at_once_are_refused_and_both_ended(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script([asyncio.Event()])
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await send(socket, ASK)
        await replica.wait_for_request()
        await send(socket, ASK)
        assert "one request at a time" in (await receive(socket))["error"]["message"]
        assert await closed_with(socket) == 4400
    assert (await gateway.only_record()).end_state == "client_gone_before_first_token"


async def test_a_socket_without_a_request_is_closed(replica: ScriptedReplica) -> None:
    async with (
        running_gateway(model_changes("m", [replica.url]), tunables=GatewayTunables(socket_idle_s=0.05)) as gateway,
        socket_to(gateway) as socket,
    ):
        assert await closed_with(socket) == 4408


async def test_a_drain_lets_an_answer_end_and_then_closes(replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    role, first, *rest = chat_events()
    replica.script([EVENT_STREAM_HEAD, piece(role + first), go, piece(b"".join(rest)), b"0\r\n\r\n"])
    async with (
        running_gateway(model_changes("m", [replica.url]), tunables=GatewayTunables(drain_s=5.0)) as gateway,
        socket_to(gateway) as idle,
        socket_to(gateway, headers=gateway.auth) as busy,
    ):
        await send(busy, ASK)
        await receive(busy)
        stopping = asyncio.create_task(gateway.stop())
        assert await closed_with(idle) == 1012
        go.set()
        assert (await answer(busy))[-1] == "[DONE]"
        assert await closed_with(busy) == 1012
        await stopping
    assert gateway.journal.closed[0].end_state == "done"


# -- keys that end, messages that cannot be read, handshakes that are refused


async def revoke(gateway: GatewayUnderTest, what: str) -> None:
    changed = {
        "revoked": [Change(id=900, kind="key", key=gateway.key.split("_")[2], payload=None)],
        "suspended": [
            Change(id=900, kind="tenant", key=ACME, payload={"name": "acme", "cache_salt": "s", "is_active": False}),
        ],
    }[what]
    await asyncio.to_thread(gateway.state.apply, changed)


@pytest.mark.parametrize("what", ["revoked", "suspended"])
@pytest.mark.parametrize("by_handshake", [True, False])
async def test_a_key_that_ends_while_its_socket_is_open_opens_no_more_requests(
    gateway: GatewayUnderTest, replica: ScriptedReplica, what: str, by_handshake: bool
) -> None:
    async with socket_to(gateway, headers=gateway.auth if by_handshake else None) as socket:
        await send(socket, ASK if by_handshake else {"api_key": gateway.key, "request": ASK})
        assert text_of(await answer(socket)) == "Hello!"
        await revoke(gateway, what)
        await send(socket, {"request": ASK})
        assert (await receive(socket))["error"]["code"] == "invalid_api_key"
        assert await closed_with(socket) == 4401
    assert len(replica.requests) == len(gateway.journal.closed) == 1


@pytest.mark.parametrize("message", ["garbage{", "[]", b"\xff", "", '{"type":"what"}'])
@pytest.mark.parametrize("has_text", [True, False])
async def test_a_message_that_is_no_cancel_ends_the_answer_as_a_client_that_left(
    gateway: GatewayUnderTest, replica: ScriptedReplica, message: str | bytes, has_text: bool
) -> None:
    replica.script([EVENT_STREAM_HEAD, *([piece(b"".join(chat_events()[:2]))] if has_text else []), asyncio.Event()])
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await send(socket, ASK)
        seen = await replica.wait_for_request()
        if has_text:
            await receive(socket)
            await receive(socket)
        await socket.send(message)
        assert "error" in await receive(socket)
        assert await closed_with(socket) == 4400
        await asyncio.wait_for(seen.peer_closed.wait(), 1.0)
    record = await gateway.only_record()
    assert record.end_state == f"client_gone_{'after' if has_text else 'before'}_first_token"
    assert gateway.in_flight() == 0


@pytest.mark.parametrize("message", ["garbage{", "[]", b"\xff", '{"request": 5}', '{"api_key": "KEY"}'])
async def test_a_message_with_a_good_key_that_is_no_request_leaves_one_record(
    gateway: GatewayUnderTest, message: str | bytes
) -> None:
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await socket.send(message.replace("KEY", gateway.key) if isinstance(message, str) else message)
        assert "error" in await receive(socket)
        assert await closed_with(socket) == 4400
    assert (await gateway.only_record()).end_state == "refused"


async def test_what_a_stranger_sends_leaves_no_record(gateway: GatewayUnderTest) -> None:
    async with socket_to(gateway) as socket:
        await socket.send("garbage{")
        assert await closed_with_error(socket) == 4400
    assert gateway.journal.opened == {}


async def closed_with_error(socket: ClientConnection) -> int:
    assert "error" in await receive(socket)
    return await closed_with(socket)


async def test_a_request_after_one_that_the_engine_refused_leaves_no_record_of_a_drain(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    replica.script(refused(400, "too long"))
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await send(socket, ASK)
        assert (await receive(socket))["error"]["message"] == "too long"
        with contextlib.suppress(ConnectionClosed):  # the close that follows may be here already
            await send(socket, ASK)
        assert await closed_with(socket) == 4400
    assert (await gateway.only_record()).end_state == "refused"


async def test_handshakes_that_are_refused_are_no_errors_of_ours(
    gateway: GatewayUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    for path, headers in (("/v1/generate", {"authorization": "Bearer no"}), ("/v1/nope", {}), ("/v1/generate?key=x", {})):
        with pytest.raises(InvalidStatus):
            async with socket_to(gateway, path, headers):
                pass
    async with socket_to(gateway) as socket:
        socket.transport.abort()
    client = await RawClient.connect(gateway.port)
    upgrade = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: bad\r\n\r\n"
    client.writer.write(b"GET /v1/generate HTTP/1.1\r\nhost: x\r\n" + upgrade.encode())
    assert b" 400 " in (await asyncio.wait_for(client.reader.read(), 5.0)).split(b"\r\n")[0]
    await client.close()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_text_that_is_not_utf_8_is_a_close_and_no_error_of_ours(
    gateway: GatewayUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await socket.send(b"\xff\xfe", text=True)
        assert await closed_with(socket) == 1007
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_write_to_a_socket_that_was_reset_is_a_client_that_left(
    gateway: GatewayUnderTest, replica: ScriptedReplica, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replica.script([EVENT_STREAM_HEAD, piece(b"".join(chat_events()[:2])), asyncio.Event()])

    async def broken(self: object, message: dict[str, Any]) -> None:
        if "Hel" in message.get("text", ""):
            raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")
        await send_message(self, message)  # type: ignore[arg-type]

    send_message = WebSocketsSansIOProtocol.send
    monkeypatch.setattr(WebSocketsSansIOProtocol, "send", broken)
    async with socket_to(gateway, headers=gateway.auth) as socket:
        await send(socket, ASK)
        record = await gateway.only_record()
    assert record.end_state == "client_gone_after_first_token"
    await until(lambda: gateway.in_flight() == 0)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []

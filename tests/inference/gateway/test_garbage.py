"""A request's memory is free when it is over: nothing of ours waits for the collector of garbage, which comes by seldom."""

import gc
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.fakes.gateway import GatewayUnderTest, basic, until
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import ScriptedReplica, chat_events, piece, streamed
from tests.inference.gateway.test_websocket import ASK, answer, send, socket_to

NUM_CALLS = 10
CHAT, LIST = ("POST", "/v1/chat/completions"), ("GET", "/v1/models")
STREAMED = basic(stream=True)


async def call(
    gateway: GatewayUnderTest, route: tuple[str, str], body: dict[str, Any] | None, key: str, until_bytes: bytes
) -> None:
    """On a connection of its own, which is closed when that has come."""
    client = await RawClient.connect(gateway.port)
    content = b"" if body is None else json.dumps(body).encode()
    await client.send(*route, {"authorization": f"Bearer {key}"}, content)
    await client.read_until(until_bytes)
    await client.close()


@pytest.mark.parametrize(
    ("route", "body", "is_known", "until_bytes"),
    [
        pytest.param(CHAT, STREAMED, True, b"[DONE]\n\n\r\n0\r\n\r\n", id="a stream"),
        pytest.param(CHAT, basic(), True, b'"usage":{', id="in one piece"),
        pytest.param(LIST, None, True, b"]}", id="a list"),
        pytest.param(CHAT, STREAMED, False, b'"error":{', id="a bad key"),
        pytest.param(CHAT, STREAMED | {"model": "nobody"}, True, b'"error":{', id="no such model"),
        pytest.param(CHAT, STREAMED | {"max_tokens": "many"}, True, b'"error":{', id="bad input"),
    ],
)
async def test_a_call_that_is_over_leaves_nothing(
    gateway: GatewayUnderTest, route: tuple[str, str], body: dict[str, Any] | None, is_known: bool, until_bytes: bytes
) -> None:
    key = gateway.key if is_known else "hw_live_nonsense"
    assert not await left_by(gateway, route, body, key, until_bytes)


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    start, *first = streamed(chat_events()[:2], after=())
    slow = [start, *first, *(step for _ in range(1_000) for step in (0.05, piece(chat_events()[1])))]
    replica.script(*[slow] * (NUM_CALLS + 1))
    assert not await left_by(gateway, CHAT, STREAMED, gateway.key, b"Hel")


async def test_a_request_on_a_websocket_leaves_nothing(gateway: GatewayUnderTest) -> None:
    async with socket_to(gateway) as socket:
        await send(socket, {"api_key": gateway.key, "request": ASK})
        await answer(socket)

        async def ask() -> None:
            await send(socket, ASK)
            await answer(socket)

        assert not await left_after(ask, gateway)


async def left_by(gateway: GatewayUnderTest, *what: Any) -> Counter[str]:
    return await left_after(lambda: call(gateway, *what), gateway)


async def left_after(once: Callable[[], Awaitable[None]], gateway: GatewayUnderTest) -> Counter[str]:
    """By type, what of ours only the collector can free after it was done a few times."""
    await once()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(NUM_CALLS):
            await once()
        await until(lambda: gateway.in_flight() == 0)
        gc.collect()
        return Counter(kind.__qualname__ for one in gc.garbage if (kind := type(one)).__module__.startswith("inference."))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()

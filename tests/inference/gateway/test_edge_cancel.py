"""A client that leaves, in each phase of its request: the engine learns of it within a second, and one record says so."""

import asyncio
import json
from typing import Any

import pytest

from tests.fakes.gateway import GatewayUnderTest, basic, model_changes, running_gateway, until
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import (
    EVENT_STREAM_HEAD,
    ScriptedReplica,
    SeenRequest,
    chat_chunk,
    chat_events,
    piece,
    refused,
    streamed,
)

BEFORE, AFTER = "client_gone_before_first_token", "client_gone_after_first_token"


async def start(gateway: GatewayUnderTest, **more: Any) -> RawClient:
    client = await RawClient.connect(gateway.port)
    await client.send("POST", "/v1/chat/completions", gateway.auth, json.dumps(basic(**more)).encode())
    return client


async def assert_freed(gateway: GatewayUnderTest, seen: SeenRequest) -> None:
    """Within a second: the engine's peer has closed, the slot is free, the one record is written."""
    async with asyncio.timeout(1.0):
        await seen.peer_closed.wait()
    await until(lambda: gateway.in_flight() == 0 and len(gateway.journal.closed) == 1, 1.0)
    assert not gateway.parts.running


def hanging(*events: bytes) -> list[Any]:
    return [EVENT_STREAM_HEAD, *map(piece, events), asyncio.Event()]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_b19_one_that_leaves_before_the_headers(
    gateway: GatewayUnderTest, replica: ScriptedReplica, is_streamed: bool
) -> None:
    replica.script([asyncio.Event()])
    client = await start(gateway, stream=is_streamed)
    seen = await replica.wait_for_request()
    client.drop()
    await assert_freed(gateway, seen)
    record = gateway.journal.closed[0]
    assert (record.end_state, record.usage_source, record.ttft_ms, record.attempts) == (BEFORE, "none", None, 1)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_b26_one_that_leaves_before_the_first_token(
    gateway: GatewayUnderTest, replica: ScriptedReplica, is_streamed: bool
) -> None:
    role = chat_events()[0]
    replica.script(hanging(role))
    client = await start(gateway, stream=is_streamed)
    seen = await replica.wait_for_request()
    client.drop()
    await assert_freed(gateway, seen)
    record = gateway.journal.closed[0]
    assert (record.end_state, record.completion_tokens) == (BEFORE, 0)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_b19_b21_b57_one_that_leaves_after_the_first_token_pays_for_what_was_made(
    gateway: GatewayUnderTest, replica: ScriptedReplica, is_streamed: bool
) -> None:
    replica.script(hanging(*chat_events(["a", "b", "c"])[:3]))
    client = await start(gateway, stream=is_streamed)
    if is_streamed:
        await client.read_until(b'"b"')
    seen = await replica.wait_for_request()
    await until(lambda: any(exchange.reader is not None and exchange.reader.has_output for exchange in gateway.parts.running))
    client.drop()
    await assert_freed(gateway, seen)
    record = gateway.journal.closed[0]
    assert record.end_state == AFTER
    assert record.usage_source == "partial"
    assert record.prompt_tokens == 7
    assert record.completion_tokens >= (2 if is_streamed else 1)
    assert record.ttft_ms is not None


async def test_one_whose_answer_is_not_streamed_by_the_engine(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script([asyncio.Event()])
    client = await start(gateway, n=2)
    seen = await replica.wait_for_request()
    assert "stream" not in seen.json
    client.drop()
    await assert_freed(gateway, seen)
    assert gateway.journal.closed[0].end_state == BEFORE


async def test_one_that_leaves_the_queue_frees_its_place(replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    replica.script(streamed([go, *chat_events()]))
    async with running_gateway(model_changes("m", [replica.url], max_in_flight=1)) as gateway:
        running = asyncio.create_task(gateway.post())
        await replica.wait_for_request()
        client = await start(gateway)
        await until(lambda: gateway.queued() == 1)
        client.drop()
        await until(lambda: gateway.queued() == 0 and len(gateway.journal.closed) == 1, 1.0)
        assert (gateway.journal.closed[0].end_state, gateway.journal.closed[0].attempts) == (BEFORE, 0)
        go.set()
        assert (await running).status_code == 200
        assert len(replica.requests) == 1


async def test_b25_one_that_has_left_is_not_retried_for() -> None:
    failing, go = refused(503), asyncio.Event()
    async with ScriptedReplica() as first, ScriptedReplica() as second:
        first.script([go, *failing])
        async with running_gateway(model_changes("m", [first.url, second.url])) as gateway:
            client = await start(gateway)
            seen = await first.wait_for_request()
            client.drop()
            await assert_freed(gateway, seen)
            go.set()
            await gateway.http.get("/healthz")
        assert second.requests == []


async def test_one_that_leaves_after_the_end_was_done(gateway: GatewayUnderTest) -> None:
    client = await start(gateway, stream=True)
    await client.read_until(b"[DONE]")
    client.drop()
    assert (await gateway.only_record()).end_state == "done"


async def test_b22_many_that_come_and_go_leave_one_record_each_and_nothing_else(replica: ScriptedReplica) -> None:
    text = [chat_chunk({"content": "x"}) for _ in range(20)]
    replica._default = lambda _seen: [
        EVENT_STREAM_HEAD,
        *[step for event in text for step in (piece(event), 0.01)],
        asyncio.Event(),
    ]
    async with running_gateway(model_changes("m", [replica.url], max_in_flight=8, max_queued=100)) as gateway:

        async def come_and_go(number: int) -> None:
            client = await start(gateway, stream=number % 2 == 0)
            await asyncio.sleep((number % 7) * 0.02)
            client.drop()

        await asyncio.gather(*(come_and_go(number) for number in range(60)))
        await until(lambda: not gateway.parts.running and gateway.in_flight() == gateway.queued() == 0)
        assert len(gateway.journal.closed) == len(gateway.journal.opened)
        assert {record.end_state for record in gateway.journal.closed} <= {BEFORE, AFTER}
        await until(lambda: gateway.parts.upstream.num_open() == 0)
        async with asyncio.timeout(1.0):
            for seen in replica.requests:
                await seen.peer_closed.wait()

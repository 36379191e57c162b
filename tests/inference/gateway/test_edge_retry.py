"""What happens when a replica does not answer: another one takes over while nothing was sent, else a true status."""

import asyncio
import json
from typing import Any

import pytest

from inference.gateway.parts import GatewayTunables
from inference.gateway.upstream import UpstreamTunables
from inference.policy.brain_tunables import BrainTunables
from tests.fakes.gateway import GatewayUnderTest, basic, model_changes, running_gateway, until
from tests.fakes.replica import (
    CLOSE,
    DONE,
    EVENT_STREAM_HEAD,
    RESET,
    ScriptedReplica,
    chat_chunk,
    chat_events,
    piece,
    refused,
    sse,
    streamed,
)

NOTHING_SENT: dict[str, Any] = {
    "reset before headers": [RESET],
    "closed before headers": [CLOSE],
    "half the headers": [b"HTTP/1.1 200 OK\r\ncont", CLOSE],
    "503": refused(503, "busy"),
    "500": refused(500, "cannot schedule new futures after shutdown"),
    "404: not loaded yet": refused(404, "The model `upstream-name` does not exist."),
    "401: not set up": refused(401, "Unauthorized"),
    "429": refused(429, "slow down"),
    "error first": streamed([sse('{"error":{"message":"x","type":"y","code":null}}'), DONE]),
    "error after the role": streamed(
        [chat_chunk({"role": "assistant", "content": ""}), sse('{"error":{"message":"x","code":503}}')]
    ),
    "died after the role": [EVENT_STREAM_HEAD, piece(chat_chunk({"role": "assistant", "content": ""})), CLOSE],
    "died before any event": [EVENT_STREAM_HEAD, CLOSE],
    "no stream": [b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>"],
}


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("failure", NOTHING_SENT)
async def test_b29_b61_another_replica_takes_over_while_nothing_was_sent(failure: str, is_streamed: bool) -> None:
    async with ScriptedReplica() as first, ScriptedReplica() as second:
        first.script(NOTHING_SENT[failure])
        async with running_gateway(model_changes("m", [first.url, second.url])) as gateway:
            answer = await gateway.post(body=basic(stream=is_streamed))
            assert answer.status_code == 200
            assert "Hel" in answer.text
            record = await gateway.only_record()
            assert (record.end_state, record.attempts, record.replica) == ("done", 2, "rep-1")
            assert (len(first.requests), len(second.requests)) == (1, 1)
            assert second.requests[0].headers["x-request-id"].endswith("-2")
            assert gateway.in_flight() == 0


async def test_a_replica_that_cannot_be_reached_is_passed_over(replica: ScriptedReplica) -> None:
    async with ScriptedReplica() as gone:
        url = gone.url
    async with running_gateway(model_changes("m", [url, replica.url])) as gateway:
        for _ in range(5):
            assert (await gateway.post()).status_code == 200
        assert max(record.attempts for record in gateway.journal.closed) == 2
        assert sum(record.attempts for record in gateway.journal.closed) < 10, "it cools down instead of being tried each time"


@pytest.mark.parametrize(
    ("script", "is_blamed"), [([RESET], True), ([CLOSE], True), (refused(503), False), (refused(500), False)]
)
async def test_a_replica_that_says_nothing_is_left_alone_for_a_while(script: Any, is_blamed: bool) -> None:
    async with ScriptedReplica() as first, ScriptedReplica() as second:
        first.script(script)
        async with running_gateway(model_changes("m", [first.url, second.url])) as gateway:
            await gateway.post()
            assert gateway.struck() == ({"rep-0"} if is_blamed else set())


async def test_an_answer_that_is_not_streamed_is_made_again_when_its_replica_dies_half_way() -> None:
    async with ScriptedReplica() as first, ScriptedReplica() as second:
        first.script([EVENT_STREAM_HEAD, piece(b"".join(chat_events(["lost ", "text"])[:2])), 0.05, CLOSE])
        async with running_gateway(model_changes("m", [first.url, second.url])) as gateway:
            answer = await gateway.post()
            assert answer.json()["choices"][0]["message"]["content"] == "Hello!"
            record = await gateway.only_record()
            assert (record.end_state, record.attempts, record.completion_tokens) == ("done", 2, 3)


async def test_attempts_are_bounded() -> None:
    async with ScriptedReplica() as first, ScriptedReplica() as second, ScriptedReplica() as third:
        replicas = (first, second, third)
        for replica in replicas:
            replica.script(refused(500), refused(500))
        changes = model_changes("m", [replica.url for replica in replicas])
        async with running_gateway(changes, tunables=GatewayTunables(max_attempts=2, drain_s=0.1)) as gateway:
            answer = await gateway.post()
            assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_error")
            assert (await gateway.only_record()).attempts == 2
        assert sum(len(replica.requests) for replica in replicas) == 2


ENDS: dict[str, Any] = {
    "500": (refused(500, "broken"), 502, "engine_error", "engine_error"),
    "503": (refused(503, "busy"), 503, "engine_busy", "engine_error"),
    "reset": ([RESET], 502, "engine_died", "engine_died"),
    "error first, code null": (streamed([sse('{"error":{"message":"x","code":null}}')]), 502, "engine_error", "engine_error"),
}


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("failure", ENDS)
async def test_b29_with_no_other_replica_the_failure_has_a_true_status(
    gateway: GatewayUnderTest, replica: ScriptedReplica, failure: str, is_streamed: bool
) -> None:
    script, status, code, end_state = ENDS[failure]
    replica.script(script)
    answer = await gateway.post(body=basic(stream=is_streamed))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers["content-type"] == "application/json"
    assert ("retry-after" in answer.headers) == (status == 503)
    record = await gateway.only_record()
    assert (record.end_state, record.attempts, record.completion_tokens) == (end_state, 1, 0)
    assert gateway.in_flight() == 0


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize(
    "script",
    [
        refused(400, "`upstream-name` says: too long", param="input_tokens"),
        streamed([sse('{"error":{"message":"`upstream-name` says: too long","param":"input_tokens","code":400}}')]),
    ],
)
async def test_b29_what_the_engine_says_about_the_request_is_passed_on_and_not_tried_again(
    script: Any, is_streamed: bool
) -> None:
    async with ScriptedReplica() as first, ScriptedReplica() as second:
        first.script(script)
        async with running_gateway(model_changes("m", [first.url, second.url])) as gateway:
            answer = await gateway.post(body=basic(stream=is_streamed))
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert (error["message"], error["param"], error["type"]) == (
                "`m` says: too long",
                "input_tokens",
                "invalid_request_error",
            )
            record = await gateway.only_record()
            assert (record.end_state, record.attempts) == ("refused", 1)
        assert second.requests == []


async def test_an_engine_that_sends_no_headers_is_given_up(replica: ScriptedReplica) -> None:
    replica.script([asyncio.Event()])
    async with running_gateway(model_changes("m", [replica.url]), upstream=UpstreamTunables(headers_s=0.1)) as gateway:
        answer = await gateway.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "engine_timeout")
        assert (await gateway.only_record()).end_state == "deadline"


async def test_b97_a_kept_connection_that_the_engine_closed_is_no_failure(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    await gateway.post()
    replica.script([CLOSE])
    answer = await gateway.post()
    assert answer.status_code == 200
    assert [record.attempts for record in gateway.journal.closed] == [1, 1]


async def test_a_full_queue_is_a_429_and_a_wait_that_is_too_long_a_503(replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    replica.script(streamed([go, *chat_events()]))
    changes = model_changes("m", [replica.url], max_in_flight=1, max_queued=1)
    async with running_gateway(changes, admission=BrainTunables(queue_timeout_s=1.5)) as gateway:
        running = asyncio.create_task(gateway.post())
        await replica.wait_for_request()
        waiting = asyncio.create_task(gateway.post())
        await until(lambda: gateway.queued() == 1)
        full = await gateway.post()
        assert (full.status_code, full.json()["error"]["code"], full.json()["error"]["type"]) == (
            429,
            "queue_full",
            "rate_limit_error",
        )
        assert int(full.headers["retry-after"]) >= 1
        late = await waiting
        assert (late.status_code, late.json()["error"]["code"]) == (503, "queue_timeout")
        go.set()
        assert (await running).status_code == 200
        assert sorted(record.end_state for record in gateway.journal.closed) == ["done", "refused", "refused"]


async def test_who_waits_gets_the_slot_that_becomes_free_and_the_wait_is_recorded(replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    replica.script(streamed([go, *chat_events()]))
    async with running_gateway(model_changes("m", [replica.url], max_in_flight=1)) as gateway:
        running = asyncio.create_task(gateway.post())
        await replica.wait_for_request()
        waiting = asyncio.create_task(gateway.post(body=basic(priority="batch")))
        await until(lambda: gateway.queued() == 1)
        await asyncio.sleep(0.05)
        go.set()
        assert {(await running).status_code, (await waiting).status_code} == {200}
        record = next(record for record in gateway.journal.closed if record.tier == "batch")
        assert record.queue_ms >= 40
        assert record.ttft_ms is not None
        assert record.total_ms >= record.ttft_ms >= record.queue_ms


async def test_a_request_that_is_not_recorded_is_not_served(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    from inference.gateway.journal import JournalUnavailable

    gateway.journal.fails_with = JournalUnavailable("the disk is full", retry_after_s=5.0)
    answer = await gateway.post()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "journal_unavailable")
    assert replica.requests == []
    assert gateway.in_flight() == 0


async def test_a_failure_of_ours_after_dispatch_is_recorded_and_answered(
    gateway: GatewayUnderTest, replica: ScriptedReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("inference.gateway.fold.Folder.add", fail)
    answer = await gateway.post()
    assert (answer.status_code, json.loads(answer.text)["error"]["code"]) == (500, "internal_error")
    assert (await gateway.only_record()).end_state == "gateway_lost"
    assert gateway.in_flight() == 0

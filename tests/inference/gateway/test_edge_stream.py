"""Streams and folded answers, as a client sees them on its socket, with an engine that does what its script says."""

import asyncio
import json
from typing import Any

import pytest

from inference.gateway.outputs import HttpResponder
from inference.gateway.upstream import UpstreamTunables
from tests.fakes.gateway import CACHE_SALT, GatewayUnderTest, basic, model_changes, running_gateway
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import (
    CLOSE,
    DONE,
    EVENT_STREAM_HEAD,
    LAST_PIECE,
    RESET,
    ScriptedReplica,
    answered,
    chat_answer,
    chat_chunk,
    chat_events,
    piece,
    running_usage,
    sse,
    streamed,
    text_events,
    usage_chunk,
)

ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/generate", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/generate", {"prompt": "hi"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/completions", {"prompt": "hi"}),
]


def data_lines(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line]


def chunks(text: str) -> list[Any]:
    """The JSON of each event but [DONE]."""
    return [json.loads(line) for line in data_lines(text) if line != "[DONE]"]


def text_of(text: str) -> str:
    pieces = [choice for chunk in chunks(text) for choice in chunk.get("choices", [])]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in pieces)


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_b10_usage_is_recorded_and_its_frame_stripped_if_not_asked_for(
    gateway: GatewayUnderTest, path: str, body: dict[str, Any]
) -> None:
    answer = await gateway.post(path, {"model": "m", "max_tokens": 8, "stream": True, **body})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (answer.headers["cache-control"], answer.headers["x-accel-buffering"]) == ("no-cache", "no")
    assert "content-length" not in answer.headers
    assert text_of(answer.text) == "Hello!"
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks(answer.text))
    assert data_lines(answer.text)[-1] == "[DONE]"
    record = await gateway.only_record()
    assert (record.prompt_tokens, record.completion_tokens, record.usage_source) == (7, 3, "engine")
    assert (record.route, record.end_state, record.finish_reason, record.attempts) == (path, "done", "stop", 1)


async def test_b08_b09_usage_that_was_asked_for_comes_once_and_last(gateway: GatewayUnderTest) -> None:
    answer = await gateway.post(body=basic(stream=True, stream_options={"include_usage": True}))
    *others, last = chunks(answer.text)
    assert all(chunk["usage"] is None for chunk in others)
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 10)
    assert {(chunk["id"], chunk["model"], chunk["created"]) for chunk in [*others, last]} == {(last["id"], "m", 1700000000)}


UPSTREAM_ENDS = {
    "as it should": [DONE],
    "without [DONE]": [],
    "with two": [DONE, DONE],
    "with text after it": [DONE, chat_chunk({"content": "late"})],
}


@pytest.mark.parametrize("end", UPSTREAM_ENDS)
async def test_b11_done_is_the_last_event_once_and_the_body_ends(
    gateway: GatewayUnderTest, replica: ScriptedReplica, end: str
) -> None:
    replica.script(streamed(chat_events(done=UPSTREAM_ENDS[end])))
    client = await RawClient.connect(gateway.port)
    await client.send("POST", "/v1/chat/completions", gateway.auth, json.dumps(basic(stream=True)).encode())
    status, headers = await client.head()
    assert (status, headers["transfer-encoding"]) == (200, "chunked")
    body = await client.read_until(b"data: [DONE]\n\n")
    assert await asyncio.wait_for(client.reader.readexactly(7), 1.0) == b"\r\n0\r\n\r\n"
    assert body.count(b"[DONE]") == 1
    assert b"late" not in body
    await client.send("GET", "/healthz")
    assert (await client.answer())[0] == 200
    await client.close()
    assert (await gateway.only_record()).end_state == "done"


async def test_b11_an_engine_that_owes_the_end_after_its_finish_reason_is_not_waited_for(replica: ScriptedReplica) -> None:
    replica.script(streamed([*chat_events(usage=None, done=[]), asyncio.Event()]))
    async with running_gateway(model_changes("m", [replica.url]), upstream=UpstreamTunables(tail_s=0.05)) as gateway:
        answer = await gateway.post(body=basic(stream=True))
        assert (text_of(answer.text), data_lines(answer.text)[-1]) == ("Hello!", "[DONE]")
        record = await gateway.only_record()
        assert (record.end_state, record.completion_tokens, record.usage_source) == ("done", 3, "partial")
        await asyncio.wait_for(replica.requests[0].peer_closed.wait(), 1.0)


async def test_b60_each_call_leaves_one_record_on_every_route(gateway: GatewayUnderTest) -> None:
    for path, body in ROUTES:
        for is_streamed in (True, False):
            answer = await gateway.post(path, {"model": "m", "max_tokens": 8, "stream": is_streamed, **body})
            assert answer.status_code == 200
    records = gateway.journal.closed
    assert len({record.request_id for record in records}) == len(records) == len(gateway.journal.opened) == 8
    assert sum(record.completion_tokens for record in records) == 8 * 3


@pytest.mark.parametrize("more", [{"stream": True}, {}, {"n": 2}])
async def test_the_record_is_settled_before_the_last_event_is_sent(
    gateway: GatewayUnderTest, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    original, events = HttpResponder.body, gateway.journal.events

    async def noted(responder: HttpResponder, data: bytes, *, more: bool) -> None:
        if not more:
            events.append("sent the last")
        await original(responder, data, more=more)

    monkeypatch.setattr(HttpResponder, "body", noted)
    await gateway.post(body=basic(**more))
    assert events == ["closed", "sent the last"]


async def test_the_first_text_does_not_wait_for_the_second(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    events = chat_events()
    replica.script(streamed([*events[:2], go, *events[2:]]))
    client = await RawClient.connect(gateway.port)
    await client.send("POST", "/v1/chat/completions", gateway.auth, json.dumps(basic(stream=True)).encode())
    await client.read_until(b'"Hel"', timeout_s=1.0)
    go.set()
    await client.read_until(b"[DONE]")
    await client.close()


async def test_what_arrives_together_leaves_together(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script(streamed([b"".join(chat_events(["a", "b", "c"]))]))
    client = await RawClient.connect(gateway.port)
    await client.send("POST", "/v1/chat/completions", gateway.auth, json.dumps(basic(stream=True)).encode())
    await client.head()
    size = int(await client.read_until(b"\r\n"), 16)
    body = await client.reader.readexactly(size)
    assert body.count(b"data: ") == 5
    await client.close()


async def test_b02_text_is_the_same_wherever_the_engines_bytes_are_cut(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    role, frame, *rest = chat_events(["무엇을 ", "🙂", "é"])
    stream = b"".join([role, frame, *rest])
    offsets = [*range(len(role), len(role) + len(frame)), *range(1, len(stream), 17)]
    for offset in offsets:
        replica.script(streamed([stream[:offset], 0.005, stream[offset:]]))
    expected = None
    for _ in offsets:
        answer = await gateway.post(body=basic(stream=True))
        lines = [{**chunk, "id": ""} for chunk in chunks(answer.text)]
        expected = expected or lines
        assert lines == expected
        assert text_of(answer.text) == "무엇을 🙂é"
        assert answer.text.endswith("data: [DONE]\n\n")


async def test_b06_comments_of_the_engine_are_not_parsed(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    first, *rest = chat_events()
    replica.script(streamed([b": ping - 2\n\n", b":\n", first, b"event: ping\n\n", *rest]))
    answer = await gateway.post(body=basic(stream=True))
    assert text_of(answer.text) == "Hello!"


async def test_ids_are_ours_and_the_engine_gets_its_name_the_salt_and_a_request_id(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    answer = await gateway.post()
    request_id = answer.headers["x-request-id"]
    assert answer.json()["id"] == "chatcmpl-" + request_id.removeprefix("req_")
    assert answer.json()["model"] == "m"
    text = await gateway.post("/v1/completions", {"model": "m", "prompt": "x"})
    assert text.json()["id"].startswith("cmpl-")
    seen = replica.requests[0]
    assert (seen.json["model"], seen.json["cache_salt"]) == ("upstream-name", CACHE_SALT)
    assert seen.headers["x-request-id"] == f"{request_id}-1"
    assert "authorization" not in seen.headers


async def test_an_openai_engine_gets_neither_the_salt_nor_our_request_id(replica: ScriptedReplica) -> None:
    async with running_gateway(model_changes("m", [replica.url], kind="openai")) as gateway:
        answer = await gateway.post(body=basic(top_k=5, min_p=0.1))
        assert answer.status_code == 200
    seen = replica.requests[0]
    assert "x-request-id" not in seen.headers
    assert set(seen.json) == {"model", "messages", "max_tokens", "stream", "stream_options"}
    assert seen.json["stream_options"] == {"include_usage": True}


async def test_a_client_that_does_not_stream_gets_the_folded_answer(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    answer = await gateway.post()
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["choices"][0] == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello!"},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert replica.requests[0].json["stream"] is True


async def test_tools_take_the_engines_own_way_when_not_streamed(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    whole = chat_answer()
    whole["choices"][0] |= {
        "message": {"role": "assistant", "content": None, "tool_calls": [call]},
        "finish_reason": "tool_calls",
    }
    replica.script(answered(whole))
    answer = await gateway.post(body=basic(tools=[{"type": "function", "function": {"name": "f"}}]))
    assert "stream" not in replica.requests[0].json
    assert answer.json() == {**whole, "id": answer.json()["id"], "model": "m", "system_fingerprint": "fp_v1"}
    record = await gateway.only_record()
    assert (record.end_state, record.completion_tokens, record.finish_reason) == ("done", 3, "tool_calls")


async def test_b34_an_engine_that_streams_unasked_is_folded(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script(streamed(chat_events()))
    answer = await gateway.post(body=basic(n=1, logprobs=True))
    assert answer.json()["choices"][0]["message"]["content"] == "Hello!"


async def test_b34_an_engine_that_does_not_stream_when_asked_to_is_an_error(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    replica.script(answered(chat_answer()))
    answer = await gateway.post(body=basic(stream=True))
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_error")
    assert (await gateway.only_record()).end_state == "engine_error"
    replica.script(answered(chat_answer("whole")))
    whole = await gateway.post()
    assert whole.json()["choices"][0]["message"]["content"] == "whole"


# -- failures after the answer has begun


def failing(*end: Any) -> list[Any]:
    """Two pieces of text, then `end` in place of the rest; written as given."""
    role, first, second, *_ = chat_events(["one ", "two ", "three"])
    return [EVENT_STREAM_HEAD, piece(role + first), 0.05, piece(second), 0.05, *end]


FAILURES: dict[str, Any] = {
    "reset": ([RESET], "engine_died", "engine_died"),
    "closed inside the body": ([CLOSE], "engine_died", "engine_died"),
    "ended without a finish reason": ([LAST_PIECE], "engine_died", "engine_died"),
    "[DONE] without a finish reason": ([piece(DONE) + LAST_PIECE], "engine_died", "engine_died"),
    "ended inside an event": ([piece(b'data: {"choi') + LAST_PIECE], "engine_died", "engine_died"),
    "no JSON": ([piece(sse("nonsense")) + LAST_PIECE], "engine_error", "engine_error"),
    "an error object": (
        [piece(sse('{"error":{"message":"upstream-name broke","type":"x","code":500}}') + DONE) + LAST_PIECE],
        "engine_error",
        "engine_error",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_b27_b28_a_failure_inside_a_stream_is_one_error_event_and_no_made_up_end(
    gateway: GatewayUnderTest, replica: ScriptedReplica, failure: str
) -> None:
    script, end_state, code = FAILURES[failure]
    replica.script(failing(*script))
    answer = await gateway.post(body=basic(stream=True))
    *before, last = data_lines(answer.text)
    assert answer.status_code == 200
    assert "".join(json.loads(line)["choices"][0]["delta"]["content"] for line in before) == "one two "
    assert json.loads(last)["error"]["code"] == code
    assert "upstream-name" not in answer.text
    assert "[DONE]" not in answer.text
    assert 'finish_reason":"' not in answer.text
    record = await gateway.only_record()
    assert (record.end_state, record.finish_reason, record.attempts) == (end_state, "", 1)
    assert (record.prompt_tokens, record.completion_tokens, record.usage_source) == (7, 2, "partial")
    assert gateway.in_flight() == 0


async def test_b27_an_engine_that_stalls_inside_a_stream_is_given_up(replica: ScriptedReplica) -> None:
    replica.script(failing(asyncio.Event()))
    async with running_gateway(model_changes("m", [replica.url]), upstream=UpstreamTunables(inter_event_s=0.2)) as gateway:
        answer = await gateway.post(body=basic(stream=True))
        assert json.loads(data_lines(answer.text)[-1])["error"]["code"] == "engine_timeout"
        record = await gateway.only_record()
        assert (record.end_state, record.completion_tokens) == ("deadline", 2)
        await asyncio.wait_for(replica.requests[0].peer_closed.wait(), 1.0)


async def test_b17_an_answer_cut_by_its_limit_ends_as_it_should(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    events = [
        chat_chunk({"role": "assistant", "tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        chat_chunk({}, "length"),
    ]
    replica.script(streamed([*events, usage_chunk(running_usage(5)), DONE]))
    answer = await gateway.post(body=basic(stream=True, tools=[{"type": "function", "function": {"name": "f"}}]))
    assert chunks(answer.text)[-1]["choices"][0]["finish_reason"] == "length"
    assert (await gateway.only_record()).finish_reason == "length"


async def test_several_choices_are_done_when_all_are(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    events = text_events(["a"])[0].replace(b'"index":0', b'"index":1'), *text_events(["b", "c"])
    replica.script(streamed(list(events)))
    answer = await gateway.post("/v1/completions", {"model": "m", "prompt": "x", "n": 2, "stream": True})
    assert [choice["index"] for chunk in chunks(answer.text) for choice in chunk["choices"]] == [1, 0, 0]
    replica.script(streamed([events[0], DONE]))
    cut = await gateway.post("/v1/completions", {"model": "m", "prompt": "x", "n": 2, "stream": True})
    assert json.loads(data_lines(cut.text)[-1])["error"]["code"] == "engine_died"

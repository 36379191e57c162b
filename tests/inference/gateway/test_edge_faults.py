"""Faults of streams, errors and repeated requests that others reported, against the edge on a real socket."""

import asyncio
import json
import time
from typing import Any

import pytest

from headway.clock import FakeClock
from inference.gateway.edge import EdgeTunables
from inference.gateway.idempotency import IdempotencyKeys, IdempotencyKeyUsed, IdempotencyTunables
from inference.gateway.parts import GatewayTunables
from inference.gateway.upstream import UpstreamTunables
from tenants.services.key_format import new_key
from tests.fakes.gateway import GLOBEX, GatewayUnderTest, basic, key_changes, model_changes, running_gateway, until
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import (
    CLOSE,
    DONE,
    EVENT_STREAM_HEAD,
    LAST_PIECE,
    RESET,
    ScriptedReplica,
    SeenRequest,
    answered,
    chat_answer,
    chat_chunk,
    chat_events,
    piece,
    refused,
    running_usage,
    sse,
    streamed,
    usage_chunk,
)

STREAMED = json.dumps(basic(stream=True)).encode()
SHOUT = "queue full " * 300


def data_lines(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]


# -- section 1: framing


@pytest.mark.parametrize(
    "cut",
    [
        lambda event: [event.rstrip(b"\n") + b"\r\n\r\n"],
        lambda event: [event.rstrip(b"\n") + b"\n\r\n"],
        lambda event: [event.rstrip(b"\n") + b"\r", b"\n\r", b"\n"],
        lambda event: [event.rstrip(b"\n"), b"\r", b"\n", b"\r", b"\n"],
        lambda event: [event.rstrip(b"\n") + b"\r\r"],
    ],
)
async def test_b04_each_event_arrives_at_once_whatever_ends_its_lines(
    gateway: GatewayUnderTest, replica: ScriptedReplica, cut: Any
) -> None:
    go = [asyncio.Event() for _ in range(5)]
    steps: list[Any] = []
    for number, event in enumerate(chat_events(["a0", "a1", "a2", "a3", "a4"])[1:6]):
        steps += [go[number], *(part for each in cut(event) for part in (each, 0.002))]
    replica.script(streamed([*steps, usage_chunk(), DONE]))
    client = await RawClient.connect(gateway.port)
    await client.send("POST", "/v1/chat/completions", gateway.auth, STREAMED)
    for number in range(5):
        go[number].set()
        await client.read_until(f'"a{number}"'.encode(), timeout_s=1.0)
    rest = await client.read_until(b"[DONE]")
    assert rest.count(b"data:") == 1, "no phantom events"
    await client.close()


async def test_b07_every_data_line_is_a_chunk_with_a_choice_or_the_end(replica: ScriptedReplica) -> None:
    events = chat_events(["a", "b"])
    beats = [b"data:\n\n", b"data: \n\n", sse({"choices": []}), sse({"id": "x", "choices": [], "usage": None})]
    replica.script(streamed([*beats, 0.15, *events[:2], *beats, 0.15, *events[2:]]))
    async with running_gateway(model_changes("m", [replica.url]), edge=EdgeTunables(comment_s=0.05)) as gateway:
        answer = await gateway.post(body=basic(stream=True))
    assert ": keep-alive\n\n" in answer.text
    *before, last = data_lines(answer.text)
    assert last == "[DONE]"
    assert all(json.loads(line)["choices"][0] for line in before)
    assert len(before) == 3


@pytest.mark.parametrize("is_queued", [False, True])
async def test_b14_a_silent_stream_gets_its_headers_and_comments_in_a_stated_time(
    replica: ScriptedReplica, is_queued: bool
) -> None:
    go = asyncio.Event()
    replica.script(streamed([go, *chat_events()]), streamed(chat_events()))
    changes = model_changes("m", [replica.url], max_in_flight=1)
    async with running_gateway(changes, edge=EdgeTunables(comment_s=0.1)) as gateway:
        first = asyncio.create_task(gateway.post(body=basic(stream=True))) if is_queued else None
        if first:
            await replica.wait_for_request()
        client = await RawClient.connect(gateway.port)
        started_s = time.monotonic()
        await client.send("POST", "/v1/chat/completions", gateway.auth, STREAMED)
        status, headers = await client.head(timeout_s=2.0)
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert time.monotonic() - started_s >= 0.05
        for _ in range(3):
            await client.read_until(b": keep-alive\n\n", timeout_s=1.0)
        go.set()
        assert b"Hel" in await client.read_until(b"[DONE]")
        await client.close()
        if first:
            assert (await first).text.endswith("data: [DONE]\n\n")
        assert [record.end_state for record in gateway.journal.closed] == ["done"] * (2 if is_queued else 1)


async def test_b14_after_a_comment_another_replica_can_still_take_over(replica: ScriptedReplica) -> None:
    async with ScriptedReplica() as second:
        replica.script([EVENT_STREAM_HEAD, 0.3, CLOSE])
        changes = model_changes("m", [replica.url, second.url])
        async with running_gateway(changes, edge=EdgeTunables(comment_s=0.1)) as gateway:
            answer = await gateway.post(body=basic(stream=True))
            assert answer.text.startswith(": keep-alive\n\n")
            assert answer.text.endswith("data: [DONE]\n\n")
            assert '"error"' not in answer.text
            assert (await gateway.only_record()).attempts == 2


async def test_b14_a_failure_after_a_comment_is_an_error_event(replica: ScriptedReplica) -> None:
    replica.script([EVENT_STREAM_HEAD, 0.3, CLOSE])
    async with running_gateway(model_changes("m", [replica.url]), edge=EdgeTunables(comment_s=0.1)) as gateway:
        answer = await gateway.post(body=basic(stream=True))
        assert answer.status_code == 200
        (line,) = data_lines(answer.text)
        assert json.loads(line)["error"]["code"] == "engine_died"


async def test_b13_b15_streams_are_neither_compressed_nor_buffered(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script(streamed([step for event in chat_events([f"t{n} " for n in range(20)]) for step in (event, 0.02)]))
    client = await RawClient.connect(gateway.port)
    await client.send("POST", "/v1/chat/completions", {**gateway.auth, "accept-encoding": "gzip, br"}, STREAMED)
    _, headers = await client.head()
    assert "content-encoding" not in headers
    assert "content-length" not in headers
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    gaps = []
    for number in range(20):
        began_s = time.monotonic()
        await client.read_until(f'"t{number} "'.encode())
        gaps.append(time.monotonic() - began_s)
    assert sorted(gaps)[18] < 0.4
    assert sum(gap > 0.005 for gap in gaps[1:]) > 10, "they do not come in one lump"
    await client.close()


async def test_b16_empty_deltas_end_nothing(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    events = [
        chat_chunk({"role": "assistant", "content": ""}),
        *[chat_chunk({"content": ""})] * 3,
        *chat_events(["a", "b"])[1:],
    ]
    replica.script(streamed(events))
    answer = await gateway.post(body=basic(stream=True))
    assert answer.text.endswith("data: [DONE]\n\n")
    replica.script(streamed(events))
    whole = await gateway.post()
    assert whole.json()["choices"][0] == {
        "index": 0,
        "logprobs": None,
        "message": {"role": "assistant", "content": "ab"},
        "finish_reason": "stop",
    }


async def test_b17_an_engine_that_dies_inside_a_tool_call_is_an_error_event(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    call = chat_chunk(
        {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]}
    )
    replica.script([EVENT_STREAM_HEAD, piece(call), 0.05, RESET])
    answer = await gateway.post(body=basic(stream=True, tools=[{"type": "function", "function": {"name": "f"}}]))
    assert json.loads(data_lines(answer.text)[-1])["error"]["code"] == "engine_died"
    assert "[DONE]" not in answer.text


async def test_b18_a_tool_call_is_relayed_as_it_was_sent(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    calls = [
        {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": None}},
        {"index": 0, "id": None, "type": None, "function": {"name": None, "arguments": '{"'}},
    ]
    replica.script(streamed([chat_chunk({"tool_calls": calls}), chat_chunk({}, "tool_calls"), usage_chunk(), DONE]))
    answer = await gateway.post(body=basic(stream=True))
    assert json.loads(data_lines(answer.text)[0])["choices"][0]["delta"] == {"tool_calls": calls}


# -- section 3: errors


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize(("code", "status"), [(400, 400), (422, 422), (None, 502), (500, 502), (503, 503), ("x", 502)])
async def test_b29_an_error_as_the_first_event_is_a_true_status(
    gateway: GatewayUnderTest, replica: ScriptedReplica, code: Any, status: int, is_streamed: bool
) -> None:
    error = {"error": {"message": "context", "type": "BadRequestError", "param": "messages", "code": code}}
    replica.script(streamed([sse(error), DONE]))
    answer = await gateway.post(body=basic(stream=is_streamed))
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    if status < 500:
        assert (answer.json()["error"]["message"], answer.json()["error"]["param"]) == ("context", "messages")


async def test_b31_all_replicas_down_is_a_503_and_an_unknown_model_a_404(replica: ScriptedReplica) -> None:
    async with running_gateway(model_changes("m", [replica.url])) as gateway:
        await replica.stop()
        calls = [await gateway.post(body=basic(stream=number % 2 == 0)) for number in range(4)]
        unknown = await gateway.post(body=basic(model="no-such-model"))
        listed = (await gateway.http.get("/v1/models", headers=gateway.auth)).json()
        await replica.start()
    for down in calls:
        assert (down.status_code, down.json()["error"]["code"]) == (503, "model_unavailable")
        assert int(down.headers["retry-after"]) >= 1
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert [model["id"] for model in listed["data"]] == ["m"]


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2}])
async def test_b34_an_answer_of_another_kind_is_a_502_with_a_code(replica: ScriptedReplica, more: dict[str, Any]) -> None:
    replica.script([b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>"])
    async with running_gateway(model_changes("m", [replica.url]), tunables=GatewayTunables(max_attempts=1)) as gateway:
        answer = await gateway.post(body=basic(**more))
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_error")
        assert "<html>" not in answer.text


# -- B57, B58, B59: what is counted


@pytest.mark.parametrize("kind", ["vllm", "openai"])
async def test_b57_what_was_delivered_before_the_client_left_is_recorded(replica: ScriptedReplica, kind: str) -> None:
    """An engine of kind openai gives no running figures: each event with output counts as a token."""

    def usage(number: int) -> Any:
        return running_usage(number) if kind == "vllm" else None

    deltas = [chat_chunk({"content": f"t{number} "}, usage=usage(number)) for number in range(1, 501)]
    replica.script(streamed([chat_chunk({"role": "assistant", "content": ""}), *deltas, asyncio.Event()]))
    async with running_gateway(model_changes("m", [replica.url], kind=kind)) as gateway:
        client = await RawClient.connect(gateway.port)
        await client.send("POST", "/v1/chat/completions", gateway.auth, json.dumps(basic(stream=True, max_tokens=500)).encode())
        for number in range(100, 501, 100):
            await client.read_until(f'"t{number} "'.encode())
        client.drop()
        record = await gateway.only_record()
        assert record.end_state == "client_gone_after_first_token"
        assert (record.completion_tokens, record.usage_source) == (500, "partial" if kind == "vllm" else "counted")


async def test_b57_an_engine_that_never_says_its_usage_is_counted(replica: ScriptedReplica) -> None:
    events = [chat_chunk({"role": "assistant", "content": ""}), *(chat_chunk({"content": "x"}) for _ in range(7))]
    replica.script(streamed([*events, chat_chunk({}, "stop"), DONE]), answered({**chat_answer(), "usage": None}))
    async with running_gateway(model_changes("m", [replica.url], kind="openai")) as gateway:
        assert (await gateway.post(body=basic(stream=True))).status_code == 200
        assert (await gateway.post(body=basic(n=2))).status_code == 200
        streamed_record, whole_record = gateway.journal.closed
        assert (streamed_record.completion_tokens, streamed_record.usage_source) == (7, "counted")
        assert (whole_record.completion_tokens, whole_record.usage_source) == (0, "none")


NO_OUTPUT: dict[str, Any] = {
    "500": refused(500, SHOUT),
    "an error event first": streamed([sse({"error": {"message": SHOUT, "type": "x", "code": None}}), DONE]),
    "an error event after the role": streamed([chat_events()[0], sse({"error": {"message": SHOUT, "code": 500}}), DONE]),
    "silence": [asyncio.Event()],
    "silence after the role": streamed([chat_events()[0], asyncio.Event()]),
}


@pytest.mark.parametrize("failure", NO_OUTPUT)
async def test_b58_a_failure_without_output_counts_no_output(replica: ScriptedReplica, failure: str) -> None:
    replica.script(NO_OUTPUT[failure])
    upstream = UpstreamTunables(headers_s=0.3, inter_event_s=0.3)
    tunables = GatewayTunables(max_attempts=1)
    async with running_gateway(model_changes("m", [replica.url]), upstream=upstream, tunables=tunables) as gateway:
        answer = await gateway.post(body=basic(stream=True))
        assert answer.status_code in (502, 504)
        record = await gateway.only_record()
        assert record.completion_tokens == 0
        assert record.end_state in ("engine_error", "deadline")


async def test_b58_an_error_text_is_no_output(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    role, first, *_ = chat_events(["one ", "two "])
    replica.script([EVENT_STREAM_HEAD, piece(role + first), 0.05, piece(sse({"error": {"message": SHOUT}})), LAST_PIECE])
    await gateway.post(body=basic(stream=True))
    assert (await gateway.only_record()).completion_tokens == 1


async def test_b59_the_last_figures_count_once(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    deltas = [chat_chunk({"content": "x"}, usage=running_usage(number)) for number in range(1, 100)]
    finish = chat_chunk({}, "stop", usage=running_usage(100))
    options = {"include_usage": True, "continuous_usage_stats": True}
    for end in ([usage_chunk(running_usage(100)), DONE], [DONE]):
        replica.script(streamed([*deltas, finish, *end]))
        answer = await gateway.post(body=basic(max_tokens=100, stream=True, stream_options=options))
        assert json.loads(data_lines(answer.text)[-2])["usage"]["completion_tokens"] == 100
    assert [record.completion_tokens for record in gateway.journal.closed] == [100, 100]


# -- B70


async def test_b70_a_key_in_use_is_a_409_that_names_the_request(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    replica.script(streamed([go, *chat_events()]))
    same = {"idempotency-key": "k-1"}
    first = asyncio.create_task(gateway.post(headers=same))
    await replica.wait_for_request()
    second = await gateway.post(headers=same)
    other_body = await gateway.post(body=basic(max_tokens=9), headers=same)
    go.set()
    holder = (await first).headers["x-request-id"]
    for refused_one in (second, other_body):
        assert (refused_one.status_code, refused_one.json()["error"]["code"]) == (409, "idempotency_key_in_use")
        assert holder in refused_one.json()["error"]["message"]
        assert refused_one.headers["x-headway-receipt"] == holder
    assert len(replica.requests) == 1
    late = await gateway.post(headers=same)
    assert (late.status_code, late.headers["x-headway-receipt"], late.headers["x-should-retry"]) == (409, holder, "false")
    assert [record.end_state for record in gateway.journal.closed] == ["refused", "refused", "done", "refused"]


async def test_b70_a_client_that_times_out_and_asks_again_is_charged_once(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    replica.script(streamed([asyncio.Event()]), streamed(chat_events()))
    client = await RawClient.connect(gateway.port)
    await client.send("POST", "/v1/generate", {**gateway.auth, "idempotency-key": "k-2"}, json.dumps(basic()).encode())
    await replica.wait_for_request()
    client.drop()
    await until(lambda: len(gateway.journal.closed) == 1)
    again = await gateway.post(headers={"idempotency-key": "k-2"})
    assert again.status_code == 200
    assert [record.completion_tokens for record in gateway.journal.closed] == [0, 3]


async def test_b70_a_key_is_its_tenants_own(gateway: GatewayUnderTest) -> None:
    other = new_key()
    gateway.state.apply(key_changes(other, GLOBEX, first_id=700))
    same = {"idempotency-key": "k-3"}
    assert (await gateway.post(headers=same)).status_code == 200
    assert (await gateway.post(headers={**same, "authorization": f"Bearer {other.text}"})).status_code == 200
    assert (await gateway.post(headers=same)).status_code == 409


async def test_b70_a_request_that_made_nothing_frees_its_key(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    replica.script(refused(400, "no"))
    same = {"idempotency-key": "k-4"}
    assert (await gateway.post(headers=same)).status_code == 400
    assert (await gateway.post(body=basic(n=0), headers=same)).status_code == 400
    assert (await gateway.post(headers=same)).status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "k\u00e9y"])
async def test_b70_a_key_that_is_none_is_refused(gateway: GatewayUnderTest, key: str) -> None:
    client = await RawClient.connect(gateway.port)
    await client.send("POST", "/v1/generate", {**gateway.auth, "idempotency-key": key}, json.dumps(basic()).encode())
    status, _, answer = await client.answer()
    assert (status, answer["error"]["param"]) == (400, "Idempotency-Key")
    await client.close()


def test_b70_used_keys_are_bounded_and_forgotten_in_time() -> None:
    clock = FakeClock()
    keys = IdempotencyKeys(IdempotencyTunables(keep_s=60, max_per_tenant=10))

    def use(number: int, tenant: str = "a") -> None:
        name = keys.take(tenant, b"%d" % number, f"req_{number}", now_s=clock.monotonic_s())
        keys.settle(tenant, name, made_tokens=True, now_s=clock.monotonic_s())

    for number in range(100):
        use(number)
    assert keys.num_remembered() == 10
    with pytest.raises(IdempotencyKeyUsed):
        use(99)
    use(0)
    clock.advance(61)
    use(99)
    use(1, "b")
    clock.advance(61)
    use(2, "c")
    use(3, "c")
    assert keys.num_remembered() == 2


# -- B79


def echo(seen: SeenRequest) -> Any:
    nonce = seen.json["messages"][0]["content"]
    return streamed([0.001 * (hash(nonce) % 20), *chat_events([nonce, "!"])])


async def test_b79_five_hundred_calls_of_five_tenants_each_get_their_own_answer() -> None:
    async with ScriptedReplica(default=echo) as first, ScriptedReplica(default=echo) as second:
        first.script(*[[RESET]] * 10)
        changes = model_changes("m", [first.url, second.url], max_in_flight=64, max_queued=500)
        async with running_gateway(changes) as gateway:
            keys = [new_key() for _ in range(5)]
            for number, key in enumerate(keys):
                gateway.state.apply(key_changes(key, f"0000000{number}-1111-4111-8111-111111111111", first_id=700 + number * 2))

            async def call(number: int) -> None:
                nonce = f"nonce-{number}-{keys[number % 5].id}"
                auth = {"authorization": f"Bearer {keys[number % 5].text}"}
                body = basic(messages=[{"role": "user", "content": nonce}], stream=number % 2 == 0)
                if number % 10 == 9:
                    client = await RawClient.connect(gateway.port)
                    await client.send("POST", "/v1/chat/completions", auth, json.dumps(body).encode())
                    await asyncio.sleep(0.005)
                    client.drop()
                    return
                answer = await gateway.post(body=body, headers=auth, timeout=60)
                assert answer.status_code == 200, answer.text
                assert nonce in answer.text
                assert answer.text.count("nonce-") == 1

            await asyncio.gather(*(call(number) for number in range(500)))
            await until(lambda: len(gateway.journal.closed) == len(gateway.journal.opened))
            assert gateway.in_flight() == 0


# -- B82, B89, X14


async def test_b82_an_answer_is_strict_json_whatever_the_engine_writes(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    odd = b'{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"logprob":-Infinity},{"logprob":NaN}]}}]}'
    replica.script(streamed([sse(odd), *chat_events(["b"])[1:]]))
    answer = await gateway.post(body=basic(stream=True, logprobs=True, top_logprobs=5))

    def refuse(name: str) -> None:
        raise AssertionError(name)

    lines = [json.loads(line, parse_constant=refuse) for line in data_lines(answer.text)[:-1]]
    assert lines[0]["choices"][0]["logprobs"] == {"content": [{"logprob": None}, {"logprob": None}]}
    assert answer.text.endswith("[DONE]\n\n")


@pytest.mark.parametrize("sent", ["x" * 1000, "a%0d%0ab", "\u00e9\u00e8", "req_000000000000000000000000"])
async def test_b89_x14_a_clients_request_id_is_replaced(gateway: GatewayUnderTest, replica: ScriptedReplica, sent: str) -> None:
    client = await RawClient.connect(gateway.port)
    headers = {**gateway.auth, "x-request-id": sent.encode().decode("latin-1")}
    await client.send("POST", "/v1/chat/completions", headers, json.dumps(basic()).encode())
    status, answered_headers, answer = await client.answer()
    assert status == 200
    ours = answered_headers["x-request-id"]
    assert ours.startswith("req_")
    assert ours != sent
    assert sent[:20] not in json.dumps(answer)
    assert replica.requests[0].headers["x-request-id"] == f"{ours}-1"
    await client.close()


async def test_b89_a_header_of_a_megabyte_is_refused(gateway: GatewayUnderTest) -> None:
    client = await RawClient.connect(gateway.port)
    client.writer.write(b"POST /v1/generate HTTP/1.1\r\nhost: x\r\nx-request-id: " + b"x" * 1_000_000 + b"\r\n\r\n")
    status, _, answer = await client.answer()
    assert (status, answer["error"]["code"]) == (431, "headers_too_large")
    client.drop()


async def test_x14_what_a_client_says_about_itself_is_neither_trusted_nor_passed_inward(
    gateway: GatewayUnderTest, replica: ScriptedReplica
) -> None:
    said = {
        "x-ratelimit-remaining-tokens": "1000000",
        "x-forwarded-for": "10.0.0.1",
        "x-forwarded-proto": "https",
        "x-tenant-id": GLOBEX,
        "x-headway-queue-ms": "5",
        "forwarded": "for=10.0.0.1",
        "cookie": "a=b",
        "host": "evil.example",
    }
    answer = await gateway.post(headers=said)
    assert answer.status_code == 200
    assert "x-ratelimit-remaining-tokens" not in answer.headers
    passed = replica.requests[0].headers
    assert set(passed) <= {"host", "content-type", "accept", "x-request-id", "content-length", "connection"}
    assert "evil" not in passed["host"]
    assert (await gateway.only_record()).tenant_id != GLOBEX

"""Prompt counts at the edge: what is refused, what limit the engine is sent, and when a bound is taken instead."""

import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import websockets

from inference.dispatch.dispatcher import Dispatcher, Grant
from inference.gateway.prompt_size import CHAT_TOKENS, MESSAGE_TOKENS, TokeniserTunables
from inference.policy.decisions import Ask, Queued
from inference.tokenising.counter import PromptCounter
from tests.fakes.gateway import GatewayUnderTest, basic, model_changes, running_gateway, until
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import ScriptedReplica
from tests.fakes.tokeniser import byte_bundle, byte_counter, size_of_chat

CONTEXT = 4000
BYTES = "digest-of-bytes"


@contextlib.asynccontextmanager
async def serving(
    replica: ScriptedReplica, counter: PromptCounter | None = None, *, kind: str = "vllm", tokeniser: str = BYTES, **more: Any
) -> AsyncIterator[GatewayUnderTest]:
    changes = model_changes("m", [replica.url], kind=kind, tokeniser=tokeniser, max_model_len=CONTEXT)
    async with running_gateway(changes, tokenisers={BYTES: counter or byte_counter()}, **more) as gateway:
        yield gateway


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


def text_of(num_tokens: int) -> str:
    return "a" * (num_tokens - size_of_chat(""))


def counted(gateway: GatewayUnderTest, how: str) -> float:
    return gateway.parts.metrics.registry.get_sample_value("headway_prompt_counts_total", {"how": how}) or 0.0


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> list[Ask]:
    """What the dispatcher was asked for."""
    seen: list[Ask] = []
    submit = Dispatcher.submit

    async def watched(self: Dispatcher, ask: Ask, on_queued: Callable[[Queued], None] | None = None) -> Grant:
        seen.append(ask)
        return await submit(self, ask, on_queued)

    monkeypatch.setattr(Dispatcher, "submit", watched)
    return seen


async def test_a_counted_prompt_is_what_is_asked_for(replica: ScriptedReplica, asks: list[Ask]) -> None:
    async with serving(replica) as gateway:
        assert (await gateway.post(body=chat("hi", max_tokens=8))).status_code == 200
        assert (asks[0].prompt_tokens, asks[0].max_tokens) == (size_of_chat("hi"), 8)
        assert counted(gateway, "exact") == 1


@pytest.mark.parametrize(("num_tokens", "sent"), [(100, 512), (CONTEXT - 512, 512), (CONTEXT - 511, 511), (CONTEXT - 1, 1)])
async def test_without_a_limit_the_engine_is_sent_the_default_or_the_room(
    replica: ScriptedReplica, num_tokens: int, sent: int
) -> None:
    async with serving(replica) as gateway:
        assert (await gateway.post(body=chat(text_of(num_tokens)))).status_code == 200
        assert replica.requests[0].json["max_tokens"] == sent


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "limit", "numbers"),
    [
        (CONTEXT, {}, ["4000 tokens"]),
        (CONTEXT + 1, {}, ["4000", "4001"]),
        (CONTEXT * 100, {}, ["4000", "more than"]),
        (3990, {"max_tokens": 11}, ["4000", "4001", "3990", "11"]),
        (3990, {"max_completion_tokens": 10**9}, ["4000", "3990", "1000000000"]),
    ],
)
async def test_b87_what_does_not_fit_is_refused_before_dispatch(
    replica: ScriptedReplica, asks: list[Ask], num_tokens: int, limit: dict[str, Any], numbers: list[str], is_streamed: bool
) -> None:
    async with serving(replica) as gateway:
        response = await gateway.post(body=chat(text_of(num_tokens), stream=is_streamed, **limit))
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
        assert error["type"] == "invalid_request_error"
        assert all(number in error["message"] for number in numbers), error["message"]
        record = await gateway.only_record()
        assert (record.end_state, record.attempts) == ("refused", 0)
        assert asks == [] and replica.requests == []


async def test_what_just_fits_is_sent_as_asked(replica: ScriptedReplica) -> None:
    async with serving(replica) as gateway:
        assert (await gateway.post(body=chat(text_of(3990), max_tokens=10))).status_code == 200
        assert replica.requests[0].json["max_tokens"] == 10


async def test_a_socket_is_held_to_the_same_rules(replica: ScriptedReplica) -> None:
    async with serving(replica) as gateway:
        url = f"ws://127.0.0.1:{gateway.port}/v1/generate"
        async with websockets.connect(url, additional_headers=gateway.auth) as socket:
            await socket.send(json.dumps(chat(text_of(CONTEXT))))
            assert "context_length_exceeded" in str(await socket.recv())


@pytest.mark.parametrize(
    ("prompt", "total", "longest"),
    [("abc", 3, 3), (["abc", "ü"], 5, 3), ([1, 2], 2, 2), ([[1, 2], [3]], 3, 2), ("x" * 3000, 3000, 3000)],
)
async def test_completions_are_counted_in_all_their_forms(
    replica: ScriptedReplica, asks: list[Ask], prompt: Any, total: int, longest: int
) -> None:
    async with serving(replica) as gateway:
        body = {"model": "m", "prompt": prompt, "max_tokens": CONTEXT - longest, "stream": True}
        await gateway.post("/v1/completions", body)
        assert asks[0].prompt_tokens == total
        refused = await gateway.post("/v1/completions", {**body, "max_tokens": CONTEXT - longest + 1})
        assert refused.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(("kept", "sent"), [(100, 512), (-1, 1), (3600, 400)])
async def test_a_prompt_that_the_engine_cuts_is_counted_as_cut(
    replica: ScriptedReplica, asks: list[Ask], kept: int, sent: int
) -> None:
    async with serving(replica) as gateway:
        assert (await gateway.post(body=chat("a" * 50_000, truncate_prompt_tokens=kept))).status_code == 200
        assert replica.requests[0].json["max_tokens"] == sent
        assert asks[0].prompt_tokens == CONTEXT - sent if kept != 100 else 100


async def test_what_was_counted_before_is_not_counted_again(replica: ScriptedReplica) -> None:
    async with serving(replica) as gateway:
        for _ in range(2):
            assert (await gateway.post(body=chat("a" * 2000, max_tokens=8))).status_code == 200
        assert (counted(gateway, "exact"), counted(gateway, "cached")) == (1, 1)


# -- bounds


async def test_an_external_replica_gets_the_limit_as_it_was_named(replica: ScriptedReplica, asks: list[Ask]) -> None:
    async with serving(replica, kind="openai", tokeniser="") as gateway:
        assert (await gateway.post(body=chat("ü" * 3000, max_tokens=9000))).status_code == 200
        assert replica.requests[0].json["max_tokens"] == 9000
        assert asks[0].prompt_tokens == CHAT_TOKENS + MESSAGE_TOKENS + 6001
        assert counted(gateway, "no_tokeniser") == 1


@pytest.mark.parametrize(
    ("counter", "why"),
    [
        (byte_counter(chat_template="{{ raise_exception('roles must alternate') }}"), "template"),
        (byte_counter(counts_chat=False), "unsupported"),
        (byte_counter(chat_template=None), "no_template"),
    ],
)
async def test_what_cannot_be_counted_is_served_all_the_same(
    replica: ScriptedReplica, asks: list[Ask], counter: PromptCounter, why: str
) -> None:
    async with serving(replica, counter) as gateway:
        assert (await gateway.post(body=chat("hi"))).status_code == 200
        assert asks[0].prompt_tokens == CHAT_TOKENS + MESSAGE_TOKENS + 3
        assert replica.requests[0].json["max_tokens"] == 512
        assert counted(gateway, why) == 1


async def test_a_tokeniser_that_is_not_there_yet_fails_no_request(replica: ScriptedReplica) -> None:
    async with serving(replica, tokeniser="another") as gateway:
        assert (await gateway.post()).status_code == 200
        assert counted(gateway, "not_loaded") == 1


class SlowCounter(PromptCounter):
    """Counts for as long as it is not let go."""

    go_on: threading.Event

    def chat(self, *args: Any, **kwargs: Any) -> int:
        self.go_on.wait(30)
        return super().chat(*args, **kwargs)


@pytest.fixture
def slow_counter() -> Iterator[SlowCounter]:
    counter = SlowCounter(byte_bundle())
    counter.go_on = threading.Event()
    yield counter
    counter.go_on.set()


class FaultyCounter(PromptCounter):
    def chat(self, *args: Any, **kwargs: Any) -> int:
        raise KeyError(str(args))


@pytest.mark.parametrize("content", ["secret words", "secret words" * 200])
async def test_a_fault_of_the_counting_fails_no_request_and_tells_no_words(
    replica: ScriptedReplica, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    async with serving(replica, FaultyCounter(byte_bundle())) as gateway:
        assert (await gateway.post(body=chat(content))).status_code == 200
        assert counted(gateway, "error") == 1
    assert "prompt_not_counted" in caplog.text and "secret" not in caplog.text + "".join(capsys.readouterr())


async def test_a_client_cannot_make_a_template_hold_up_the_others(replica: ScriptedReplica) -> None:
    """A small request with variables of its own is counted off the loop, too, and given up in time."""
    slow = "{% for a in range(n) %}{% for b in range(n) %}{{ b }}{% endfor %}{% endfor %}"
    tunables = TokeniserTunables(limit_s=0.1)
    async with serving(replica, byte_counter(chat_template=slow), tokenising=tunables) as gateway:
        assert (await gateway.post(body=chat("a", chat_template_kwargs={"n": 1000}))).status_code == 200
        assert counted(gateway, "timeout") == 1


async def test_counting_that_takes_long_blocks_nothing_and_is_given_up(
    replica: ScriptedReplica, slow_counter: SlowCounter
) -> None:
    tunables = TokeniserTunables(threads=1, limit_s=0.05)
    async with serving(replica, slow_counter, tokenising=tunables) as gateway:
        assert (await gateway.post(body=chat("a" * 2000))).status_code == 200  # before it is let go
        assert counted(gateway, "timeout") == 1
        slow_counter.go_on.set()


async def test_a_client_that_leaves_while_its_prompt_is_counted_is_gone(
    replica: ScriptedReplica, slow_counter: SlowCounter
) -> None:
    async with serving(replica, slow_counter) as gateway:
        client = await RawClient.connect(gateway.port)
        await client.send("POST", "/v1/chat/completions", gateway.auth, json.dumps(chat("a" * 2000)).encode())
        await until(lambda: len(gateway.journal.opened) == 1)
        client.drop()
        record = await gateway.only_record()
        assert (record.end_state, record.attempts) == ("client_gone_before_first_token", 0)
        assert replica.requests == []
        slow_counter.go_on.set()


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 20_000}]}]},
        {
            "messages": [{"role": "user", "content": "a"}],
            "tools": [{"type": "function", "function": {"name": "f", "description": "d" * 10_000}}] * 2,
        },
    ],
)
async def test_b38_what_is_not_plain_text_is_bounded_by_its_size_too(
    replica: ScriptedReplica, asks: list[Ask], fields: dict[str, Any]
) -> None:
    async with serving(replica, kind="openai", tokeniser="") as gateway:
        assert (await gateway.post(body={"model": "m", **fields})).status_code == 200
        assert asks[0].prompt_tokens > 20_000


async def test_b38_ids_are_counted_for_any_engine(replica: ScriptedReplica, asks: list[Ask]) -> None:
    async with serving(replica, kind="openai", tokeniser="") as gateway:
        await gateway.post("/v1/completions", {"model": "m", "prompt": [[5] * 700, [6] * 300], "max_tokens": 1})
        assert asks[0].prompt_tokens == 1000


async def test_replicas_that_count_differently_are_not_counted_for(replica: ScriptedReplica) -> None:
    changes = model_changes("m", [replica.url, replica.url], tokeniser=BYTES, max_model_len=CONTEXT)
    assert changes[2].payload is not None
    changes[2].payload["tokeniser"] = "another"
    async with running_gateway(changes, tokenisers={BYTES: byte_counter()}) as gateway:
        assert gateway.state.serving("m") is None
        assert gateway.state.tokenisers() == {BYTES, "another"}
        assert (await gateway.post(body=basic())).status_code == 200
        assert counted(gateway, "no_tokeniser") == 1


async def test_the_smallest_context_of_the_replicas_counts(replica: ScriptedReplica) -> None:
    changes = model_changes("m", [replica.url, replica.url], tokeniser=BYTES, max_model_len=CONTEXT)
    assert changes[2].payload is not None
    changes[2].payload["max_model_len"] = 1000
    async with running_gateway(changes, tokenisers={BYTES: byte_counter()}) as gateway:
        response = await gateway.post(body=chat(text_of(1000)))
        assert "1000 tokens" in response.json()["error"]["message"]


async def test_where_only_the_engine_counts_the_bound_is_asked_for_beside_what_is_likely_and_that_is_learnt(
    replica: ScriptedReplica, asks: list[Ask]
) -> None:
    async with running_gateway(model_changes("m", [replica.url])) as gateway:
        for _ in range(40):  # the engine says that it had 7 tokens
            assert (await gateway.post(body=chat("a" * 960, max_tokens=8))).status_code == 200
    bound = 960 + 1 + MESSAGE_TOKENS + CHAT_TOKENS
    assert {ask.prompt_tokens for ask in asks} == {bound}
    likely = [ask.work_tokens for ask in asks]
    assert likely[0] == -(-bound // 4)
    assert likely == sorted(likely, reverse=True) and 7 <= likely[-1] < 15


async def test_a_prompt_of_ids_is_as_long_as_it_is(replica: ScriptedReplica, asks: list[Ask]) -> None:
    async with running_gateway(model_changes("m", [replica.url])) as gateway:
        await gateway.post("/v1/completions", body={"model": "m", "prompt": [1, 2, 3], "max_tokens": 8})
    assert (asks[0].prompt_tokens, asks[0].work_tokens) == (3, 3)

"""Who goes on at another replica and who does not, what that replica is asked, and parking."""

import asyncio
from typing import Any

import pytest

from inference.gateway.exchange import Exchange
from inference.gateway.parts import GatewayTunables
from inference.gateway.state import Change
from inference.gateway.upstream import UpstreamTunables
from inference.policy.brain_tunables import BrainTunables, ParkingTunables
from tests.fakes.gateway import GatewayUnderTest, model_changes, running_gateway, until
from tests.fakes.replica import ScriptedReplica, refused
from tests.fakes.token_engine import FIRST_ID, PROMPT_IDS, TokenEngine, dying
from tests.inference.gateway.resumed_answers import CHAT, COMPLETIONS, TEXT, body_for, read, read_chunks, three_replicas
from tests.inference.gateway.test_websocket import answer as messages_of
from tests.inference.gateway.test_websocket import send, socket_to


def resumes(gateway: GatewayUnderTest, exact: str = "yes") -> float:
    return gateway.parts.metrics.registry.get_sample_value("headway_resumes_total", {"exact": exact}) or 0


async def test_the_next_replica_is_asked_for_a_completion_of_the_ids_so_far() -> None:
    engine = TokenEngine(TEXT)
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "seed": 7}
    kept = {**sampling, "stop_token_ids": [7], "ignore_eos": True, "logit_bias": {"5": 1.0}, "skip_special_tokens": False}
    dropped = {"truncate_prompt_tokens": 100, "chat_template_kwargs": {"a": 1}, "add_generation_prompt": True}
    async with three_replicas(engine) as gateway:
        body = body_for(CHAT, stream=True, user=dying(10), min_tokens=12, **kept, **dropped)
        assert read(await gateway.post(CHAT, body)).text == TEXT
    first, second = engine.asked
    assert first["return_token_ids"] is True
    made = len(second["prompt"]) - len(PROMPT_IDS)
    assert second["prompt"] == [*PROMPT_IDS, *range(FIRST_ID, FIRST_ID + made)]
    assert 8 <= made <= 10, "but for a character that was not whole"
    assert (second["max_tokens"], second["min_tokens"]) == (first["max_tokens"] - made, 12 - made)
    ours = {"model", "stream", "stream_options", "cache_salt", "return_token_ids", "user", "priority"}
    assert second.keys() == {"prompt", "max_tokens", "min_tokens", *kept, *ours}
    assert {name: second[name] for name in kept} == {name: first[name] for name in kept}
    assert second["cache_salt"] == first["cache_salt"]


@pytest.mark.parametrize(
    ("fields", "exact"),
    [({}, "yes"), ({"temperature": 1}, "yes"), ({"seed": 1}, "yes"), ({"seed": 1, "temperature": 1}, "no")],
    ids=str,
)
async def test_a_seed_s_generator_starts_again_which_is_said(fields: dict[str, Any], exact: str) -> None:
    async with three_replicas(TokenEngine(TEXT)) as gateway:
        assert read(await gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(9), **fields))).text == TEXT
        assert (resumes(gateway, "yes"), resumes(gateway, "no")) == ((1, 0) if exact == "yes" else (0, 1))
        assert (await gateway.only_record()).attempts == 2


NEVER: dict[str, dict[str, Any]] = {
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": -0.5},
    "structured outputs": {"structured_outputs": {"regex": "a*"}},
    "a JSON format": {"response_format": {"type": "json_object"}},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "log-probabilities": {"logprobs": True},
    "of the prompt": {"prompt_logprobs": 0},
    "echo": {"echo": True},
    "bad words": {"bad_words": ["no"]},
    "ids for the client": {"return_token_ids": True},
    "a reasoning effort": {"reasoning_effort": "low"},
}


@pytest.mark.parametrize("rule", NEVER)
async def test_some_never_go_on_once_text_was_sent(rule: str) -> None:
    engine = TokenEngine(TEXT)
    async with three_replicas(engine) as gateway:
        answer = await gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(9), **NEVER[rule]))
        assert '"code":"engine_died"' in answer.text.split("\n\n")[-2]
        record = await gateway.only_record()
        assert (record.end_state, record.attempts, record.completion_tokens) == ("engine_died", 1, 9)
        assert resumes(gateway) == 0
        assert len(engine.asked) == 1
    assert engine.asked[0].get("return_token_ids") == NEVER[rule].get("return_token_ids")


async def test_before_any_text_they_are_retried_whole() -> None:
    async with three_replicas(TokenEngine(TEXT)) as gateway:
        answer = await gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(0), presence_penalty=1))
        assert read(answer).text == TEXT


async def test_what_is_collected_and_cannot_go_on_is_begun_anew() -> None:
    async with three_replicas(TokenEngine(TEXT)) as gateway:
        answer = await gateway.post(CHAT, body_for(CHAT, user=dying(9), frequency_penalty=1))
        assert read(answer).text == TEXT
        assert (resumes(gateway), (await gateway.only_record()).attempts) == (0, 2)


async def restarts(gateway: GatewayUnderTest, url: str) -> None:
    """As the feed tells it: the engine's end is noticed, and later another one serves at `url`."""
    first = next(change.payload for change in gateway.state.rows() if change.key == "rep-0")
    assert first is not None
    gateway.state.apply([Change(500, "replica", "rep-0", {**first, "state": "failed"})])
    await until(lambda: gateway.queued() == 1)
    gateway.state.apply([Change(501, "replica", "rep-0", {**first, "epoch": 2, "url": url})])


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("dies_after", [0, 9])
async def test_with_its_only_replica_gone_an_answer_goes_on_when_that_is_back(is_streamed: bool, dies_after: int) -> None:
    engine = TokenEngine(TEXT)
    async with (
        ScriptedReplica(default=engine.answer) as first,
        ScriptedReplica(default=engine.answer) as second,
        running_gateway(model_changes("m", [first.url])) as gateway,
    ):
        asking = asyncio.create_task(gateway.post(CHAT, body_for(CHAT, stream=is_streamed, user=dying(dies_after))))
        await until(lambda: gateway.queued() == 1)
        await restarts(gateway, second.url)
        assert read(await asking).text == TEXT
        record = await gateway.only_record()
        assert (record.end_state, record.attempts, record.replica) == ("done", 2, "rep-0")
        assert (gateway.in_flight(), len(second.requests) > 0) == (0, True)


async def test_the_retry_budget_holds_for_restarts_too() -> None:
    engine, tunables = TokenEngine(TEXT), GatewayTunables(drain_s=0.2, max_attempts=2)
    async with (
        ScriptedReplica(default=engine.answer) as first,
        ScriptedReplica(default=engine.answer) as second,
        running_gateway(model_changes("m", [first.url]), tunables=tunables) as gateway,
    ):
        asking = asyncio.create_task(gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(9, 3))))
        await until(lambda: gateway.queued() == 1)
        await restarts(gateway, second.url)
        assert '"code":"engine_died"' in (await asking).text
        record = await gateway.only_record()
        assert (record.end_state, record.attempts) == ("engine_died", 2)


async def test_a_client_that_leaves_while_its_engine_is_started_again_leaves_the_queue() -> None:
    engine = TokenEngine(TEXT)
    async with ScriptedReplica(default=engine.answer) as first, running_gateway(model_changes("m", [first.url])) as gateway:
        asking = asyncio.create_task(gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(9))))
        await until(lambda: gateway.queued() == 1)
        asking.cancel()
        await until(lambda: gateway.queued() == 0)
        assert (await gateway.only_record()).end_state == "client_gone_after_first_token"
        assert gateway.host.snapshot().limits.open == 0


async def test_an_engine_that_tells_no_ids_ends_its_stream_as_before() -> None:
    async with three_replicas(TokenEngine(TEXT, tells_ids=False)) as gateway:
        answer = await gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(9)))
        assert '"code":"engine_died"' in answer.text
        assert (await gateway.only_record()).end_state == "engine_died"


async def test_a_replica_of_another_kind_is_asked_for_no_ids() -> None:
    engine = TokenEngine(TEXT)
    async with (
        ScriptedReplica(default=lambda seen: engine.answer(_numbered(seen))) as replica,
        running_gateway(model_changes("m", [replica.url], kind="openai")) as gateway,
    ):
        await gateway.post(CHAT, body_for(CHAT, stream=True))
    assert "return_token_ids" not in engine.asked[0]


def _numbered(seen: Any) -> Any:
    seen.headers.setdefault("x-request-id", "r-1")
    return seen


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_client_sees_ids_only_when_it_asks(path: str) -> None:
    engine = TokenEngine("abcdefgh" * 20, token_bytes=1, pause_s=0.001)
    async with three_replicas(engine) as gateway:
        plain = await gateway.post(path, body_for(path, stream=True))
        asking = await gateway.post(path, body_for(path, stream=True, return_token_ids=True))
    assert str(FIRST_ID) not in plain.text and '"token_ids":[' not in plain.text
    ids = [
        number
        for chunk in read(asking).chunks
        for choice in chunk["choices"]
        for number in choice.get("token_ids") or []
        if number >= FIRST_ID
    ]
    assert ids == list(range(FIRST_ID, FIRST_ID + 160)), "each event's own, not those of the one its shape was learnt from"


async def test_another_version_does_not_take_over() -> None:
    engine, other = TokenEngine(TEXT), TokenEngine("anders")
    async with ScriptedReplica(default=engine.answer) as one, ScriptedReplica(default=other.answer) as two:
        changes = model_changes("m", [one.url, two.url])
        for change in changes:
            if change.key == "rep-1" and change.payload is not None:
                change.payload["version"] = "v2"
        async with running_gateway(changes) as gateway:
            answer = await gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(9)))
            assert '"code":"engine_died"' in answer.text
            record = await gateway.only_record()
            assert (record.attempts, record.version, record.replica) == (1, "v1", "rep-0")
            assert gateway.in_flight() == 0
    assert other.asked == []


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_nothing_left_to_make_ends_at_once(is_streamed: bool) -> None:
    """The replica dies between its last token and the end of its answer; no other one is asked."""

    class Endless(TokenEngine):
        def _steps(self, body: dict[str, Any]) -> Any:
            return super()._steps({**body, "max_tokens": 100})

    engine = Endless("abcdefghij" * 4)
    async with three_replicas(engine) as gateway:
        told = read(await gateway.post(CHAT, body_for(CHAT, stream=is_streamed, max_tokens=8, user=dying(8))))
        assert (told.text, told.finish_reason) == (("abcdefghij" * 4)[:16], "length")
        assert (told.usage["prompt_tokens"], told.usage["completion_tokens"]) == (3, 8)
        record = await gateway.only_record()
        assert (record.end_state, record.attempts, record.completion_tokens) == ("done", 1, 8)
    assert len(engine.asked) == 1


async def test_attempts_are_bounded_and_the_last_failure_is_told() -> None:
    async with three_replicas(TokenEngine(TEXT), tunables=GatewayTunables(max_attempts=2, drain_s=0.1)) as gateway:
        answer = await gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(9, 4)))
        assert '"code":"engine_died"' in answer.text
        record = await gateway.only_record()
        assert (record.end_state, record.attempts, record.prompt_tokens) == ("engine_died", 2, 3)
        assert 12 <= record.completion_tokens <= 13
        assert gateway.in_flight() == 0


async def test_a_replica_that_refuses_to_go_on_is_a_failure_not_a_refusal(caplog: pytest.LogCaptureFixture) -> None:
    engine = TokenEngine(TEXT)
    async with (
        ScriptedReplica(default=engine.answer) as one,
        ScriptedReplica(default=lambda _seen: refused(400, "prompt too long")) as two,
        running_gateway(model_changes("m", [one.url, two.url])) as gateway,
    ):
        answer = await gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(9)))
        assert "error" in answer.text
        record = await gateway.only_record()
        assert (record.end_state, record.attempts, record.completion_tokens) == ("engine_error", 2, 9)
    assert "it refuses to go on" in caplog.text
    assert "prompt too long" not in caplog.text, "an engine's words may quote the prompt"


async def test_a_replica_that_hangs_is_left_for_another() -> None:
    never = asyncio.Event()
    engine = TokenEngine(TEXT, ends_by=never)
    async with three_replicas(engine, upstream=UpstreamTunables(inter_event_s=0.2)) as gateway:
        assert read(await gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(9)))).text == TEXT
        never.set()
        assert (await gateway.only_record()).end_state == "done"


async def test_running_figures_go_on_too() -> None:
    async with three_replicas(TokenEngine(TEXT)) as gateway:
        body = body_for(CHAT, stream=True, user=dying(9))
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        told = read(await gateway.post(CHAT, body))
    figures = [chunk["usage"]["completion_tokens"] for chunk in told.chunks]
    assert figures == sorted(figures) and figures[-1] == figures[-2]
    assert {chunk["usage"]["prompt_tokens"] for chunk in told.chunks} == {3}


async def test_an_answer_on_a_websocket_goes_on_too() -> None:
    async with three_replicas(TokenEngine(TEXT)) as gateway:
        async with socket_to(gateway, headers=gateway.auth) as socket:
            await send(socket, {"request": body_for(CHAT, stream=True, user=dying(9, 7), stop=["nichts davon"])})
            told = read_chunks((await messages_of(socket))[:-1])
        assert (told.text, told.finish_reason) == (TEXT, "stop")
        assert (await gateway.only_record()).attempts == 3


# -- parking


async def exchange_of(gateway: GatewayUnderTest) -> Exchange:
    await until(lambda: len(gateway.parts.running) == 1)
    return next(iter(gateway.parts.running))


def delivered(exchange: Exchange) -> int:
    return exchange.continuation.delivered if exchange.continuation is not None else 0


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_parked_answer_gives_its_slot_back_and_goes_on_after_a_new_grant(is_streamed: bool) -> None:
    engine = TokenEngine(TEXT, pause_s=0.005)
    async with (
        ScriptedReplica(default=engine.answer) as replica,
        running_gateway(model_changes("m", [replica.url], max_in_flight=1)) as gateway,
    ):
        parked = asyncio.create_task(gateway.post(CHAT, body_for(CHAT, stream=is_streamed, priority="batch")))
        exchange = await exchange_of(gateway)
        await until(lambda: delivered(exchange) > 0)
        urgent = asyncio.create_task(gateway.post(CHAT, body_for(CHAT, stream=True, max_tokens=3, priority="interactive")))
        await until(lambda: gateway.queued() == 1)
        assert exchange.park()
        assert not exchange.park(), "it runs no more"
        assert read(await urgent).usage["completion_tokens"] == 3
        told = read(await parked)
        assert (told.text, told.finish_reason, told.usage["completion_tokens"]) == (TEXT, "stop", len(engine.pieces()) + 1)
        await replica.requests[0].peer_closed.wait()
        assert (exchange.record.parks, exchange.record.resumes, exchange.record.is_resumed_exactly) == (1, 1, True)
        assert sorted(record.attempts for record in gateway.journal.closed) == [1, 2]
        assert gateway.in_flight() == 0


async def test_an_answer_can_be_parked_again_and_again() -> None:
    engine = TokenEngine(TEXT, pause_s=0.002)
    async with (
        ScriptedReplica(default=engine.answer) as replica,
        running_gateway(model_changes("m", [replica.url])) as gateway,
    ):
        answer = asyncio.create_task(gateway.post(CHAT, body_for(CHAT, stream=True, stop=["nichts davon"])))
        exchange = await exchange_of(gateway)
        read_before = 0
        for number in range(4):
            await until(lambda: exchange.record.resumes == number and delivered(exchange) > read_before)  # noqa: B023
            await until(lambda: exchange.response is not None)
            read_before = delivered(exchange)
            assert exchange.park()
        assert read(await answer).text == TEXT
        assert (exchange.record.parks, exchange.record.resumes) == (4, 4)
        assert (await gateway.only_record()).end_state == "done"


async def test_what_cannot_go_on_is_not_parked() -> None:
    engine = TokenEngine(TEXT, pause_s=0.005)
    async with (
        ScriptedReplica(default=engine.answer) as replica,
        running_gateway(model_changes("m", [replica.url])) as gateway,
    ):
        answer = asyncio.create_task(gateway.post(CHAT, body_for(CHAT, stream=True, presence_penalty=1)))
        exchange = await exchange_of(gateway)
        await until(lambda: exchange.output.has_started)
        assert not exchange.park()
        assert read(await answer).text == TEXT


async def test_a_client_that_leaves_while_its_answer_is_parked_has_a_record_of_what_it_read() -> None:
    engine = TokenEngine(TEXT, pause_s=0.01)
    async with (
        ScriptedReplica(default=engine.answer) as replica,
        running_gateway(model_changes("m", [replica.url], max_in_flight=1)) as gateway,
    ):
        async with gateway.http.stream("POST", CHAT, json=body_for(CHAT, stream=True), headers=gateway.auth) as response:
            lines = response.aiter_lines()
            while '"content":"g' not in await anext(lines):
                pass
            exchange = await exchange_of(gateway)
            other = asyncio.create_task(gateway.post(CHAT, body_for(CHAT, stream=True)))
            await until(lambda: gateway.queued() == 1)
            assert exchange.park()
            await until(lambda: gateway.queued() == 1)
            assert gateway.in_flight() == 1
        await until(lambda: len(gateway.journal.closed) == 1)
        record = gateway.journal.closed[0]
        assert record.end_state == "client_gone_after_first_token"
        assert record.completion_tokens >= 2
        assert read(await other).text == TEXT
        assert gateway.in_flight() == 0


async def test_the_brain_parks_batch_work_for_an_interactive_request_and_it_goes_on_later() -> None:
    engine = TokenEngine(TEXT, pause_s=0.05)
    brain = BrainTunables(parking=ParkingTunables(min_running_s=0.1, wait_ratio=0.1))
    async with (
        ScriptedReplica(default=engine.answer) as replica,
        running_gateway(model_changes("m", [replica.url], max_in_flight=1), admission=brain) as gateway,
    ):
        batch = asyncio.create_task(gateway.post(CHAT, body_for(CHAT, stream=True, priority="batch")))
        exchange = await exchange_of(gateway)
        await until(lambda: delivered(exchange) > 2)
        await asyncio.sleep(0.3)
        urgent = read(await gateway.post(CHAT, body_for(CHAT, stream=True, max_tokens=3, priority="interactive")))
        assert not batch.done(), "the urgent one did not wait for it"
        assert urgent.usage["completion_tokens"] == 3
        told = read(await batch)
        assert (told.text, told.finish_reason) == (TEXT, "stop")
        assert (exchange.record.parks, exchange.record.resumes) == (1, 1)
        receipt = await gateway.http.get(f"/v1/requests/{exchange.request_id}", headers=gateway.auth)
        assert (receipt.json()["routing"]["parks"], receipt.json()["routing"]["resumes"]) == (1, 1)
        assert gateway.host.snapshot().pools["m"].parked == 1
        assert len(gateway.journal.closed) == 2

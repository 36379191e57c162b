"""What is noted of each attempt: enough to explain what its engine has counted, and nothing where the record tells it."""

import asyncio
from typing import Any

import pytest

from tests.fakes.gateway import basic, model_changes, running_gateway, until
from tests.fakes.replica import (
    CLOSE,
    EVENT_STREAM_HEAD,
    RESET,
    ScriptedReplica,
    answered,
    chat_answer,
    chat_chunk,
    piece,
    refused,
)
from tests.fakes.token_engine import PROMPT_IDS, TokenEngine, dying
from tests.inference.gateway.resumed_answers import CHAT, MAX_TOKENS, TEXT, body_for, read, three_replicas
from tests.inference.gateway.test_edge_cancel import AFTER, BEFORE, hanging, start
from tests.inference.gateway.test_resume_rules import delivered, exchange_of

TOLD = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


async def test_an_answer_that_is_whole_at_its_first_attempt_needs_no_row() -> None:
    async with three_replicas(TokenEngine(TEXT)) as gateway:
        read(await gateway.post(CHAT, body_for(CHAT, stream=True)))
        record = await gateway.only_record()
    assert (record.attempts, record.attempt_rows) == (1, ())
    assert record.replica_epoch >= 0


async def test_an_answer_that_went_on_has_a_row_an_attempt_with_what_each_engine_was_sent() -> None:
    engine = TokenEngine(TEXT)
    async with three_replicas(engine) as gateway:
        told = read(await gateway.post(CHAT, body_for(CHAT, stream=True, user=dying(7))))
        record = await gateway.only_record()
    dead, last = record.attempt_rows
    assert (dead.number, dead.ending, last.number, last.ending) == (1, "engine_died", 2, "done")
    assert (dead.prompt_tokens, dead.max_prompt_tokens) == (len(PROMPT_IDS), len(PROMPT_IDS))
    assert 0 < dead.completion_tokens < dead.max_completion_tokens == MAX_TOKENS
    assert (last.prompt_tokens, last.completion_tokens) == (last.max_prompt_tokens, last.max_completion_tokens)
    kept = last.prompt_tokens - len(PROMPT_IDS)
    assert kept + last.completion_tokens == told.usage["completion_tokens"] == record.completion_tokens
    assert {dead.replica, last.replica} != {dead.replica}


async def test_a_parked_attempt_says_so() -> None:
    engine = TokenEngine(TEXT, pause_s=0.005)
    async with (
        ScriptedReplica(default=engine.answer) as replica,
        running_gateway(model_changes("m", [replica.url])) as gateway,
    ):
        answer = asyncio.create_task(gateway.post(CHAT, body_for(CHAT, stream=True)))
        exchange = await exchange_of(gateway)
        await until(lambda: delivered(exchange) > 0)
        assert exchange.park()
        read(await answer)
        record = await gateway.only_record()
    assert [row.ending for row in record.attempt_rows] == ["parked", "done"]


@pytest.mark.parametrize(
    ("script", "is_told"),
    [
        ([RESET], False),
        (refused(503, "busy"), True),
        (refused(500, "failed"), False),
        ([EVENT_STREAM_HEAD, piece(chat_chunk({"role": "assistant", "content": ""})), CLOSE], False),
    ],
)
async def test_b68_an_attempt_that_failed_before_any_text_may_have_been_counted_unless_it_was_turned_away(
    script: Any, is_told: bool
) -> None:
    async with ScriptedReplica() as first, ScriptedReplica() as second:
        first.script(script)
        async with running_gateway(model_changes("m", [first.url, second.url])) as gateway:
            assert (await gateway.post(body=basic(stream=True, max_tokens=50))).status_code == 200
            record = await gateway.only_record()
    failed = record.attempt_rows[0]
    assert (failed.replica, failed.prompt_tokens, failed.completion_tokens) == ("rep-0", 0, 0)
    assert (failed.max_prompt_tokens > 0, failed.max_completion_tokens) == ((False, 0) if is_told else (True, 50))


async def test_a_client_that_leaves_has_a_row_up_to_what_it_had_asked_for() -> None:
    async with ScriptedReplica() as replica, running_gateway(model_changes("m", [replica.url])) as gateway:
        replica.script(hanging(chat_chunk({"content": "Hel"}, usage=TOLD)))
        client = await start(gateway, stream=True, max_tokens=50)
        await client.read_until(b"Hel")
        client.drop()
        record = await gateway.only_record()
    (row,) = record.attempt_rows
    assert (record.end_state, row.ending) == (AFTER, AFTER)
    assert (row.prompt_tokens, row.max_prompt_tokens) == (9, 9), "the engine has read it, once"
    assert (row.completion_tokens, row.max_completion_tokens) == (3, 50)


async def test_a_client_that_leaves_before_the_first_token_may_have_had_its_prompt_read() -> None:
    async with ScriptedReplica() as replica, running_gateway(model_changes("m", [replica.url])) as gateway:
        replica.script([asyncio.Event()])
        client = await start(gateway, stream=True, max_tokens=50)
        await replica.wait_for_request()
        client.drop()
        record = await gateway.only_record()
    (row,) = record.attempt_rows
    assert (row.ending, row.prompt_tokens, row.completion_tokens, row.max_completion_tokens) == (BEFORE, 0, 0, 50)
    assert row.max_prompt_tokens > 0


async def test_what_is_told_of_a_request_that_still_runs_has_its_attempt_with_all_it_may_take() -> None:
    async with ScriptedReplica() as replica, running_gateway(model_changes("m", [replica.url])) as gateway:
        replica.script(hanging(chat_chunk({"content": "Hel"}, usage=TOLD)))
        client = await start(gateway, stream=True, max_tokens=50)
        await client.read_until(b"Hel")
        exchange = await exchange_of(gateway)
        told = exchange._draft_so_far()
        client.drop()
        await gateway.only_record()
    (row,) = told.attempt_rows
    assert (row.ending, row.replica, row.completion_tokens, row.max_completion_tokens) == ("gateway_lost", "rep-0", 3, 50)


async def test_a_request_that_was_refused_before_any_dispatch_has_no_row() -> None:
    async with ScriptedReplica() as replica, running_gateway(model_changes("m", [replica.url])) as gateway:
        assert (await gateway.post(body=basic(model="none"))).status_code == 404
        record = gateway.journal.closed[0]
    assert (record.attempts, record.attempt_rows) == (0, ())


async def test_a_prompt_of_several_choices_is_read_as_often() -> None:
    whole = chat_answer(usage=TOLD)
    whole["choices"].append({**whole["choices"][0], "index": 1})
    async with ScriptedReplica() as replica, running_gateway(model_changes("m", [replica.url])) as gateway:
        replica.script(answered(whole))
        assert (await gateway.post(body=basic(n=2))).status_code == 200
        record = await gateway.only_record()
    (row,) = record.attempt_rows
    assert (row.prompt_tokens, row.max_prompt_tokens, row.completion_tokens, record.prompt_tokens) == (18, 18, 3, 9)

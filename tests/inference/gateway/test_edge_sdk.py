"""The official OpenAI SDK against the gateway: what it raises, and what it makes of streams."""

from collections.abc import AsyncIterator

import openai
import pytest

from tests.fakes.gateway import GatewayUnderTest, until
from tests.fakes.replica import (
    CLOSE,
    DONE,
    EVENT_STREAM_HEAD,
    ScriptedReplica,
    chat_chunk,
    chat_events,
    piece,
    refused,
    streamed,
    usage_chunk,
)


@pytest.fixture
async def client(gateway: GatewayUnderTest) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1/", api_key=gateway.key, max_retries=0, timeout=10) as client:
        yield client


async def test_a_chat_is_answered_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason, whole.model) == ("Hello!", "stop", "m")
    assert whole.usage is not None
    assert whole.usage.total_tokens == 10
    stream = await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello!"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


async def test_a_completion_is_answered_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    assert (await client.completions.create(model="m", prompt="x")).choices[0].text == "Hello!"
    stream = await client.completions.create(model="m", prompt="x", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello!"


async def test_b18_streamed_tool_calls_are_put_together_by_the_sdk(
    client: openai.AsyncOpenAI, replica: ScriptedReplica
) -> None:
    pieces = [
        {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 1, "id": "call_b", "type": "function", "function": {"name": "g", "arguments": ""}},
        *({"index": index, "function": {"arguments": char}} for char in '{"a":"{\\"}"}' for index in (0, 1)),
    ]
    replica.script(
        streamed([*(chat_chunk({"tool_calls": [each]}) for each in pieces), chat_chunk({}, "tool_calls"), usage_chunk(), DONE])
    )
    async with client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "hi"}]) as stream:
        calls = (await stream.get_final_completion()).choices[0].message.tool_calls
    assert calls is not None
    assert [(call.id, call.function.name, call.function.arguments) for call in calls] == [
        ("call_a", "f", '{"a":"{\\"}"}'),
        ("call_b", "g", '{"a":"{\\"}"}'),
    ]


async def test_models_are_listed_and_retrieved(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["m"]
    assert (await client.models.retrieve("m")).id == "m"


async def test_errors_are_those_the_sdk_has_classes_for(client: openai.AsyncOpenAI, replica: ScriptedReplica) -> None:
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="nope", messages=messages)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    assert unknown.value.request_id is not None
    with pytest.raises(openai.BadRequestError):
        await client.chat.completions.create(model="m", messages=[])
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="wrong").models.list()
    replica.script(refused(500, "broken"))
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model="m", messages=messages)


async def test_b27_a_stream_that_fails_raises_and_keeps_the_text_so_far(
    client: openai.AsyncOpenAI, replica: ScriptedReplica
) -> None:
    replica.script([EVENT_STREAM_HEAD, piece(b"".join(chat_events()[:2])), 0.05, CLOSE])
    stream = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
    text = ""
    with pytest.raises(openai.APIError, match="stopped before the answer was whole"):
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert text == "Hel"


async def test_retries_of_the_sdk_are_requests_of_their_own(
    client: openai.AsyncOpenAI, replica: ScriptedReplica, gateway: GatewayUnderTest
) -> None:
    replica.script(refused(503, "busy"))
    answer = await client.with_options(max_retries=1).completions.create(model="m", prompt="x")
    assert answer.choices[0].text == "Hello!"
    assert [record.end_state for record in gateway.journal.closed] == ["engine_error", "done"]


async def test_closing_a_stream_cancels(
    client: openai.AsyncOpenAI, replica: ScriptedReplica, gateway: GatewayUnderTest
) -> None:
    replica.script([EVENT_STREAM_HEAD, piece(b"".join(chat_events()[:2])), 30.0])
    stream = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
    await stream.__anext__()
    await stream.close()
    await until(replica.requests[0].peer_closed.is_set, 1.0)
    assert (await gateway.only_record()).end_state == "client_gone_after_first_token"

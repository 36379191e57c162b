"""A customer's developer with the official SDK, against real models."""

import json
from typing import Any

import openai
import pytest

from tests.e2e.conftest import SMALL, TINY, Service
from tests.e2e.installation import eventually, made_tokens, running_requests

FRANCE: Any = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


TOKENS_AFTER = 30
"""That an engine may still make for who has left, of 1,500: counted, since on a busy machine everything takes longer."""


def test_it_lists_models_and_finds_one_whose_id_has_a_slash(service: Service) -> None:
    client = service.client()
    assert {model.id for model in client.models.list()} >= {SMALL, TINY}
    assert client.models.retrieve(SMALL).id == SMALL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no/such")


def test_it_completes_a_chat(service: Service) -> None:
    answer = service.client().chat.completions.create(model=SMALL, messages=FRANCE, max_tokens=16, temperature=0)
    assert "Paris" in answer.choices[0].message.content
    assert answer.model == SMALL
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert answer.usage.prompt_tokens > 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_it_streams_a_chat_token_by_token(service: Service) -> None:
    client = service.client()
    stream = client.chat.completions.create(
        model=SMALL, messages=FRANCE, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text
    assert len(chunks) > 5
    assert {chunk.model for chunk in chunks} == {SMALL}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens > 3
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_it_completes_text_streamed_and_not(service: Service) -> None:
    client = service.client()
    whole = client.completions.create(model=SMALL, prompt="The capital of France is", max_tokens=8, temperature=0)
    parts = client.completions.create(model=SMALL, prompt="The capital of France is", max_tokens=8, temperature=0, stream=True)
    assert whole.choices[0].text == "".join(part.choices[0].text for part in parts)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 8


def test_it_calls_a_tool(service: Service) -> None:
    answer = service.client().chat.completions.create(
        model=SMALL, messages=FRANCE, tools=[WEATHER], tool_choice="required", max_tokens=64, temperature=0
    )
    (call, *_) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in {"Paris", "Rome"}


def test_it_streams_a_tool_call(service: Service) -> None:
    with service.client().chat.completions.stream(
        model=SMALL, messages=FRANCE, tools=[WEATHER], tool_choice="required", max_tokens=64, temperature=0
    ) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].message.tool_calls is not None
    assert json.loads(answer.choices[0].message.tool_calls[0].function.arguments)["city"] in {"Paris", "Rome"}


@pytest.mark.parametrize("stream", [False, True])
def test_it_answers_in_a_json_schema(service: Service, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 12}, "is_large": {"type": "boolean"}},
        "required": ["capital", "is_large"],
        "additionalProperties": False,
    }
    options = {
        "model": SMALL,
        "messages": FRANCE,
        "max_tokens": 80,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}},
    }
    client = service.client()
    if stream:
        chunks = client.chat.completions.create(stream=True, **options)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        text = client.chat.completions.create(**options).choices[0].message.content
    assert set(json.loads(text)) == {"capital", "is_large"}


def test_several_choices_keep_their_index(service: Service) -> None:
    answer = service.client().chat.completions.create(model=TINY, messages=FRANCE, n=3, max_tokens=4, temperature=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens == 12


def test_logprobs_come_through_streamed_and_not(service: Service) -> None:
    options = {"model": TINY, "messages": FRANCE, "max_tokens": 4, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    client = service.client()
    whole = client.chat.completions.create(**options)
    parts = list(client.chat.completions.create(stream=True, **options))
    tokens = [entry.token for part in parts for entry in (part.choices[0].logprobs.content if part.choices[0].logprobs else [])]
    assert [entry.token for entry in whole.choices[0].logprobs.content] == tokens
    assert len(tokens) == 4


def test_errors_have_the_sdks_classes(service: Service) -> None:
    installation, client = service.installation, service.client(max_retries=0)
    ask = {"model": SMALL, "messages": FRANCE, "max_tokens": 4}
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{installation.url}/v1", api_key="hw_live_nonsense").models.list()
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**{**ask, "model": "no-such"})
    assert unknown.value.code == "model_not_found"
    for wrong in ({"temperature": 3}, {"messages": "hi"}, {"max_tokens": 0}, {"max_tokens": 100_000}):
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(**{**ask, **wrong})


def test_a_model_without_replicas_is_unavailable_and_the_sdk_retries(service: Service) -> None:
    service.installation.manage("register_model", "empty")
    service.installation.wait_known("empty", service.key)
    client = service.client(max_retries=1)
    before = service.installation.count_usage(service.key)
    assert "empty" in {model.id for model in client.models.list()}
    with pytest.raises(openai.InternalServerError) as refused:
        client.chat.completions.create(model="empty", messages=FRANCE)
    assert refused.value.status_code == 503
    assert refused.value.response.headers["retry-after"].isdigit()
    records = service.installation.wait_usage(before + 2)[before:]
    assert [(record["model"], record["end_state"]) for record in records] == [("empty", "refused")] * 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_engine_within_a_few_tokens(service: Service, stream: bool) -> None:
    with service.installation.engine(SMALL) as engine:
        client = service.client(timeout=None, max_retries=0)
        before = service.installation.count_usage(service.key)
        if stream:
            answer = client.chat.completions.create(
                model=SMALL, messages=FRANCE, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
            )
            next(iter(answer))
            assert running_requests(engine) == 1
            answer.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                client.with_options(timeout=1.0).chat.completions.create(
                    model=SMALL, messages=FRANCE, max_tokens=1500, extra_body={"ignore_eos": True}
                )
        made = made_tokens(engine)
        eventually(lambda: running_requests(engine) == 0, within_s=30, every_s=0.02, what="the slot is free")
        assert made_tokens(engine) - made < TOKENS_AFTER
        (record,) = service.installation.wait_usage(before + 1)[before:]
        assert record["end_state"] == "client_gone_after_first_token" if stream else "client_gone" in record["end_state"]
        assert record["prompt_tokens"] > 10
        assert 1 <= record["completion_tokens"] < 1500

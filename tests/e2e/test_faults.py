"""Reported faults that only a real engine can show ([G] rows of the list), and what gateway and engine must read alike."""

import json
import time
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import SMALL, TINY, Service

HI = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def post(service: Service, body: Any, path: str = "/v1/chat/completions") -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {**service.headers, "content-type": "application/json"}
    return httpx.post(service.installation.url + path, content=content, headers=headers, timeout=120)


def events(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def text_of(chunks: list[Any]) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


def last_record(service: Service, before: int) -> dict[str, Any]:
    return service.installation.wait_usage(before + 1)[before]


@pytest.mark.parametrize("model", [SMALL, TINY])
def test_b01_streamed_text_is_the_whole_text_byte_for_byte(service: Service, model: str) -> None:
    """The tiny model's tokens are random: many of them are parts of characters."""
    ask = {
        "model": model,
        "messages": [{"role": "user", "content": "Repeat exactly: 你好🙂안녕👩‍👩‍👧é"}],
        "temperature": 0,
        "seed": 1,
        "max_tokens": 48,
    }
    whole = post(service, ask).json()["choices"][0]["message"]["content"]
    streamed = text_of(events(post(service, {**ask, "stream": True})))
    with service.installation.engine(model) as engine:
        truth = engine.post("/v1/chat/completions", json=ask).json()["choices"][0]["message"]["content"]
    assert streamed == whole == truth
    if model == SMALL:
        assert "\ufffd" not in streamed


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_b16_stop_texts_that_span_tokens_do_not_leak(service: Service, path: str) -> None:
    ask: dict[str, Any] = {"model": SMALL, "temperature": 0, "max_tokens": 40}
    prompt = "Count: one two three four five six seven"
    ask |= {"messages": [{"role": "user", "content": prompt}]} if "chat" in path else {"prompt": prompt}
    full = text_of(events(post(service, {**ask, "stream": True}, path)))
    stop = full[len(full) // 2 : len(full) // 2 + 7]
    assert len(stop) == 7
    ask["stop"] = [stop, "<<END-OF-ANSWER>>", "\n\n\n\n"]
    chunks = events(post(service, {**ask, "stream": True}, path))
    whole = post(service, ask, path).json()["choices"][0]
    assert text_of(chunks) == (whole["message"]["content"] if "chat" in path else whole["text"]) == full[: full.index(stop)]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "stop"


def test_b17_a_tool_call_cut_by_its_limit_ends_with_length(service: Service) -> None:
    ask = {"model": SMALL, "messages": HI, "tools": [WEATHER], "tool_choice": "required", "max_tokens": 5, "temperature": 0}
    chunks = events(post(service, {**ask, "stream": True, "stream_options": {"include_usage": True}}))
    *_, last, usage = chunks
    assert last["choices"][0]["finish_reason"] == "length"
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 5)


def test_b59_the_ledger_has_the_final_frame_not_a_sum(service: Service) -> None:
    before = service.installation.count_usage(service.key)
    options = {"include_usage": True, "continuous_usage_stats": True}
    ask = {"model": TINY, "messages": HI, "max_tokens": 30, "stream": True, "stream_options": options, "ignore_eos": True}
    chunks = events(post(service, ask))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    record = last_record(service, before)
    assert record["completion_tokens"] == counts[-1] == 30
    assert record["prompt_tokens"] == chunks[-1]["usage"]["prompt_tokens"]


def test_b82_logprobs_are_strict_json(service: Service) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    ask = {"model": TINY, "messages": HI, "max_tokens": 4, "logprobs": True, "top_logprobs": 5, "top_k": 1, "temperature": 1}
    for stream in (False, True):
        answer = post(service, {**ask, "stream": stream})
        assert answer.status_code == 200, answer.text
        for line in answer.text.split("\n\n") if stream else [answer.text]:
            if line and line != "data: [DONE]":
                json.loads(line.removeprefix("data: "), parse_constant=refuse)


def test_b85_a_large_schema_never_reaches_the_engine(service: Service) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(64):
        schema = {
            "type": "object",
            "properties": {f"p{number}": schema if number == 0 else {"type": "string"} for number in range(8)},
        }
    started_s = time.monotonic()
    formatted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = post(service, {"model": TINY, "messages": HI, "response_format": formatted})
    assert (answer.status_code, answer.json()["error"]["param"]) in [(400, "response_format.json_schema.schema"), (400, None)]
    assert post(service, {"model": TINY, "messages": HI, "max_tokens": 2}).status_code == 200
    assert time.monotonic() - started_s < 5


def test_b91_echo_is_supported_on_completions(service: Service) -> None:
    ask = {"model": TINY, "prompt": "Hi there", "echo": True, "max_tokens": 1, "logprobs": 1}
    answer = post(service, ask, "/v1/completions")
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"].startswith("Hi there")
    refused = post(service, {**ask, "max_tokens": 0}, "/v1/completions")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "be brief"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}],
        [{"role": "user", "content": "\u0000 \U0001f642"}],
        [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "5"},
        ],
    ],
)
def test_x08_what_the_gateway_takes_the_engine_takes_with_as_many_tokens(service: Service, messages: Any) -> None:
    ask = {"model": SMALL, "messages": messages, "max_tokens": 1, "temperature": 0}
    answer = post(service, ask)
    with service.installation.engine(SMALL) as engine:
        truth = engine.post("/v1/chat/completions", json=ask)
    assert (answer.status_code, truth.status_code) == (200, 200), (answer.text, truth.text)
    assert answer.json()["usage"]["prompt_tokens"] == truth.json()["usage"]["prompt_tokens"]


def test_x09_numbers_are_read_alike(service: Service) -> None:
    body = json.dumps({"model": TINY, "messages": HI, "temperature": 0, "ignore_eos": True})[:-1]
    for written in ("8", "8.0", "8e0"):
        answer = post(service, f'{body},"max_tokens":{written},"top_k":{written}}}'.encode())
        assert answer.json()["usage"]["completion_tokens"] == 8
    for wrong in ('"max_tokens":"8"', '"temperature":"0.5"', '"stream":"true"', '"temperature":NaN', '"seed":' + "9" * 400):
        refused = post(service, f"{body},{wrong}}}".encode())
        assert refused.status_code == 400, wrong


@pytest.mark.parametrize(
    "more",
    [
        {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "length_penalty": 1.0},
        {"stop_token_ids": [5], "include_stop_str_in_output": True, "min_tokens": 1, "bad_words": ["x"]},
        {"allowed_token_ids": [5, 6, 7], "skip_special_tokens": False, "spaces_between_special_tokens": False},
        {"truncate_prompt_tokens": 5, "truncation_side": "left"},
        {"logit_bias": {"5": 1.5}, "seed": -1, "user": "u", "presence_penalty": 1, "frequency_penalty": -1},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"structured_outputs": {"regex": "[ab]{2}"}},
        {"return_token_ids": True, "return_tokens_as_token_ids": True, "return_prompt_text": True, "stream_interval": 2},
        {"add_generation_prompt": False, "continue_final_message": True},
        {
            "chat_template_kwargs": {"x": 1},
            "documents": [{"title": "t", "text": "x"}],
            "echo": True,
            "include_reasoning": False,
        },
        {"response_format": {"type": "text"}, "parallel_tool_calls": True, "tool_choice": "none", "reasoning_effort": "low"},
        {"repetition_detection": {"max_pattern_size": 4, "min_count": 3}},
        {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "prediction": {"type": "content", "content": "x"}},
    ],
)
def test_x10_fields_that_are_passed_on_are_fields_of_the_engine(service: Service, more: dict[str, Any]) -> None:
    ask = {"model": TINY, "messages": HI, "max_tokens": 2, "temperature": 0.5, **more}
    assert post(service, ask).status_code == 200, post(service, ask).text

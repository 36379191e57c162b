import json
from typing import Any

import pytest

from inference.gateway.fields import REFUSED, VLLM_ONLY
from inference.gateway.openai_errors import BadRequest
from inference.gateway.requests import GenerationRequest, read_request, upstream_body

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def read(sent: Any, route: str = "/v1/chat/completions") -> GenerationRequest:
    return read_request(sent if isinstance(sent, bytes) else json.dumps(sent).encode(), route, default_max_tokens=512)


def refusal(sent: Any, route: str = "/v1/chat/completions") -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read(sent, route)
    return caught.value


def sent_upstream(request: GenerationRequest, kind: str = "vllm") -> dict[str, Any]:
    body, _ = upstream_body(request, kind=kind, upstream_model="inner", cache_salt="salt", engine_priority=0)
    decoded: dict[str, Any] = json.loads(body)
    return decoded


def test_a_chat_request_reaches_vllm_streamed_with_usage_and_the_salt() -> None:
    assert sent_upstream(read({**CHAT, "temperature": 0, "priority": "batch"})) == {
        "model": "inner",
        "messages": CHAT["messages"],
        "temperature": 0,
        "max_tokens": 512,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "cache_salt": "salt",
        "priority": 0,
    }


def test_an_openai_engine_gets_no_fields_that_only_vllm_knows() -> None:
    only_vllm = {"top_k": 5, "min_p": 0.1, "ignore_eos": True, "echo": True, "structured_outputs": {"regex": "a"}}
    assert only_vllm.keys() <= VLLM_ONLY["chat"]
    upstream = sent_upstream(read({**CHAT, "top_p": 0.5, **only_vllm}), "openai")
    assert upstream == {"model": "inner", "messages": CHAT["messages"], "top_p": 0.5, "max_tokens": 512}
    assert sent_upstream(read(CHAT), "openai")["stream_options"] == {"include_usage": True}


def test_generate_takes_messages_or_a_prompt() -> None:
    assert read(CHAT, "/v1/generate").path == "/v1/chat/completions"
    assert read(TEXT, "/v1/generate").path == "/v1/completions"
    assert refusal({"model": "m"}, "/v1/generate").param == "messages"
    assert refusal({**CHAT, **TEXT}, "/v1/generate").param == "messages"


def test_priority_is_one_of_three_words() -> None:
    assert read(CHAT).tier == "standard"
    assert read({**CHAT, "priority": None}).tier == "standard"
    assert read({**CHAT, "priority": "interactive"}).tier == "interactive"
    for wrong in (5, "urgent", True, ["batch"]):
        assert refusal({**CHAT, "priority": wrong}).param == "priority"


@pytest.mark.parametrize("name", sorted(REFUSED - {"messages", "prompt"}))
def test_what_clients_must_not_set_is_refused_by_name(name: str) -> None:
    error = refusal({**CHAT, name: 1})
    assert error.param == name
    assert name in error.message


def test_b80_null_counts_as_absent() -> None:
    names = (
        "max_tokens max_completion_tokens stop n temperature top_p logprobs tools tool_choice response_format stream "
        "stream_options user seed priority cache_salt"
    )
    request = read({**CHAT, **dict.fromkeys(names.split())})
    assert sent_upstream(request) == sent_upstream(read(CHAT))
    assert request.is_foldable


@pytest.mark.parametrize(
    ("sent", "limit", "name"),
    [
        ({}, 512, "max_tokens"),
        ({"max_tokens": 5}, 5, "max_tokens"),
        ({"max_completion_tokens": 5}, 5, "max_completion_tokens"),
        ({"max_completion_tokens": 50, "max_tokens": 5}, 5, "max_tokens"),
        ({"max_completion_tokens": 5, "max_tokens": 50}, 5, "max_tokens"),
    ],
)
def test_b81_both_names_bound_a_chat_and_one_is_always_sent(sent: dict[str, int], limit: int, name: str) -> None:
    request = read({**CHAT, **sent})
    upstream = sent_upstream(request)
    assert (request.max_tokens, {key for key in upstream if key.startswith("max_")}, upstream[name]) == (limit, {name}, limit)


def test_b81_the_new_name_bounds_a_completion_as_well() -> None:
    assert sent_upstream(read({**TEXT, "max_completion_tokens": 50}, "/v1/completions"))["max_tokens"] == 50


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 3),
        ("model", ""),
        ("stream", "yes"),
        ("n", 0),
        ("n", -1),
        ("n", 1.5),
        ("n", 100000),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("max_tokens", 2**63),
        ("messages", []),
        ("messages", "hi"),
        ("messages", [{"content": "hi"}]),
        ("messages", [{"role": "user", "content": 5}]),
        ("tools", {}),
        ("stream_options", 3),
        ("user", 5),
    ],
)
def test_b86_wrong_types_and_ranges_are_refused_by_name(field: str, value: Any) -> None:
    param = refusal({**CHAT, field: value}).param
    assert param is not None
    assert param.startswith(field)


def test_what_is_missing_is_named() -> None:
    assert refusal({}).param == "model"
    assert refusal({"model": "m"}).param == "messages"
    assert refusal({"model": "m"}, "/v1/completions").param == "prompt"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"[]",
        b'"text"',
        b"{}x",
        b'{"model": NaN}',
        b'{"temperature": 1e999}',
        b'{"model":"\xff"}',
        b'{"model":"\\ud83d"}',
        b"[" * 20000 + b"]" * 20000,
        b'{"a":' * 20000 + b"1" + b"}" * 20000,
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    refusal(body)


@pytest.mark.parametrize(("prompt", "num_prompts"), [("a", 1), (["a"], 1), (["a", "b"], 2), ([1, 2, 3], 1), ([[1, 2], [3]], 2)])
def test_prompts_are_counted(prompt: Any, num_prompts: int) -> None:
    assert read({"model": "m", "prompt": prompt}, "/v1/completions").num_choices == num_prompts


@pytest.mark.parametrize("prompt", [[], ["a", 1], [1.5], [["a"]], {}, 5])
def test_prompts_that_are_none_are_refused(prompt: Any) -> None:
    assert str(refusal({"model": "m", "prompt": prompt}, "/v1/completions").param).startswith("prompt")


FUNCTION = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("base", "more"),
    [
        (TEXT, {"n": 2}),
        (CHAT, {"tools": [FUNCTION]}),
        (CHAT, {"logprobs": True}),
        (TEXT, {"logprobs": 0}),
        (TEXT, {"echo": True}),
        (TEXT, {"prompt_logprobs": 1}),
    ],
)
def test_what_folding_would_lose_takes_the_engines_own_way(base: dict[str, Any], more: dict[str, Any]) -> None:
    upstream = sent_upstream(read({**base, **more}, "/v1/generate"))
    assert "stream" not in upstream
    assert "stream_options" not in upstream
    assert sent_upstream(read({**base, **more, "stream": True}, "/v1/generate"))["stream"] is True


def test_a_request_is_bounded_by_its_bytes() -> None:
    body = json.dumps(CHAT).encode()
    assert read(body).prompt_tokens_bound == len(body)

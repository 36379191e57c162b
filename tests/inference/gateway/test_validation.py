"""Odd bodies (faults B80-B91, X07-X10): refused with the field's name, or read in one documented way, and sent on alike."""

import json
import time
from typing import Any

import pytest

from inference.gateway import fields
from inference.gateway.json_body import MAX_DEPTH, read_object
from inference.gateway.openai_errors import BadRequest, UnknownParameter, UnsupportedParameter
from inference.gateway.requests import GenerationRequest, read_request, upstream_body

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "hi"}
HI = '{"model":"m","messages":[{"role":"user","content":"hi"}]'


def read(sent: Any, route: str = "/v1/generate") -> GenerationRequest:
    body = sent if isinstance(sent, bytes) else sent.encode() if isinstance(sent, str) else json.dumps(sent).encode()
    return read_request(body, route, default_max_tokens=512)


def refusal(sent: Any, route: str = "/v1/generate") -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        read(sent, route)
    assert caught.value.http_status == 400
    return caught.value


def upstream(sent: Any, kind: str = "vllm") -> dict[str, Any]:
    body, _ = upstream_body(read(sent), kind=kind, upstream_model="inner", cache_salt="salt", engine_priority=0)
    decoded: dict[str, Any] = json.loads(body)
    return decoded


def nested(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = {"a": found}
    return found


def tool(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


# -- B80, B81


OPTIONAL = (
    "max_tokens max_completion_tokens stop n temperature top_p logprobs tools tool_choice response_format stream "
    "stream_options user seed"
)


@pytest.mark.parametrize("name", OPTIONAL.split())
def test_b80_each_optional_field_may_be_null_on_both_routes(name: str) -> None:
    assert upstream({**CHAT, name: None}) == upstream(CHAT)
    if name not in ("tools", "tool_choice"):
        assert upstream({**TEXT, name: None}) == upstream(TEXT)


def test_b80_null_inside_objects_counts_as_absent_too() -> None:
    message = {"role": "assistant", "content": "hi", "tool_calls": None, "function_call": None, "audio": None, "name": None}
    assert upstream({**CHAT, "messages": [message]})["messages"] == [{"role": "assistant", "content": "hi"}]
    assert not read({**CHAT, "stream_options": {"include_usage": None}}).wants_usage


def test_b81_a_billion_tokens_are_what_the_field_takes_and_what_is_reserved() -> None:
    assert read({**CHAT, "max_completion_tokens": 10**9}).max_tokens == 10**9
    assert upstream({**TEXT, "max_completion_tokens": 50})["max_tokens"] == 50


# -- B83


@pytest.mark.parametrize(
    "body",
    [
        '{"model":"m","messages":[{"role":"user","content":"x \\ud83d y"}]}',
        HI + ',"user":"\\ud83d"}',
        HI + ',"stop":["\\uDE42"]}',
        HI + ',"metadata":{"a":"\\ud83d"}}',
        HI + ',"metadata":{"\\ud83d":"a"}}',
        HI + ',"\\ud83d":1}',
        '{"model":"\\ud83d","messages":[{"role":"user","content":"hi"}]}',
        HI + ',"tools":[{"type":"function","function":{"name":"\\ud83dx"}}]}',
        HI + ',"tools":[{"type":"function","function":{"name":"f","parameters":{"a":["\\udfff"]}}}]}',
    ],
)
def test_b83_half_of_a_surrogate_pair_is_refused_anywhere(body: str) -> None:
    refusal(body)


def test_b83_whole_pairs_and_nul_are_taken() -> None:
    body = '{"model":"m","messages":[{"role":"user","content":"\\ud83d\\ude42 \\u0000 \\\\ud83d"}],"user":"\\u0000"}'
    assert upstream(body)["messages"][0]["content"] == "🙂 \0 \\ud83d"


# -- B84, B85


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 20_000 + b"]" * 20_000,
        b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        (HI + ',"unknown":' + '{"a":' * 10_000 + "1" + "}" * 10_000 + "}").encode(),
        json.dumps({**CHAT, "metadata": nested(900)}).encode(),
        json.dumps({**CHAT, "tools": [tool(nested(900))]}).encode(),
        (HI + ',"response_format":' + '{"a":' * 1_000 + "1" + "}" * 1_000 + "}").encode(),
    ],
)
def test_b84_deep_nesting_is_refused_within_a_second(body: bytes) -> None:
    started_s = time.monotonic()
    assert "nested" in refusal(body).message
    assert time.monotonic() - started_s < 1.0


def test_b84_the_limit_of_depth_is_exact() -> None:
    assert read_object(json.dumps(nested(MAX_DEPTH)).encode()) == nested(MAX_DEPTH)
    with pytest.raises(BadRequest):
        read_object(json.dumps(nested(MAX_DEPTH + 1)).encode())


@pytest.mark.parametrize(
    ("what", "param"),
    [
        ({"response_format": schema_format(nested(40))}, "response_format.json_schema.schema"),
        ({"response_format": schema_format({f"p{n}": {} for n in range(1001)})}, "response_format.json_schema.schema"),
        ({"response_format": schema_format({"enum": ["x" * 70_000]})}, "response_format.json_schema.schema"),
        ({"tools": [tool({"a": "x" * 70_000})]}, "tools[0].function.parameters"),
        ({"structured_outputs": {"regex": "a" * 70_000}}, "structured_outputs"),
    ],
)
def test_b85_large_schemas_are_refused_by_the_gateway(what: dict[str, Any], param: str) -> None:
    assert refusal({**CHAT, **what}).param == param


# -- B86, B91


@pytest.mark.parametrize(
    ("base", "field", "value"),
    [
        *((CHAT, "n", value) for value in (100_000, 0, -1, 1.5, "1", True)),
        (CHAT, "top_logprobs", 10**6),
        (CHAT, "prompt_logprobs", -1),
        (CHAT, "prompt_logprobs", 10**6),
        (TEXT, "logprobs", 10**6),
        (TEXT, "logprobs", -1),
        (TEXT, "best_of", 10**6),
        (CHAT, "stop", ["x"] * 10_000),
        (CHAT, "stop", "x" * 10_000),
        (CHAT, "stop", [""]),
        *((CHAT, "max_tokens", value) for value in (2**63, 2**31, 0, -1, "8")),
        *((TEXT, "max_tokens", value) for value in (0, 2**63)),
        (CHAT, "logit_bias", {str(number): 0 for number in range(2000)}),
        (CHAT, "logit_bias", {"x": 1}),
        (CHAT, "temperature", 2.1),
        (CHAT, "temperature", -0.1),
        (CHAT, "top_p", 0),
        (CHAT, "top_p", 1.1),
        (CHAT, "frequency_penalty", 3),
        (CHAT, "seed", 2**63),
        (CHAT, "tools", [tool({})] * 200),
        (CHAT, "messages", [{"role": "user", "content": "x"}] * 5000),
        (CHAT, "user", "x" * 1000),
        (CHAT, "model", "x" * 2000),
        (CHAT, "bad_words", ["x"] * 1000),
        (CHAT, "allowed_token_ids", [0] * 5000),
    ],
)
def test_b86_caps_are_kept_field_by_field(base: dict[str, Any], field: str, value: Any) -> None:
    param = refusal({**base, field: value}).param
    assert param is not None
    assert param.split("[")[0].split(".")[0] == field


def test_b86_prompts_times_n_are_bounded() -> None:
    assert read({**TEXT, "prompt": ["a"] * 8, "n": 2}).num_choices == 16
    for more in ({"prompt": ["a"] * 8, "n": 3}, {"n": 17}, {"prompt": [[1]] * 17}):
        assert refusal({**TEXT, **more}).param == "n"
    body = json.dumps({**TEXT, "n": 17}).encode()
    assert read_request(body, "/v1/completions", default_max_tokens=8, max_choices=17).num_choices == 17
    assert refusal({**TEXT, "prompt": ["a"] * 129}).param == "prompt"


def test_b91_echo_is_sent_on_and_no_tokens_at_all_are_refused() -> None:
    assert upstream({**TEXT, "echo": True, "logprobs": 1})["echo"] is True
    assert refusal({**TEXT, "echo": True, "max_tokens": 0}).param == "max_tokens"


# -- X07


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\xed\xa0\xbd"}]}',  # a surrogate, written as UTF-8
        b'{"model":"m","messages":[{"role":"user","content":"\xc0\xaf"}]}',  # overlong
        *(json.dumps(CHAT).encode(encoding) for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig")),
    ],
)
def test_x07_what_is_not_plain_utf8_is_refused(body: bytes) -> None:
    refusal(body)


# -- X08


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ({}, "messages"),
        (["hi"], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
            "messages[0].content[0].type",
        ),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "video"}]}], "messages[0].content[1].type"),
        ([{"role": "user", "content": "a"}, {"role": "boss", "content": "b"}], "messages[1].role"),
        ([{"role": 5, "content": "b"}], "messages[0].role"),
        ([{"role": "user", "content": "a", "name": 5}], "messages[0].name"),
        ([{"role": "assistant", "tool_calls": [{"type": "function"}]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_x08_messages_that_are_none_are_refused_by_their_place(messages: Any, param: str) -> None:
    assert refusal({**CHAT, "messages": messages}).param == param


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "be brief"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        [{"role": "developer", "content": "a"}, {"role": "user", "content": ""}],
        [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "5"},
        ],
    ],
)
def test_x08_messages_that_a_template_can_judge_are_sent_on_as_they_are(messages: Any) -> None:
    assert upstream({**CHAT, "messages": messages})["messages"] == messages


def test_x08_an_assistants_null_content_beside_its_tool_calls_is_taken() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    sent = {**CHAT, "messages": [{"role": "assistant", "content": None, "tool_calls": calls}]}
    assert upstream(sent)["messages"] == [{"role": "assistant", "tool_calls": calls}]


def test_x08_what_an_sdk_puts_beside_a_message_is_dropped() -> None:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "annotations": [],
        "provider_specific_fields": {"x": 1},
    }
    assert upstream({**CHAT, "messages": [message]})["messages"] == [{"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    "body",
    [
        '{"model":"m","model":"n","messages":[{"role":"user","content":"hi"}]}',
        '{"model":"m","messages":[{"role":"user","role":"system","content":"hi"}]}',
        '{"model":"m","messages":[{"role":"user","content":"hi"}],"metadata":{"a":1,"a":1}}',
        '{"model":"m","mod\\u0065l":"n","messages":[{"role":"user","content":"hi"}]}',
    ],
)
def test_x08_a_name_twice_in_an_object_is_refused(body: str) -> None:
    assert "twice" in refusal(body).message


# -- X09


@pytest.mark.parametrize(
    ("field", "written"),
    [
        ("stream", '"true"'),
        ("stream", "1"),
        ("temperature", '"0.5"'),
        ("temperature", "true"),
        ("max_tokens", '"8"'),
        ("max_tokens", "8.5"),
        ("max_tokens", "1e999"),
        ("max_tokens", "9" * 400),
        ("seed", "9" * 400),
        ("temperature", "9" * 400),
        ("temperature", "1e999"),
        ("logprobs", "0"),
    ],
)
def test_x09_a_value_of_another_kind_is_refused_by_name(field: str, written: str) -> None:
    assert refusal(f'{HI},"{field}":{written}}}').param == field


@pytest.mark.parametrize("written", ["NaN", "Infinity", "-Infinity", "nan", "9" * 5000, "01", "+1", "1.", ".5", "0x10"])
def test_x09_what_is_no_json_number_is_refused(written: str) -> None:
    refusal(f'{HI},"temperature":{written}}}')


@pytest.mark.parametrize("written", ["8.0", "8e0", "0.8e1", "80e-1"])
def test_x09_a_whole_number_may_be_written_with_a_fraction_of_zero_and_engines_read_it_alike(written: str) -> None:
    request = read(f'{HI},"max_tokens":{written},"seed":{written}}}')
    assert request.max_tokens == 8
    body, _ = upstream_body(request, kind="vllm", upstream_model="inner", cache_salt="salt", engine_priority=0)
    assert b'"max_tokens":8' in body
    assert b'"seed":8' in body
    assert b"8.0" not in body


def test_x09_large_numbers_deep_inside_are_refused() -> None:
    refusal(HI + ',"tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":' + "9" * 400 + "}}}]}")
    refusal(HI + ',"response_format":{"type":"json_schema","json_schema":{"name":"f","schema":{"maximum":1e999}}}}')


# -- X10


@pytest.mark.parametrize("name", ["temprature", "max_token", "x", "Model", "kv_cache", "priority_boost", ""])
def test_x10_a_made_up_name_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnknownParameter) as caught:
        read({**CHAT, name: 1})
    assert caught.value.param == name


@pytest.mark.parametrize("name", ["store", "service_tier", "prediction", "metadata", "prompt_cache_key"])
def test_x10_what_openai_has_and_changes_no_answer_is_ignored(name: str) -> None:
    assert upstream({**CHAT, name: {"a": 1}}) == upstream(CHAT)


@pytest.mark.parametrize("name", ["functions", "function_call", "audio", "web_search_options"])
def test_x10_what_openai_has_and_would_change_the_answer_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        read({**CHAT, name: {}})
    assert caught.value.param == name


@pytest.mark.parametrize(
    "name", ["cache_salt", "kv_transfer_params", "request_id", "chat_template", "guided_json", "vllm_xargs"]
)
def test_x10_a_tenant_cannot_set_what_is_internal(name: str) -> None:
    for base in (CHAT, TEXT):
        with pytest.raises(UnsupportedParameter) as caught:
            read({**base, name: 1})
        assert caught.value.param == name
    assert refusal({**CHAT, "chat_template_kwargs": {"chat_template": "x"}}).param == "chat_template_kwargs.chat_template"


def test_x10_a_tier_is_no_number_and_never_sent_on() -> None:
    assert refusal({**CHAT, "priority": -5}).param == "priority"
    assert upstream({**CHAT, "priority": "interactive"})["priority"] == 0, "the grant's"
    assert "priority" not in upstream({**CHAT, "priority": "interactive"}, kind="openai")


def test_x10_vllms_sampling_fields_are_for_vllm() -> None:
    assert upstream({**CHAT, "top_k": 5})["top_k"] == 5
    assert "top_k" not in upstream({**CHAT, "top_k": 5}, kind="openai")


# -- the description itself


def test_every_field_is_described_once() -> None:
    for record in (fields.CHAT, fields.COMPLETIONS):
        names = [field.name for field in record.fields]
        assert len(names) == len(set(names))


def test_a_prompt_of_ids_may_be_written_as_whole_floats() -> None:
    assert upstream({**TEXT, "prompt": [1, 2.0]})["prompt"] == [1, 2]
    assert refusal({**TEXT, "prompt": [1, -2]}).param == "prompt"
    assert refusal({**TEXT, "prompt": [[1], [2.5]]}).param == "prompt[1][0]"
    assert refusal({**TEXT, "prompt": [1, True]}).param == "prompt[1]"


def test_a_body_of_very_many_values_is_refused_before_it_is_decoded() -> None:
    assert "values" in refusal(b'{"model":"m","prompt":[' + b"1," * 1_000_001 + b"1]}").message

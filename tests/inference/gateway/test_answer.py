from typing import Any

import pytest

from inference.gateway.answer import AnswerReader
from inference.gateway.chunks import BadEvent, Chunk, EngineReported, carries_output
from inference.gateway.engine_usage import Usage, read_usage
from inference.gateway.fold import Folder
from inference.gateway.sse import SseSplitter
from tests.fakes.replica import chat_chunk, chat_events, running_usage, sse, text_chunk, text_events, usage_chunk


def reader(*, wants_usage: bool = False, wants_running_usage: bool = False, num_choices: int = 1) -> AnswerReader:
    return AnswerReader(
        response_id="chatcmpl-1",
        public_id="org/m",
        wants_usage=wants_usage,
        wants_running_usage=wants_running_usage,
        num_choices=num_choices,
    )


def take(of: AnswerReader, *events: bytes) -> list[Chunk]:
    chunks = [of.take(data) for event in events for data in SseSplitter().feed(event)]
    return [chunk for chunk in chunks if chunk is not None]


def test_chunks_get_our_id_and_the_public_name_and_keep_everything_else() -> None:
    event = sse(
        '{"id":"x","model":"y","created":5,"new_field":[1],"choices":[{"index":0,"delta":{"content":"a","x":null},"token_ids":null}]}'
    )
    assert take(reader(), event) == [
        {
            "id": "chatcmpl-1",
            "model": "org/m",
            "created": 5,
            "new_field": [1],
            "choices": [{"index": 0, "delta": {"content": "a", "x": None}, "token_ids": None}],
        }
    ]


def test_b10_usage_is_read_and_stripped_if_it_was_not_asked_for() -> None:
    of = reader()
    chunks = take(of, *chat_events(["a", "b"]))
    assert len(chunks) == 3
    assert all("usage" not in chunk for chunk in chunks)
    assert of.usage() == Usage(prompt_tokens=7, completion_tokens=3)
    assert of.usage_chunk() is None


def test_b08_b09_usage_that_was_asked_for_is_null_but_in_one_last_frame_like_the_others() -> None:
    of = reader(wants_usage=True)
    chunks = take(of, *chat_events(["a", "b"]))
    assert [chunk["usage"] for chunk in chunks] == [None, None, None]
    last = of.usage_chunk()
    assert last is not None
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}
    assert {name: last[name] for name in ("id", "model", "created", "object")} == {
        name: chunks[0][name] for name in ("id", "model", "created", "object")
    }


def test_running_usage_is_shown_to_those_who_ask_for_it() -> None:
    of = reader(wants_usage=True, wants_running_usage=True)
    assert [chunk["usage"]["completion_tokens"] for chunk in take(of, *chat_events(["a", "b"]))] == [0, 1, 2]


def test_b59_running_totals_are_not_summed() -> None:
    of = reader()
    take(of, *(chat_chunk({"content": "x"}, usage=running_usage(number)) for number in range(1, 51)))
    assert of.usage() == Usage(prompt_tokens=7, completion_tokens=50)


def test_running_figures_of_several_choices_are_one_sum() -> None:
    of = reader(num_choices=2)
    take(of, text_chunk("a", usage=running_usage(4), index=0), text_chunk("b", usage=running_usage(6), index=1))
    assert of.usage() == Usage(prompt_tokens=7, completion_tokens=10)


def test_the_usage_frame_wins_over_running_figures() -> None:
    of = reader()
    final = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 8}}
    take(of, chat_chunk({"content": "a"}, usage=running_usage(99)), usage_chunk(final))
    assert of.usage() == Usage(prompt_tokens=10, cached_tokens=8, completion_tokens=2)


@pytest.mark.parametrize("figures", [None, 3, [], {"prompt_tokens": "many"}, {"prompt_tokens_details": 5}])
def test_usage_that_is_none_is_none(figures: object) -> None:
    assert read_usage(figures) is None


def test_usage_is_kept_to_what_the_ledger_can_hold() -> None:
    assert read_usage({"prompt_tokens": 10**12, "completion_tokens": -4}) == Usage(prompt_tokens=2**31 - 1)


def test_an_answer_is_finished_when_each_of_its_choices_is() -> None:
    of = reader(num_choices=2)
    take(of, text_chunk("a", "stop", index=1))
    assert not of.is_finished
    take(of, text_chunk("b", "length", index=0))
    assert of.is_finished
    assert of.finish_reason == "length"


def test_what_comes_after_done_is_dropped() -> None:
    of = reader()
    assert take(of, sse("[DONE]"), sse("[DONE]"), chat_chunk({"content": "late"}), sse("not json")) == []
    assert of.is_done


@pytest.mark.parametrize("event", [sse('{"choices":[],"id":"x"}'), sse(""), sse("{}"), sse('{"choices":null}')])
def test_b07_heartbeats_in_data_frames_are_dropped(event: bytes) -> None:
    assert take(reader(), event) == []


@pytest.mark.parametrize("event", [sse("nonsense"), sse("[1]"), sse('"text"'), sse('{"choices":[1]}'), sse('{"a":' * 5000)])
def test_what_is_no_chunk_is_a_bad_event(event: bytes) -> None:
    with pytest.raises(BadEvent):
        take(reader(), event)


@pytest.mark.parametrize(
    "event",
    [
        sse('{"error":{"message":"queue full","code":503}}'),
        sse('{"error":"broken"}'),
        sse('{"object":"error","message":"x","code":400}'),
    ],
)
def test_b28_error_objects_are_reported(event: bytes) -> None:
    with pytest.raises(EngineReported):
        take(reader(), event)


def test_b83_half_of_a_surrogate_pair_from_an_engine_is_replaced() -> None:
    chunks = take(
        reader(), sse(b'{"choices":[{"index":0,"text":"a\\ud83d \\ud83d\\ude42","\\udfff":1}],"usage":{"\\ud83d":2}}')
    )
    assert chunks[0]["choices"][0] == {"index": 0, "text": "a\ufffd \U0001f642", "\ufffd": 1}


def test_b82_what_json_has_no_word_for_becomes_null() -> None:
    chunks = take(reader(), sse('{"choices":[{"index":0,"text":"a","logprobs":{"token_logprobs":[-Infinity,NaN,-1.5]}}]}'))
    assert chunks[0]["choices"][0]["logprobs"] == {"token_logprobs": [None, None, -1.5]}


def test_a_role_and_empty_text_are_no_output() -> None:
    assert not carries_output({"delta": {"role": "assistant", "content": ""}})
    assert not carries_output({"text": "", "finish_reason": None})
    assert carries_output({"delta": {"content": "a"}})
    assert carries_output({"delta": {"tool_calls": [{"index": 0}]}})
    assert carries_output({"delta": {}, "finish_reason": "stop"})


def test_a_whole_answer_is_read_and_renamed() -> None:
    of = reader()
    answer = of.take_whole(
        b'{"id":"x","model":"y","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"length"}],'
        b'"usage":{"prompt_tokens":1,"completion_tokens":2},"kv_transfer_params":null}'
    )
    assert (answer["id"], answer["model"], "kv_transfer_params" in answer) == ("chatcmpl-1", "org/m", False)
    assert (of.usage(), of.finish_reason) == (Usage(prompt_tokens=1, completion_tokens=2), "length")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices":[]}', b"<html>"])
def test_a_whole_answer_without_choices_is_bad(body: bytes) -> None:
    with pytest.raises(BadEvent):
        reader().take_whole(body)


# -- folding


def folded(of: AnswerReader, events: list[bytes]) -> Chunk:
    folder = Folder()
    for chunk in take(of, *events):
        folder.add(chunk)
    return folder.answer(of.final_usage())


def test_a_chat_stream_folds_into_one_answer() -> None:
    assert folded(reader(), chat_events(["Hel", "lo", "!"])) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "org/m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello!"}, "logprobs": None, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3},
    }


def test_a_completion_stream_folds_into_one_answer() -> None:
    answer = folded(reader(), text_events(["Hel", "lo"]))
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}]


def test_reasoning_and_stop_reason_survive_folding() -> None:
    events = [
        chat_chunk({"role": "assistant", "reasoning": "be", "content": None}),
        chat_chunk({"reasoning": "cause"}),
        sse('{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop","stop_reason":42}]}'),
    ]
    choice = folded(reader(), events)["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "x", "reasoning": "because"}
    assert choice["stop_reason"] == 42


def test_b18_interleaved_tool_calls_are_put_together_by_index() -> None:
    pieces = [
        {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 1, "id": "call_b", "type": "function", "function": {"name": "g", "arguments": '{"y"'}},
        {"index": 0, "function": {"arguments": '{"x":'}},
        {"index": 1, "function": {"arguments": ":2}"}},
        {"index": 0, "function": {"arguments": "1}"}},
    ]
    events = [chat_chunk({"role": "assistant", "content": None}), *(chat_chunk({"tool_calls": [piece]}) for piece in pieces)]
    message = folded(reader(), [*events, chat_chunk({}, "tool_calls")])["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
        {"id": "call_b", "type": "function", "function": {"name": "g", "arguments": '{"y":2}'}},
    ]


@pytest.mark.parametrize(
    "delta",
    [
        {"tool_calls": 5},
        {"tool_calls": ["x"]},
        {"tool_calls": [{"index": -1, "function": {}}]},
        {"tool_calls": [{"index": 10**9, "function": {}}]},
        {"tool_calls": [{"index": "0", "function": {}}]},
        {"tool_calls": [{"index": 0, "function": "f"}]},
    ],
)
def test_pieces_that_cannot_be_put_together_are_a_bad_event(delta: Any) -> None:
    with pytest.raises(BadEvent):
        folded(reader(), [chat_chunk(delta)])


@pytest.mark.parametrize("delta", [{"content": 5}, {"tool_calls": [{"index": 0, "function": {"arguments": {"a": 1}}}]}])
def test_a_text_of_another_kind_is_a_bad_event(delta: dict[str, Any]) -> None:
    with pytest.raises(BadEvent):
        folded(reader(), [chat_chunk(delta), chat_chunk({}, "stop")])

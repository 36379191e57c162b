"""The short way hands on exactly what the full way would, or leaves the event to it."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.gateway.answer import AnswerReader
from inference.gateway.chunks import BadEvent, Piece
from inference.gateway.continuation import Continuation, Cut
from inference.gateway.outputs import EventStreamOutput, HttpResponder
from inference.gateway.relay import _take_all
from inference.gateway.short_way import ShortWay
from inference.gateway.sse import SseSplitter
from tests.fakes.replica import piece


def event(text: object = " token", *, usage: int | None = None, ids: object = None, **choice: Any) -> dict[str, Any]:
    one = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None, "token_ids": ids, **choice}
    chunk = {"id": "chatcmpl-9", "object": "chat.completion.chunk", "created": 17, "model": "m", "choices": [one]}
    if usage is not None:
        chunk["usage"] = {"prompt_tokens": 7, "total_tokens": 7 + usage, "completion_tokens": usage}
    return chunk


def wire(chunk: object, **style: Any) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":"), **style).encode() + b"\n\n"


class Way:
    """A reader with or without the short way; `feed` returns what the client would get."""

    def __init__(self, *, is_short: bool, wants_usage: bool = False, continuation: Continuation | None = None) -> None:
        self.reader = AnswerReader(
            response_id="chatcmpl-ours", public_id="acme/m", wants_usage=wants_usage, continuation=continuation
        )
        self.splitter = SseSplitter()
        self.written: list[bytes] = []
        self.can_write = True
        self.output = EventStreamOutput(HttpResponder(send=None, request_id="req_1"))  # type: ignore[arg-type]
        self.short = (
            ShortWay(self.reader, self.splitter, show=self.output.show, write=self._write, on_output=lambda: None)
            if is_short
            else None
        )

    def _write(self, data: bytes) -> bool:
        if self.can_write:
            self.written.append(data)
        return self.can_write

    def feed_framed(self, event: bytes) -> bytes:
        """An event that comes as one HTTP chunk of its own."""
        before = len(self.written)
        if self.short is not None and self.short.is_ready and self.short.pass_framed(piece(event)):
            return b"".join(self.written[before:])
        return self.feed(event)

    def feed(self, data: bytes) -> bytes:
        held: list[Piece] = []
        before = len(self.written)
        rest = self.short.take(data) if self.short else data
        if rest:
            problem = _take_all(self.splitter, rest, self.reader, held, self.short)
            if problem is not None:
                raise problem
        return b"".join(self.written[before:]) + b"".join(self.output._shown(held))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=8), cuts=st.lists(st.integers(1, 60), max_size=20), data=st.data())
def test_both_ways_say_the_same_however_the_bytes_are_cut(texts: list[str], cuts: list[int], data: st.DataObject) -> None:
    is_ascii = data.draw(st.booleans())
    has_usage = data.draw(st.booleans())
    wants_usage = data.draw(st.booleans())
    first = wire({**event(), "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    stream = first + b"".join(
        wire(event(text, usage=number if has_usage else None), ensure_ascii=is_ascii) for number, text in enumerate(texts, 1)
    )
    ways = [Way(is_short=short, wants_usage=wants_usage) for short in (True, False)]
    got = [b"", b""]
    at = 0
    for size in [*cuts, len(stream)]:
        piece, at = stream[at : at + size], at + size
        for number, way in enumerate(ways):
            if piece:
                got[number] += way.feed(piece)
    short, full = ([json.loads(line[6:]) for line in got[number].decode().split("\n\n") if line] for number in (0, 1))
    assert short == full
    assert ways[0].reader.usage() == ways[1].reader.usage()


def test_the_second_token_event_goes_the_short_way_with_its_text_as_it_came() -> None:
    way = Way(is_short=True)
    way.feed(wire(event("a")))
    shown = way.feed(wire(event('"\\ \n 日本 🙂'), ensure_ascii=False) * 2)
    assert way.written == [shown]
    lines = [json.loads(line[6:]) for line in shown.decode().split("\n\n") if line]
    assert [line["choices"][0]["delta"]["content"] for line in lines] == ['"\\ \n 日本 🙂'] * 2
    assert {(line["id"], line["model"]) for line in lines} == {("chatcmpl-ours", "acme/m")}


def test_completions_have_a_short_way_too() -> None:
    way = Way(is_short=True)
    chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    for text in ("a", "b"):
        way.feed(wire({**chunk, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}]}))
    assert b'"text":"b"' in way.written[0]


def test_usage_is_the_latest_event_s() -> None:
    way = Way(is_short=True)
    for number in (1, 2, 37):
        way.feed(wire(event("x", usage=number)))
    assert len(way.written) == 2
    usage = way.reader.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.is_running) == (7, 37, True)


def test_without_usage_events_are_counted() -> None:
    way = Way(is_short=True)
    for _ in range(5):
        way.feed(wire(event("x")))
    usage = way.reader.usage()
    assert usage is not None
    assert (usage.completion_tokens, usage.is_counted) == (5, True)


@pytest.mark.parametrize(
    "other",
    [
        event(finish_reason="stop"),
        event(logprobs={"content": []}),
        event(index=1),
        event(delta={"content": "x", "role": "assistant"}),
        event(delta={"reasoning": "x"}),
        event(delta={"tool_calls": [{"index": 0}]}),
        {**event(), "model": "another"},
        {**event(), "error": {"message": "boom"}},
        {**event(), "choices": [*event()["choices"], *event()["choices"]]},
        event(None),
        event(7),
        {**event(), "more": 1},
    ],
)
def test_what_differs_in_more_than_its_text_takes_the_full_way(other: dict[str, Any]) -> None:
    way = Way(is_short=True)
    way.feed(wire(event("a")))
    data = wire(other)
    assert way.short is not None
    assert way.short.take(data) == data
    assert way.written == []


@pytest.mark.parametrize(
    "raw",
    [
        b'"a\x01b"',  # a control character
        b'"\xff"',  # not UTF-8
        b'"\\ud800"',  # half a pair
        b'"\\x"',
        b'"a',
    ],
)
def test_a_text_that_is_not_plain_takes_the_full_way(raw: bytes) -> None:
    way = Way(is_short=True)
    way.feed(wire(event("a")))
    data = wire(event("MARK")).replace(b'"MARK"', raw)
    assert way.short is not None
    assert way.short.take(data) == data


def test_an_event_is_left_alone_while_the_client_cannot_be_written_to() -> None:
    way = Way(is_short=True)
    way.feed(wire(event("a", usage=1)))
    way.can_write = False
    data = wire(event("b", usage=2))
    assert way.short is not None
    assert way.short.take(data) == data
    usage = way.reader.usage()
    assert usage is not None and usage.completion_tokens == 1


def test_the_rest_after_the_events_that_fit_is_returned() -> None:
    way = Way(is_short=True)
    way.feed(wire(event("a")))
    end = wire(event("", finish_reason="stop")) + b"data: [DONE]\n\n"
    assert way.short is not None
    assert way.short.take(wire(event("b")) * 3 + end) == end
    assert way.written[0].count(b"data: ") == 3


def test_nothing_is_learnt_from_an_event_with_two_texts() -> None:
    way = Way(is_short=True)
    chunk = event("a")
    chunk["choices"][0]["text"] = "b"
    way.feed(wire(chunk))
    data = wire(chunk)
    assert way.short is not None and way.short.take(data) == data


def test_a_bad_event_after_the_short_way_is_still_a_bad_event() -> None:
    way = Way(is_short=True)
    way.feed(wire(event("a")))
    with pytest.raises(BadEvent):
        way.feed(wire(event("b")) + b"data: {nonsense\n\n")


def test_token_ids_of_the_short_way_are_kept_and_not_shown() -> None:
    continuation = Continuation(held_back=0, version="v1")
    continuation.begin([1])
    way = Way(is_short=True, continuation=continuation)
    for number in range(1000, 1600):
        way.feed(wire(event("é", ids=[number, number] if number % 2 else [number], usage=1), ensure_ascii=False))
    assert len(way.written) == 599
    assert b'token_ids":null' in way.written[0] and not any(b"10" in data for data in way.written[-300:])
    assert continuation.cut() == Cut(898, had="é"), "the last of two tokens may have brought no text"
    assert continuation.delivered == 600
    assert list(continuation.output_ids[-3:]) == [1598, 1599, 1599]


def test_ids_for_the_client_are_each_event_s_own() -> None:
    way = Way(is_short=True)
    shown = b"".join(way.feed(wire(event("x", ids=[number]))) for number in (5, 6, 7))
    assert [b'"token_ids":[%d]' % number in shown for number in (5, 6, 7)] == [True] * 3


@settings(max_examples=150, deadline=None)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=8), is_ascii=st.booleans(), has_usage=st.booleans(), at_once=st.integers(1, 3)
)
def test_whole_chunks_say_the_same_as_the_full_way(texts: list[str], is_ascii: bool, has_usage: bool, at_once: int) -> None:
    events = [
        wire(event(text, ids=[number], usage=number if has_usage else None), ensure_ascii=is_ascii)
        for number, text in enumerate(texts, 1)
    ]
    reads = [b"".join(events[at : at + at_once]) for at in range(0, len(events), at_once)]
    kept = [Continuation(held_back=0, version="v1") for _ in range(2)]
    short, full = (Way(is_short=number == 0, continuation=kept[number]) for number in (0, 1))
    assert [short.feed_framed(read) for read in reads] == [full.feed(read) for read in reads]
    assert short.reader.usage() == full.reader.usage()
    assert kept[0].cut() == kept[1].cut() and kept[0].output_ids == kept[1].output_ids


@pytest.mark.parametrize(
    "chunk",
    [
        piece(wire(event("b")) * 2),
        piece(wire(event("b"))[:-1]),
        piece(wire(event("b")) + b": a comment\n\n"),
        piece(wire(event("b")))[:-1],
        b"0" + piece(wire(event("b"))),
        piece(wire(event("b"))) * 2,
        piece(wire(event("b", finish_reason="stop"))),
        piece(wire(event("MARK")).replace(b"MARK", b"\xff")),
        b"1" + piece(wire(event("b"))),
    ],
)
def test_a_chunk_that_is_not_one_plain_event_is_left_alone(chunk: bytes) -> None:
    way = Way(is_short=True)
    way.feed(wire(event("a")))
    assert way.short is not None and way.short.is_ready
    assert not way.short.pass_framed(chunk)
    assert way.written == []


def test_a_chunk_is_left_alone_while_the_client_cannot_be_written_to() -> None:
    way = Way(is_short=True)
    way.feed(wire(event("a", usage=1)))
    way.can_write = False
    assert way.short is not None and not way.short.pass_framed(piece(wire(event("b", usage=2))))
    usage = way.reader.usage()
    assert usage is not None and usage.completion_tokens == 1

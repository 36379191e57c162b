"""What is kept of an answer, where it may be gone on from, and how the rest is fitted to it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.gateway.answer import AnswerReader
from inference.gateway.chunks import BadEvent
from inference.gateway.continuation import TAIL_CHARS, Continuation, Cut
from inference.gateway.splice import Splice

MOLD = {"object": "chat.completion.chunk"}


def begun(held_back: int = 0) -> Continuation:
    continuation = Continuation(held_back=held_back, version="v1")
    continuation.begin([1, 2, 3])
    return continuation


def test_both_ways_keep_the_same() -> None:
    texts = ["a", "é", '"', "\n", "日本", "🙂"] * 200
    full, short = begun(), begun()
    for number, text in enumerate(texts):
        full.took([number], len(text), text)
        raw = {'"': b'\\"', "\n": b"\\n"}.get(text, text.encode())
        short.took_short([raw], [str(number).encode()])
    assert full.cut() == short.cut() == Cut(1200)
    assert full.output_ids == short.output_ids
    assert full.delivered == short.delivered == len("".join(texts))
    assert full.tail(50) == short.tail(50) == "".join(texts)[-50:]


def test_the_tail_is_all_there_is_where_more_is_asked_for() -> None:
    continuation = begun()
    continuation.took([1], 2, "ab")
    assert (continuation.tail(3), continuation.tail(1), continuation.tail(0)) == ("ab", "b", "")


def test_ids_of_events_with_several_or_none_stay_in_order() -> None:
    continuation = begun()
    continuation.took_short([b"ab", b"c", b"d"], [b"1,2", b"", b"3"])
    assert continuation.can_go_on
    assert list(continuation.output_ids) == [1, 2, 3]
    assert continuation.cut() == Cut(3)
    assert list(continuation.output_ids) == [1, 2, 3]


@pytest.mark.parametrize("raw", [b"1 2", b",", b"99999999999", b"1,,2"])
def test_ids_that_are_none_spoil_it(raw: bytes) -> None:
    continuation = begun()
    continuation.took_short([b"a"], [raw])
    assert not continuation.can_go_on
    continuation.took_short([b"a"], [b"1"])
    assert not continuation.can_go_on
    assert len(continuation.output_ids) == 0, "nothing is kept any more"


@pytest.mark.parametrize("prompt_ids", [[], None, ["1"], [-1], {"1": 1}])
def test_a_prompt_without_ids_spoils_it(prompt_ids: object) -> None:
    continuation = Continuation(held_back=0, version="v1")
    continuation.begin(prompt_ids)
    assert not continuation.can_go_on


def test_tokens_without_text_are_made_again() -> None:
    continuation = begun()
    continuation.took([7], 1, "a")
    continuation.took([8], 0, "")
    assert continuation.cut() == Cut(1)
    continuation.took([9], 1, "🙂")
    assert continuation.cut() == Cut(3)


def test_text_that_is_held_back_is_made_again() -> None:
    """A stop string of five characters: four are held back. Tokens of three characters, "abc", "def", "ghi"."""
    continuation = begun(held_back=4)
    continuation.took([1], 0, "")
    continuation.took([2], 2, "ab")
    continuation.took([3], 3, "cde")
    assert continuation.cut() == Cut(0, had="abcde"), "the first event with text is the first whose place is known"
    continuation.took([4], 3, "fgh")
    assert continuation.cut() == Cut(2, had="gh")


def test_an_answer_that_is_only_events_of_several_tokens_can_be_too_far_from_a_mark() -> None:
    continuation = begun()
    for number in range(TAIL_CHARS // 4 + 1):
        continuation.took([number, number], 4, "abcd")
    assert continuation.cut() is None


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 6), st.data())
def test_a_cut_never_loses_or_doubles_text(seed: int, held_back: int, data: st.DataObject) -> None:
    """The text up to the cut and what the client has beyond it are what the client has."""
    rng = random.Random(seed)
    lengths = [rng.choice([0, 1, 1, 2, 5]) for _ in range(rng.randint(1, 40))]
    continuation = begun(held_back)
    made = told = 0
    for number, length in enumerate(lengths):
        made += length
        now = max(told, made - held_back)
        continuation.took([number], now - told, "x" * (now - told))
        told = now
    cut = continuation.cut()
    assert cut is not None and not cut.pending
    assert sum(lengths[: cut.num_tokens]) + len(cut.had) == told
    assert len(cut.had) <= held_back + max(lengths) + 5 or cut.num_tokens == 0
    continuation.go_on(cut)
    assert continuation.cut() == cut, "again from there, if nothing came"


# -- the splice


def spliced(cut: Cut, *pieces: str, stops: tuple[str, ...] = (), includes_stop: bool = False, tail: str = "") -> str:
    splice = Splice(cut, mold=MOLD, is_chat=True, stops=stops, includes_stop=includes_stop, tail=tail)
    shown = ""
    for number, piece in enumerate(pieces, start=1):
        shown += splice.take(piece, is_last=number == len(pieces))
        if splice.stop_reason is not None:
            return shown + f"[{splice.stop_reason}]"
    return shown


@pytest.mark.parametrize("pieces", [("hello world",), ("he", "llo", " world"), ("", "h", "ello world", "")])
def test_what_the_client_had_is_left_out(pieces: tuple[str, ...]) -> None:
    assert spliced(Cut(3, had="hel"), *pieces) == "lo world"


@pytest.mark.parametrize("pieces", [("help",), ("hex", "t"), ("he",), ("", "world")])
def test_what_differs_from_what_the_client_had_is_refused(pieces: tuple[str, ...]) -> None:
    with pytest.raises(BadEvent):
        spliced(Cut(3, had="hello"), *pieces)


def test_what_was_held_back_comes_first() -> None:
    assert spliced(Cut(3, pending="hel"), "lo", "") == "hello"
    assert spliced(Cut(3, pending="hel"), "", "") == "hel"


@pytest.mark.parametrize(
    ("pending", "pieces", "shown"),
    [
        ("E", ("ND of",), "[END]"),
        ("xE", ("N", "D of"), "x[END]"),
        ("xE", ("N", "x"), "xENx"),
        ("EN", ("END!",), "ENEND!"),  # the second one is the engine's to find
        ("EN", ("",), "EN"),
        ("xy", ("END",), "xyEND"),
    ],
)
def test_a_stop_string_that_begins_in_what_was_held_back_ends_the_answer(
    pending: str, pieces: tuple[str, ...], shown: str
) -> None:
    assert spliced(Cut(3, pending=pending), *pieces, stops=("END",)) == shown


def test_the_stop_string_that_ends_first_counts() -> None:
    assert spliced(Cut(1, pending="ab"), "cdef", stops=("abcdef", "bc")) == "a[bc]"


@pytest.mark.parametrize(
    ("stops", "ended_by", "made", "shown", "found"),
    [
        (("END", "NDX"), "NDX", "", "", "END"),  # ended before the one that the engine found
        (("NDX", "END"), "NDX", "", "", "END"),
        (("END", "ND"), "ND", "", "", "END"),  # ended with it, and is the first in the list
        (("ND", "END"), "ND", "", "E", None),
        (("END", "X"), "X", "NO", "ENO", None),
    ],
)
def test_the_engine_s_find_counts_unless_another_ended_before(
    stops: tuple[str, ...], ended_by: str, made: str, shown: str, found: str | None
) -> None:
    splice = Splice(Cut(3, pending="E"), mold=MOLD, is_chat=True, stops=stops)
    assert splice.take(made, is_last=True, ended_by=ended_by) == shown
    assert splice.stop_reason == found


def test_a_stop_string_that_is_part_of_the_answer_may_begin_in_what_was_sent() -> None:
    stops = ("STOP",)
    assert spliced(Cut(1), "OP it", stops=stops, includes_stop=True, tail=" ST") == "OP[STOP]"
    assert spliced(Cut(1), "O", "P", "", stops=stops, includes_stop=True, tail=" ST") == "OP[STOP]"
    assert spliced(Cut(1), "O", "!", stops=stops, includes_stop=True, tail=" ST") == "O!"


def test_ids_do_not_reach_the_client_and_nothing_of_them_is_lost() -> None:
    continuation = Continuation(held_back=0, version="v1")
    reader = AnswerReader(response_id="x", public_id="m", continuation=continuation)
    role = b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[5,6]}'
    event = b'{"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[7]}]}'
    chunks = [reader.take(role), reader.take(event), reader.take(event.replace(b'"a"', b'""'))]
    assert chunks[0] is not None and chunks[0]["prompt_token_ids"] is None
    assert chunks[1] is not None and chunks[1]["choices"][0]["token_ids"] is None
    assert chunks[2] is None, "an event that was only ids is nothing to a client"
    assert (list(continuation.prompt_ids), list(continuation.output_ids)) == ([5, 6], [7, 7])


@pytest.mark.parametrize(
    "delta", ['{"reasoning":"hm"}', "{}", '{"content":null}', '{"tool_calls":[{"index":0}]}', '{"content":"a","refusal":"b"}']
)
def test_what_a_parser_of_the_engine_makes_cannot_go_on(delta: str) -> None:
    continuation = begun()
    reader = AnswerReader(response_id="x", public_id="m", continuation=continuation)
    reader.take(b'{"choices":[{"index":0,"delta":' + delta.encode() + b',"token_ids":[7]}]}')
    assert not continuation.can_go_on

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.sse import EventTooLarge, SseSplitter

HELD = [b'{"text":"\xeb\xac\xb4\xec\x97\x87\xec\x9d\x84 \xf0\x9f\x99\x82"}', b"two\nlines", b"[DONE]"]


def written(line_end: bytes) -> bytes:
    lines = [
        b": ping - 2",
        b"",
        b":",
        b"event: ping",
        b"",
        b"id: 7",
        b"data: " + HELD[0],
        b"",
        b"data:two",
        b"data: lines",
        b"retry: 5",
        b"",
        b"",
        b"data: [DONE]",
        b"",
    ]
    return b"".join(line + line_end for line in lines)


def split(*pieces: bytes) -> list[bytes]:
    splitter = SseSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)] + splitter.flush()


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_b02_b04_events_are_the_same_wherever_the_stream_is_cut(line_end: bytes) -> None:
    stream = written(line_end)
    for offset in range(len(stream) + 1):
        assert split(stream[:offset], stream[offset:]) == HELD
    assert split(*[stream[at : at + 1] for at in range(len(stream))]) == HELD


def test_b04_mixed_line_ends_make_no_phantom_events() -> None:
    assert split(b"data: a\n\r\ndata: b\r\n\ndata: c\r\rdata: d\n\n") == [b"a", b"b", b"c", b"d"]


def test_an_event_is_out_with_its_blank_line_even_if_half_of_a_crlf_is_missing() -> None:
    splitter = SseSplitter()
    assert splitter.feed(b"data: a\r\n\r") == [b"a"]
    assert splitter.feed(b"\ndata: b\r\n\r\n") == [b"b"]


def test_an_event_without_its_blank_line_comes_out_at_the_end() -> None:
    assert split(b"data: a\n\ndata: b") == [b"a", b"b"]
    assert split(b"data: a\n") == [b"a"]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert split(b"\xef\xbb\xbfdata: a\n\n") == [b"a"]


def test_one_blank_after_the_colon_is_dropped_and_no_more() -> None:
    assert split(b"data:  a\n\ndata:\n\n") == [b" a", b""]


def test_an_endless_event_is_refused() -> None:
    splitter = SseSplitter(max_event_bytes=100)
    splitter.feed(b"data: " + b"x" * 90)
    with pytest.raises(EventTooLarge):
        splitter.feed(b"x" * 20)


@given(
    st.lists(st.text(alphabet="ab\u00e9\U0001f642 :", min_size=1), max_size=6),
    st.integers(0, 2**32),
    st.sampled_from(["\n", "\r\n"]),
)
def test_any_events_cut_anywhere_come_out_as_they_went_in(texts: list[str], seed: int, line_end: str) -> None:
    stream = "".join(f"data: {text}{line_end}{line_end}" for text in texts).encode()
    rng, pieces, at = random.Random(seed), [], 0
    while at < len(stream):
        size = rng.randint(1, 7)
        pieces.append(stream[at : at + size])
        at += size
    assert split(*pieces) == [text.encode() for text in texts]

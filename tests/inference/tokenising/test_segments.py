import json
import random

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import Metaspace

from inference.tokenising.counter import PromptCounter, Recall
from inference.tokenising.segments import ENTRY_BYTES, MIN_CHARS, Cutter, SegmentMemory, key_of
from tests.fakes.tokeniser import MARKS, byte_bundle, byte_tokeniser, merging_tokeniser

PIECES = [*MARKS, "the cat sat on the mat ", " ", "\n", "ü", "日本語", "<|", "|>", "the", "cat" * 30, "a" * MIN_CHARS, "🙂"]
TEXT = "the cat sat on the mat and the hat was that of the cat; thereafter others sat there\n日本語の文章 "


def merging_counter() -> PromptCounter:
    return PromptCounter(byte_bundle(tokenizer_json=merging_tokeniser(TEXT).to_str()))


@pytest.mark.parametrize("seed", range(5))
def test_pieces_have_the_counts_of_the_whole(seed: int) -> None:
    counter, rng = merging_counter(), random.Random(seed)
    recall = Recall(SegmentMemory(10_000), b"s")
    for _ in range(100):
        text = "".join(rng.choices(PIECES, k=rng.randrange(1, 30)))
        for is_special in (False, True):
            body = {"prompt": text, "add_special_tokens": is_special}
            assert counter.prompts(body, memory=recall) == counter.prompts(body), text
    assert 0 < len(recall.memory) <= 10_000 // ENTRY_BYTES


def test_a_conversations_earlier_messages_are_not_counted_again() -> None:
    counter, memory = merging_counter(), SegmentMemory(100_000)
    messages = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT + "!"}]
    first, longer = Recall(memory, b"s"), Recall(memory, b"s")
    counter.chat({"messages": messages}, memory=first)
    more = {"messages": [*messages, {"role": "user", "content": TEXT + "?"}]}
    assert counter.chat(more, memory=longer) == counter.chat(more)
    assert (first.num_made, longer.num_made) == (2, 1)
    another = Recall(memory, b"another tenant")
    counter.chat(more, memory=another)
    assert another.num_made == 3


def test_cuts_are_made_before_marks_only() -> None:
    cutter = Cutter(byte_tokeniser().to_str())
    assert cutter.cut("a<|start|>b<|end|><|start|>") == ["a", "<|start|>b", "<|end|>", "<|start|>"]
    assert cutter.cut("<|start|>b") == ["<|start|>b"]
    assert cutter.cut("") == [""]


def test_the_longest_mark_is_seen_and_one_that_takes_from_its_neighbours_is_not_cut_at() -> None:
    made = byte_tokeniser()
    made.add_special_tokens([AddedToken("<|start|>user", normalized=False, lstrip=True)])
    assert Cutter(made.to_str()).cut("a <|start|>user b<|start|>c") == ["a <|start|>user b", "<|start|>c"]


def test_a_tokeniser_that_marks_beginnings_is_not_cut() -> None:
    made: Tokenizer = byte_tokeniser()
    made.pre_tokenizer = Metaspace(prepend_scheme="first")
    assert Cutter(made.to_str()).cut("a<|start|>b") == ["a<|start|>b"]
    assert Cutter(json.dumps({"added_tokens": []})).cut("ab") == ["ab"]


def test_the_memory_keeps_the_newest_within_its_bytes() -> None:
    memory = SegmentMemory(3 * ENTRY_BYTES)
    for number in range(4):
        memory.keep({bytes([number]): number})
        memory.recall([b"\x01"])
    assert memory.recall([b"\x00", b"\x01", b"\x03"]) == [None, 1, 3]
    assert len(memory) == 3
    nothing = SegmentMemory(0)
    nothing.keep({b"a": 1})
    assert len(nothing) == 0


def test_keys_tell_salts_apart() -> None:
    assert key_of("a", salt=b"s") == key_of("a", salt=b"s")
    assert len({key_of("a", salt=b"s"), key_of("a", salt=b"t"), key_of("b", salt=b"s")}) == 3

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.policy.prefix import PrefixIndex, Prompt, marks_up_to
from tests.inference.policy.routing_cast import chain, prompt


def index(*replicas: str, cache_blocks: int = 1000, max_entries: int = 10_000, max_depth: int = 64) -> PrefixIndex:
    made = PrefixIndex(max_entries=max_entries, max_depth=max_depth)
    for replica in replicas:
        made.add(replica, cache_blocks=cache_blocks)
    return made


def match(of: PrefixIndex, blocks: tuple[int, ...], limit: int = 8, matters_ratio: float = 0.0) -> dict[str, int]:
    return of.match(of.marks_of(blocks), limit, matters_ratio)


def touch(of: PrefixIndex, replica: str, blocks: tuple[int, ...]) -> None:
    of.touch(replica, of.marks_of(blocks))
    of.check_invariants()


def test_marks_are_dense_where_prompts_begin_and_never_far_apart() -> None:
    marks = marks_up_to(1024)
    assert marks[:9] == (1, 2, 3, 4, 6, 8, 12, 16, 24)
    assert marks[-1] == 1024
    assert len(marks) == 20
    assert all(after <= 1.5 * before for before, after in pairwise(marks[1:]))


def test_the_longest_beginning_is_found_whatever_follows_it() -> None:
    it = index("a", "b")
    touch(it, "a", chain("system", "x", "y", "z"))
    touch(it, "b", chain("system", "p"))
    assert match(it, chain("system", "x", "y", "other")) == {"a": 3, "b": 1}
    assert match(it, chain("system", "p", "x")) == {"b": 2, "a": 1}
    assert match(it, chain("x", "y")) == {}


def test_those_come_first_among_equals_that_served_it_longest_ago() -> None:
    it = index("a", "b", "c")
    for replica in ("a", "b", "c", "a"):
        touch(it, replica, prompt("p", 3))
    assert list(match(it, prompt("p", 3))) == ["b", "c", "a"]
    assert list(match(it, prompt("p", 3), limit=1)) == ["b"]


def test_holders_of_much_less_than_the_best_one_are_left_out_when_asked_to() -> None:
    it = index("a", "b")
    touch(it, "a", prompt("p", 8))
    touch(it, "b", prompt("p", 1))
    assert match(it, prompt("p", 8), matters_ratio=0.25) == {"a": 8}


def test_what_is_oldest_makes_way_and_of_a_prompt_its_end_first() -> None:
    it = index("a", cache_blocks=10)
    touch(it, "a", prompt("old", 6))
    touch(it, "a", prompt("new", 8))
    assert match(it, prompt("old", 6)) == {"a": 2}
    assert match(it, prompt("new", 8)) == {"a": 8}
    touch(it, "a", prompt("old", 1))
    touch(it, "a", prompt("third", 2))
    assert match(it, prompt("old", 6)) == {"a": 1}, "what was used again stays"


def test_a_forgotten_replica_holds_nothing_and_others_keep_what_they_have() -> None:
    it = index("a", "b")
    touch(it, "a", prompt("p", 4))
    touch(it, "b", prompt("p", 2))
    it.forget("a")
    it.check_invariants()
    assert match(it, prompt("p", 4)) == {"b": 2}
    it.forget("a")


def test_the_whole_is_bounded_and_newcomers_get_their_part() -> None:
    it = index("a", max_entries=40)
    for number in range(20):
        touch(it, "a", prompt(f"p{number}", 8))
    assert it.size() == 40
    it.add("b", cache_blocks=1000)
    it.check_invariants()
    assert it.size() == 20
    for number in range(20):
        touch(it, "b", prompt(f"p{number}", 8))
    assert it.size() == 40


def test_a_replica_that_keeps_less_than_it_says_is_believed_to_keep_less() -> None:
    it = index("a", cache_blocks=1000)
    for number in range(100):
        touch(it, "a", prompt(f"p{number}", 8))
        it.correct("a", predicted_blocks=8, cached_blocks=0)
    assert it.blocks_of("a") < 120
    for number in range(200):
        touch(it, "a", prompt(f"q{number}", 8))
        it.correct("a", predicted_blocks=8, cached_blocks=8)
    assert it.blocks_of("a") > 900, "and it is learnt again when it does keep them"


def test_a_prompt_that_was_in_use_until_now_is_the_newest_again_when_much_has_come_since() -> None:
    it = index("a", cache_blocks=40)
    touch(it, "a", prompt("long", 6))
    taken = it.taken_by("a")
    for number in range(4):
        touch(it, "a", prompt(f"p{number}", 8))
    it.touch_again("a", it.marks_of(prompt("long", 6)), taken)
    for number in range(4):
        touch(it, "a", prompt(f"q{number}", 8))
    assert match(it, prompt("long", 6)) == {"a": 6}


def test_answers_take_room_and_are_nobodys_beginning() -> None:
    it = index("a", cache_blocks=40)
    touch(it, "a", prompt("p", 8))
    it.fill("a", "q1", 30)
    it.fill("a", "q1", 30)
    it.fill("a", "q2", 0)
    it.check_invariants()
    assert it.blocks_of("a") == 38
    it.fill("a", "q3", 8)
    it.check_invariants()
    assert match(it, prompt("p", 8)) == {"a": 2}
    it.forget("a")
    it.check_invariants()


def test_a_match_may_miss_its_last_block_without_being_a_lie() -> None:
    it = index("a", cache_blocks=100)
    for number in range(50):
        touch(it, "a", prompt(f"p{number}", 8))
        it.correct("a", predicted_blocks=8, cached_blocks=7)
    assert it.blocks_of("a") > 90


def test_a_thousand_holders_of_one_block_cost_no_more_than_ten() -> None:
    it = index(*(f"r{n}" for n in range(1000)), max_entries=100_000)
    for number in range(1000):
        touch_cheaply(it, f"r{number}", chain("system", number, "tail"))
    looked_at: list[int] = []

    class Watched(dict[int, str | dict[str, None]]):
        def get(self, key: int, default: object = None) -> object:  # type: ignore[override]
            looked_at.append(key)
            return super().get(key)

    it._holders = Watched(it._holders)
    found = match(it, chain("system", 500, "tail"), limit=4)
    assert len(found) == 4
    assert next(iter(found.items())) == ("r500", 3)
    assert len(looked_at) <= 8


def touch_cheaply(of: PrefixIndex, replica: str, blocks: tuple[int, ...]) -> None:
    of.touch(replica, of.marks_of(blocks))


def naive_depth(it: PrefixIndex, replica: str, marks: Prompt) -> int:
    held = it._caches[replica].lru
    num = next((at for at, mark in enumerate(marks) if mark not in held), len(marks))
    return it._marks[num - 1] if num else 0


PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=14)


@given(
    steps=st.lists(st.tuples(st.sampled_from("abcd"), PATHS, st.integers(0, 9)), max_size=40),
    asked=PATHS,
    limit=st.integers(1, 4),
)
def test_it_agrees_with_counting_block_by_block(steps: list[tuple[str, list[int], int]], asked: list[int], limit: int) -> None:
    it = index(*"abcd", cache_blocks=25, max_entries=60, max_depth=16)
    for replica, path, dice in steps:
        if dice == 0:
            it.forget(replica)
            it.add(replica, cache_blocks=25)
        elif dice == 1:
            it.correct(replica, predicted_blocks=5, cached_blocks=0)
        touch(it, replica, chain(*path))
    marks = it.marks_of(chain(*asked))
    expected = {replica: naive_depth(it, replica, marks) for replica in "abcd"}
    for replica, depth in expected.items():
        assert it.depth_on(replica, marks, depth + 3) == depth
    found = it.match(marks, limit, 0.0)
    assert {replica: expected[replica] for replica in found} == found
    best = sorted((depth for depth in expected.values() if depth), reverse=True)[:limit]
    assert list(found.values()) == best


@pytest.mark.parametrize("num_blocks", [0, 1, 9, 63, 64, 65, 500])
def test_a_prompt_of_any_length_is_taken(num_blocks: int) -> None:
    it = index("a", cache_blocks=2000)
    touch(it, "a", prompt("p", num_blocks))
    depth = match(it, prompt("p", num_blocks)).get("a", 0)
    assert min(num_blocks, 64) * 2 / 3 - 1 <= depth <= min(num_blocks, 64)

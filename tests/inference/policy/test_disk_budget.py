"""Which copies go so that another fits."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inference.policy.disk_budget import Disk, Held, Room, TooFull, room_for

GB = 10**9
ROOMY = 1000 * GB


def held(name: str, size_gb: int, used_s: float, **changes: bool) -> Held:
    return Held(name=name, size_bytes=size_gb * GB, last_used_s=used_s, **changes)


def disk(used_gb: int, *, budget_gb: int = 0, free_gb: int = 1000, promised_gb: int = 0, keep_free_gb: int = 0) -> Disk:
    return Disk(
        used_bytes=used_gb * GB,
        promised_bytes=promised_gb * GB,
        free_bytes=free_gb * GB,
        budget_bytes=budget_gb * GB,
        keep_free_bytes=keep_free_gb * GB,
    )


OLD, MIDDLE, NEW = held("old", 30, 1.0), held("middle", 30, 2.0), held("new", 30, 3.0)


def test_nothing_goes_while_there_is_room() -> None:
    assert room_for(10 * GB, disk(90, budget_gb=100), [OLD, MIDDLE, NEW]) == Room()
    assert room_for(10 * GB, disk(90), [OLD]) == Room(), "without a budget the disk itself is the bound"


def test_the_one_used_longest_ago_goes_first_and_no_more_than_it_takes() -> None:
    assert room_for(20 * GB, disk(90, budget_gb=100), [NEW, OLD, MIDDLE]) == Room(("old",))
    assert room_for(50 * GB, disk(90, budget_gb=100), [NEW, OLD, MIDDLE]) == Room(("old", "middle"))


@pytest.mark.parametrize("why", ["is_needed", "is_in_use"])
def test_what_is_needed_or_in_use_never_goes(why: str) -> None:
    kept = held("old", 30, 1.0, **{why: True})
    assert room_for(20 * GB, disk(90, budget_gb=100), [kept, MIDDLE, NEW]) == Room(("middle",))


def test_where_it_cannot_fit_nothing_goes_and_the_reason_has_the_figures() -> None:
    kept = [held("a", 60, 1.0, is_needed=True), held("b", 20, 2.0, is_in_use=True), held("c", 10, 3.0)]
    found = room_for(70 * GB, disk(90, budget_gb=100), kept)
    assert found == TooFull(
        "no room for 70.0 GB of weights: 90.0 of 100.0 GB of the weights' budget are used; "
        "2 copies of 80.0 GB are needed and stay"
    )


def test_a_disk_that_others_have_filled_counts_whatever_the_budget_says() -> None:
    assert room_for(20 * GB, disk(30, budget_gb=100, free_gb=25, keep_free_gb=10), [OLD]) == Room(("old",))
    found = room_for(20 * GB, disk(0, budget_gb=100, free_gb=25, keep_free_gb=10), [])
    assert isinstance(found, TooFull)
    assert "the disk has 25.0 GB free, of which 10.0 GB are to stay free" in found.reason


def test_room_that_is_promised_to_others_is_not_given_twice() -> None:
    assert room_for(40 * GB, disk(30, budget_gb=100), []) == Room()
    found = room_for(40 * GB, disk(30, budget_gb=100, promised_gb=40), [])
    assert isinstance(found, TooFull)
    assert "40.0 GB are promised to others" in found.reason


COPIES = st.lists(
    st.builds(
        Held,
        name=st.uuids().map(str),
        size_bytes=st.integers(0, 100),
        last_used_s=st.floats(0, 100),
        is_needed=st.booleans(),
        is_in_use=st.booleans(),
    ),
    max_size=8,
)


@given(COPIES, st.integers(0, 200), st.integers(0, 400), st.integers(0, 50), st.integers(0, 300))
def test_it_finds_room_exactly_where_what_may_go_is_enough(
    copies: list[Held], need: int, budget: int, promised: int, free: int
) -> None:
    used = sum(copy.size_bytes for copy in copies)
    here = Disk(used_bytes=used, promised_bytes=promised, free_bytes=free, budget_bytes=budget, keep_free_bytes=5)
    may_go = {copy.name: copy for copy in copies if not copy.is_needed and not copy.is_in_use}
    missing = max(used + promised + need - budget if budget else 0, 5 + promised + need - free)
    found = room_for(need, here, copies)
    assert isinstance(found, Room) == (sum(copy.size_bytes for copy in may_go.values()) >= missing)
    if isinstance(found, Room):
        assert set(found.evict) <= set(may_go)
        gone = [may_go[name] for name in found.evict]
        assert sum(copy.size_bytes for copy in gone) >= missing
        assert sum(copy.size_bytes for copy in gone[:-1]) < missing or not gone, "the last that went was still missing"
        stays = [copy.last_used_s for name, copy in may_go.items() if name not in found.evict and copy.size_bytes]
        assert not gone or not stays or max(copy.last_used_s for copy in gone) <= min(stays)

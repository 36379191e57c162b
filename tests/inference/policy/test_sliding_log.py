from hypothesis import given, settings
from hypothesis import strategies as st

from inference.policy.sliding_log import CHUNK, INPUT, OUTPUT, REQUESTS, Entry, SlidingLog, until_s


def log_of(*entries: Entry) -> SlidingLog:
    log = SlidingLog()
    for entry in entries:
        log.add(entry)
    return log


def test_an_entry_counts_until_its_end_and_not_at_it() -> None:
    log = log_of(Entry(60.0, (1, 10, 5), is_open=True))
    log.advance(59.999)
    assert log.total == log.reserved == [1, 10, 5]
    log.advance(60.0)
    assert log.total == log.reserved == [0, 0, 0]
    assert not log


def test_it_tells_when_enough_will_have_gone_over_many_chunks() -> None:
    log = log_of(*(Entry(60.0 + at, (1, at % 7, 3), is_open=False) for at in range(10 * CHUNK)))
    assert log.wait_s(REQUESTS, 1, 0.0) == 60.0
    assert log.wait_s(REQUESTS, 5 * CHUNK + 1, 0.0) == 60.0 + 5 * CHUNK
    assert log.wait_s(OUTPUT, 3 * 200 + 1, 0.0) == 260.0
    assert log.empty_in_s(INPUT, 0.0) == 60.0 + max(at for at in range(10 * CHUNK) if at % 7)


def test_what_comes_back_late_takes_its_place_in_time() -> None:
    log = SlidingLog()
    for gateway in range(4):
        for at in range(3 * CHUNK):
            log.add(Entry(60.0 + at + gateway / 10, (1, 1, 1), is_open=False))
    for at in range(3 * CHUNK):
        log.add(Entry(60.0 - at, (1, 1, 1), is_open=False))
    log.check_invariants()
    log.advance(60.0)
    assert len(log) == 4 * 3 * CHUNK - 1
    log.check_invariants()


def test_entries_of_nothing_at_the_end_are_dropped() -> None:
    log = SlidingLog()
    for at in range(3 * CHUNK):
        entry = Entry(60.0 + at, (1, 1, 1), is_open=True)
        chunk = log.add(entry)
        entry.amounts, entry.is_open = (0, 0, 0), False
        log.closed(entry, chunk, (1, 1, 1))
    assert len(log) == 0
    assert not log
    log.check_invariants()


@settings(max_examples=200)
@given(st.floats(0, 1e9), st.floats(0, 60))
def test_a_wait_is_long_enough_also_after_rounding(now_s: float, left_s: float) -> None:
    then_s = now_s + left_s
    wait_s = until_s(then_s, now_s)
    assert now_s + wait_s >= then_s
    assert wait_s <= left_s * (1 + 1e-12) + 1e-6


def test_a_wait_that_rounding_would_cut_short_is_one_step_longer() -> None:
    then_s, now_s = 1.0 + 2**-52, 2**-53
    assert now_s + (then_s - now_s) < then_s, "the plain difference is not enough here"
    assert now_s + until_s(then_s, now_s) >= then_s

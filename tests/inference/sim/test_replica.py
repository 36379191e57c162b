from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.sim.engine_profile import LLAMA_70B_8XH100, PRESETS, SMOLLM2_135M_CPU, EngineProfile
from inference.sim.histogram import Histogram
from inference.sim.replica import Replica
from inference.sim.sequence import Stage
from tests.inference.sim.casts import QUICK, Listener, lone_replica, sequence


def test_a_request_alone_takes_its_prompt_and_one_step_a_token() -> None:
    replica, listener = lone_replica()
    replica.submit(sequence("a", 100, 3))
    listener.loop.run()
    prefill_s = 0.01 + 100 * 1e-4
    decodes_s = 2 * (0.01 + 1e-3) + (100 + 101) * 1e-6
    assert listener.first_s["a"] == pytest.approx(prefill_s)
    assert listener.end_s["a"] == pytest.approx(prefill_s + decodes_s)


def test_a_long_prompt_is_read_in_chunks_while_others_decode() -> None:
    replica, listener = lone_replica()
    replica.submit(sequence("decodes", 16, 100))
    listener.loop.at(0.1, lambda: replica.submit(sequence("long", 1024, 1)))
    listener.loop.run()
    gaps = replica.gaps[1, "t"]
    chunk_s = 0.01 + 255 * 1e-4 + 1e-3
    assert gaps.count == 99
    assert gaps.quantile(1.0) == pytest.approx(chunk_s, rel=0.02)  # never the whole prompt's 0.1 s
    assert listener.first_s["long"] > 0.1 + 4 * chunk_s


def test_what_comes_meanwhile_starts_at_the_end_of_the_step_in_progress() -> None:
    alone, listener_alone = lone_replica()
    alone.submit(sequence("a", 16, 50))
    listener_alone.loop.run()
    replica, listener = lone_replica()
    replica.submit(sequence("a", 16, 50))
    listener.loop.at(0.2, lambda: replica.submit(sequence("b", 16, 1)))
    listener.loop.run()
    step_s, prefill_s = 0.011, 0.0116 + 1e-3
    assert prefill_s <= listener.first_s["b"] - 0.2 <= prefill_s + step_s + 1e-3
    assert listener.end_s["a"] == pytest.approx(listener_alone.end_s["a"] + 16 * 1e-4, abs=1e-6)


def test_many_steps_at_once_take_as_long_as_one_by_one() -> None:
    at_once, listener_at_once = lone_replica()
    one_by_one, listener = lone_replica()
    for replica in (at_once, one_by_one):
        for number in range(4):
            replica.submit(sequence(f"q{number}", 30 + number, 40 + 20 * number))
    for tick in range(2000):
        listener.loop.at(tick * 0.003, one_by_one._wake)
    listener_at_once.loop.run()
    listener.loop.run()
    assert listener.end_s == pytest.approx(listener_at_once.end_s)
    assert one_by_one.gaps[1, "t"].count == at_once.gaps[1, "t"].count == 4 * 39 + 20 * (1 + 2 + 3)


def test_a_cached_beginning_brings_the_first_token_sooner() -> None:
    replica, listener = lone_replica()
    content = tuple(range(100, 108))
    first, second = sequence("first", 520, 2, content=content), sequence("second", 520, 2, content=content)
    replica.submit(first)
    listener.loop.at(10.0, lambda: replica.submit(second))
    listener.loop.run()
    assert (first.cached_tokens, second.cached_tokens) == (0, 512)
    assert listener.first_s["second"] - 10.0 < listener.first_s["first"] / 3
    assert replica.prefilled_tokens == 520 + 8


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    replica, listener = lone_replica()
    content = (1, 2)
    first, second = sequence("first", 128, 1, content=content), sequence("second", 128, 1, content=content)
    replica.submit(first)
    listener.loop.at(1.0, lambda: replica.submit(second))
    listener.loop.run()
    assert second.cached_tokens == 64


def test_the_longest_unused_content_makes_way() -> None:
    replica, listener = lone_replica()  # 4,096 tokens of memory
    old, new = tuple(range(40)), tuple(range(100, 140))
    again = sequence("again", 40 * 64, 1, content=old)
    replica.submit(sequence("old", 40 * 64, 1, content=old))
    listener.loop.at(10.0, lambda: replica.submit(sequence("new", 40 * 64, 1, content=new)))
    listener.loop.at(20.0, lambda: replica.submit(again))
    listener.loop.run()
    assert again.cached_tokens == (64 - 40) * 64  # what the new one did not need, from the beginning on


def test_the_last_is_preempted_when_blocks_run_out_and_recovers() -> None:
    replica, listener = lone_replica()
    requests = [sequence(f"q{number}", 1000, 600) for number in range(4)]  # 6,400 tokens do not fit in 4,096
    for one in requests:
        replica.submit(one)
    listener.loop.run()
    assert set(listener.end_s) == {"q0", "q1", "q2", "q3"}
    assert replica.preemptions > 0 and requests[0].preemptions == 0 and requests[3].preemptions > 0
    assert all(one.generated == 600 and one.stage is Stage.ENDED for one in requests)
    assert replica.generated_tokens == 2400
    assert replica.prefilled_tokens > 4000  # recomputed
    assert replica.cache.used_blocks == 0
    assert replica.gaps[1, "t"].quantile(1.0) > 1.0  # its client saw a pause


def test_in_priority_order_the_urgent_overtakes_and_the_other_is_preempted() -> None:
    replica, listener = lone_replica()
    patient = [sequence(f"patient{number}", 900, 400, priority=5) for number in range(6)]
    urgent = sequence("urgent", 900, 400, priority=0)
    for one in patient:
        replica.submit(one)
    listener.loop.at(0.1, lambda: replica.submit(urgent))
    listener.loop.run()
    assert urgent.preemptions == 0
    assert listener.first_s["urgent"] < listener.first_s["patient5"]
    assert sum(one.preemptions for one in patient) > 0


def test_an_aborted_one_ends_in_silence_and_gives_its_memory_back() -> None:
    replica, listener = lone_replica()
    running, waiting = sequence("running", 100, 1000), sequence("waiting", 100, 10)
    replica.submit(running)
    for number in range(16):
        replica.submit(sequence(f"fills{number}", 16, 400))
    replica.submit(waiting)
    listener.loop.at(1.0, lambda: replica.abort(running))
    listener.loop.at(1.0, lambda: replica.abort(waiting))
    listener.loop.at(1.1, lambda: replica.abort(running))
    listener.loop.run()
    assert "running" not in listener.end_s and "waiting" not in listener.first_s
    assert len(listener.end_s) == 16
    assert replica.cache.used_blocks == 0


def test_progress_counts_steps_that_have_ended() -> None:
    replica, listener = lone_replica()
    one = sequence("a", 16, 50)
    replica.submit(one)
    seen: list[int] = []
    for tick in range(60):
        listener.loop.at(tick * 0.01, lambda: seen.append(replica.generated_by(one)))
    listener.loop.run()
    assert seen[0] == 0 and seen[-1] == 50
    assert all(0 <= later - sooner <= 1 for sooner, later in pairwise(seen))


@pytest.mark.parametrize(
    ("streams", "gap_ms", "tokens_per_s", "ttft_s"), [(1, 35, 28.0, 0.117), (8, 40, 174.0, 0.698), (16, 57, 234.0, 1.355)]
)
def test_smollm2_on_two_cores_is_as_fast_as_it_was_measured(
    streams: int, gap_ms: float, tokens_per_s: float, ttft_s: float
) -> None:
    """DESIGN section 8, ENGINE.md section 3."""
    replica, listener = lone_replica(SMOLLM2_135M_CPU)
    for number in range(streams):
        replica.submit(sequence(f"q{number}", 64, 128))
    listener.loop.run()
    assert replica.gaps[1, "t"].quantile(0.5) * 1e3 == pytest.approx(gap_ms, rel=0.03)
    assert streams * 128 / listener.loop.now_s == pytest.approx(tokens_per_s, rel=0.03)
    assert max(listener.first_s.values()) == pytest.approx(ttft_s, rel=0.07)


def test_the_70b_preset_is_what_its_sources_say() -> None:
    profile = LLAMA_70B_8XH100
    assert 20_000 < profile.prefill_tokens_per_s < 30_000
    assert 0.020 < profile.decode_s(64, 64 * 12_000) < 0.025
    assert profile.kv_tokens == 3_000_000


@pytest.mark.parametrize("profile", PRESETS.values(), ids=PRESETS)
def test_presets_are_sound(profile: EngineProfile) -> None:
    assert profile.step_budget_tokens > profile.max_sequences
    assert profile.kv_tokens // profile.kv_block_tokens > profile.max_sequences


REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 3),  # at
        st.integers(1, 1500),  # prompt
        st.integers(1, 300),  # output
        st.integers(0, 3),  # priority
        st.integers(0, 2),  # family of prompts
        st.one_of(st.none(), st.floats(0, 6)),  # aborted after
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(REQUESTS)
def test_every_request_ends_once_and_no_block_is_lost(requests: list[tuple[float, int, int, int, int, float | None]]) -> None:
    replica, listener = lone_replica()
    made = []
    for number, (at_s, prompt, output, priority, family, abort_after_s) in enumerate(requests):
        content = tuple(1000 * family + index for index in range(prompt // 64))
        one = sequence(f"q{number}", prompt, output, priority=priority, content=content)
        made.append(one)
        listener.loop.at(at_s, lambda one=one: replica.submit(one))  # type: ignore[misc]
        if abort_after_s is not None:
            listener.loop.at(at_s + abort_after_s, lambda one=one: replica.abort(one))  # type: ignore[misc]
        listener.loop.at(at_s + 0.5, replica.check_invariants)
    listener.loop.run()
    _all_is_accounted_for(replica, listener)
    for one in made:
        assert one.stage is Stage.ENDED
        assert (one.id in listener.end_s) == (not one.is_aborted)
        assert one.is_aborted or one.generated == one.output_tokens


def _all_is_accounted_for(replica: Replica, listener: Listener) -> None:
    replica.check_invariants()
    assert replica.cache.used_blocks == 0 and replica.running == 0
    assert all(listener.first_s[name] <= end_s for name, end_s in listener.end_s.items())


def test_a_histogram_is_right_to_one_percent() -> None:
    histogram, other = Histogram(), Histogram()
    for value in range(1, 501):
        histogram.add(value / 1000)
    other.add(1.0, 500)
    histogram.merge(other)
    assert histogram.quantile(0.25) == pytest.approx(0.25, rel=0.01)
    assert histogram.quantile(0.9) == pytest.approx(1.0, rel=0.01)
    assert histogram.mean == pytest.approx((0.2505 + 1.0) / 2)


def test_a_bigger_prompt_than_the_memory_can_never_be_served() -> None:
    replica, _ = lone_replica()
    assert replica.can_ever_serve(QUICK.kv_tokens - 164, 100)
    assert not replica.can_ever_serve(QUICK.kv_tokens, 1)

"""The agent's decisions, without an engine and without waiting."""

import math
from dataclasses import replace

import pytest

from inference.engines.client import ForcedAnswer
from inference.engines.vllm import EngineLoad
from inference.node.adoption import why_not_adopt
from inference.node.backoff import Backoff
from inference.node.golden import GoldenMismatch, check_answer, compare
from inference.node.machine import cpu_kind, number_format
from inference.node.node_files import RunFile
from inference.node.watchdog import Watchdog, WatchdogSettings
from tests.inference.node.fakes import IDLE, desired

SETTINGS = WatchdogSettings(stall_s=30, canary_every_s=30, canary_limit_s=15)


def busy(progress: float, *, kv: float = 0.1) -> EngineLoad:
    return EngineLoad(num_running=2, num_waiting=1, kv_usage_ratio=kv, progress=progress)


def test_pauses_double_up_to_the_ceiling() -> None:
    backoff = Backoff(first_s=1, ceiling_s=60, reset_after_s=300)
    pauses = [backoff.failed(now_s=0, ready_since_s=None) for _ in range(9)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_long_good_stretch_makes_it_forget_and_a_short_one_does_not() -> None:
    backoff = Backoff(first_s=1, ceiling_s=60, reset_after_s=300)
    for _ in range(4):
        backoff.failed(now_s=0, ready_since_s=None)
    assert backoff.failed(now_s=299, ready_since_s=0) == 299 + 16
    assert backoff.failed(now_s=700, ready_since_s=400) == 701


def test_a_thousand_failures_are_no_harder_than_ten() -> None:
    backoff = Backoff()
    assert max(backoff.failed(now_s=0, ready_since_s=None) for _ in range(1000)) == 60


def look_until(watchdog: Watchdog, load: EngineLoad | None, *, from_s: int, to_s: int) -> None:
    for now_s in range(from_s, to_s + 1, 2):
        watchdog.observe(load, now_s=now_s)


def test_a_busy_engine_whose_counters_stand_still_hangs() -> None:
    watchdog = Watchdog(SETTINGS, now_s=0)
    look_until(watchdog, busy(10), from_s=2, to_s=30)
    assert watchdog.verdict(now_s=31) is None
    watchdog.observe(busy(10), now_s=32)
    hung = watchdog.verdict(now_s=33)
    assert hung is not None
    assert "no progress for 31 s with 2 running and 1 waiting" in hung.reason


def test_an_agent_that_was_stopped_itself_takes_no_engine_for_hung() -> None:
    watchdog = Watchdog(SETTINGS, now_s=0)
    look_until(watchdog, busy(10), from_s=2, to_s=4)
    assert watchdog.verdict(now_s=500) is None
    watchdog.observe(busy(10), now_s=500)
    assert watchdog.verdict(now_s=500) is None
    look_until(watchdog, busy(10), from_s=502, to_s=504)
    assert watchdog.verdict(now_s=504) is not None


@pytest.mark.parametrize("moving", [busy(11), busy(10, kv=0.2)], ids=["counters", "kv use"])
def test_any_movement_is_progress(moving: EngineLoad) -> None:
    watchdog = Watchdog(SETTINGS, now_s=0)
    watchdog.observe(busy(10), now_s=2)
    watchdog.observe(moving, now_s=31)
    assert watchdog.verdict(now_s=60) is None


def test_an_idle_engine_may_stand_still() -> None:
    watchdog = Watchdog(SETTINGS, now_s=0)
    for now_s in range(0, 600, 2):
        watchdog.observe(IDLE, now_s=now_s)
        assert watchdog.verdict(now_s=now_s) is None


def test_work_after_a_long_idle_stretch_gets_the_whole_time() -> None:
    watchdog = Watchdog(SETTINGS, now_s=0)
    watchdog.observe(IDLE, now_s=598)
    look_until(watchdog, busy(0), from_s=600, to_s=626)
    assert watchdog.verdict(now_s=627) is None
    assert watchdog.verdict(now_s=640) is not None


def test_metrics_that_cannot_be_had_are_no_progress() -> None:
    watchdog = Watchdog(SETTINGS, now_s=0)
    watchdog.observe(IDLE, now_s=2)
    look_until(watchdog, None, from_s=10, to_s=30)
    assert watchdog.verdict(now_s=31) is None
    hung = watchdog.verdict(now_s=33)
    assert hung is not None
    assert "metrics" in hung.reason


def test_an_idle_engine_is_asked_for_a_token_and_a_busy_one_is_not() -> None:
    watchdog = Watchdog(SETTINGS, now_s=0)
    watchdog.observe(IDLE, now_s=2)
    assert not watchdog.is_canary_due(now_s=29)
    assert watchdog.is_canary_due(now_s=30)
    watchdog.observe(busy(0), now_s=31)
    assert not watchdog.is_canary_due(now_s=31)


def test_answering_customers_is_as_good_as_a_canary() -> None:
    watchdog = Watchdog(SETTINGS, now_s=0)
    watchdog.observe(IDLE, now_s=2)
    watchdog.observe(replace(IDLE, progress=50), now_s=28)
    assert not watchdog.is_canary_due(now_s=57)
    assert watchdog.is_canary_due(now_s=58)


def test_a_canary_that_is_not_answered_is_a_hang() -> None:
    watchdog = Watchdog(SETTINGS, now_s=0)
    watchdog.canary("no answer of /v1/completions within 15 s", now_s=45)
    hung = watchdog.verdict(now_s=45)
    assert hung is not None
    assert "within 15 s" in hung.reason


def test_small_differences_are_the_same_model_and_large_ones_are_not() -> None:
    reference = [[-1.0, -2.0], [-3.0, -4.0]]
    assert compare([[-1.1, -2.1], [-3.0, -4.0]], reference, 0.15) == pytest.approx(0.1)
    with pytest.raises(GoldenMismatch, match=r"golden prompt 2.*0\.200 nat.*0\.15 is allowed"):
        compare([[-1.0, -2.0], [-3.2, -4.2]], reference, 0.15)


def test_another_number_of_tokens_is_another_tokeniser() -> None:
    with pytest.raises(GoldenMismatch, match="tokeniser"):
        compare([[-1.0]], [[-1.0, -2.0]], 0.15)


def test_numbers_that_are_none_are_never_certified() -> None:
    with pytest.raises(GoldenMismatch, match="NaN"):
        check_answer(1, {}, ForcedAnswer(logprobs=[-1.0, math.nan], text=""))


def test_an_answer_must_contain_what_is_expected_and_is_not_repeated_in_the_reason() -> None:
    check_answer(1, {"expect": "Par[is]+"}, ForcedAnswer(logprobs=[], text="It is Paris."))
    with pytest.raises(GoldenMismatch) as caught:
        check_answer(1, {"expect": "Paris"}, ForcedAnswer(logprobs=[], text="It is Rome."))
    assert "Rome" not in str(caught.value)


def run_file(**changes: int) -> RunFile:
    base = RunFile(
        replica_id="rep-1",
        epoch=3,
        pid=10,
        start_time=5,
        session=10,
        socket="/s",
        environment="vllm-cpu-1",
        arguments=(),
        log_start_bytes=0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["starting", "certifying", "ready", "draining"])
def test_an_engine_that_matches_is_adopted(state: str) -> None:
    assert why_not_adopt(desired(state=state, epoch=3), run_file(), is_alive=True) == ""


@pytest.mark.parametrize(
    ("state", "epoch", "file", "is_alive", "reason"),
    [
        ("ready", 3, None, False, "was not there"),
        ("ready", 3, run_file(pid=0), False, "was not there"),
        ("ready", 3, run_file(), False, "had died"),
        ("ready", 4, run_file(), True, "another start"),
        ("failed", 3, run_file(), True, "another start"),
        ("requested", 3, run_file(), True, "another start"),
    ],
)
def test_an_engine_that_does_not_match_is_not(
    state: str, epoch: int, file: RunFile | None, is_alive: bool, reason: str
) -> None:
    assert reason in why_not_adopt(desired(state=state, epoch=epoch), file, is_alive=is_alive)


def test_a_cpu_is_known_by_its_widest_arithmetic() -> None:
    assert cpu_kind("flags : fpu sse avx2 avx512f avx512_bf16").endswith("-avx512_bf16")
    assert cpu_kind("flags : fpu sse avx2").endswith("-avx2")
    assert cpu_kind("").endswith("-plain")


def test_auto_is_float32_on_a_cpu_that_cannot_do_bfloat16_and_a_stated_format_stays() -> None:
    assert number_format("auto", "cpu-x86_64-avx2") == number_format("auto", "cpu-x86_64-avx512f") == "float32"
    assert number_format("auto", "cpu-x86_64-avx512_bf16") == number_format("auto", "NVIDIA-H100-80GB-HBM3") == "auto"
    assert number_format("bfloat16", "cpu-x86_64-avx2") == "bfloat16"

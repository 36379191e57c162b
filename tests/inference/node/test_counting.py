"""An engine's own counters, and the agent's own work among them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inference.engines.client import EngineClient, EngineRefused, Spent
from inference.engines.vllm import EngineLoad, parse_metrics
from inference.errors import EngineFailed
from inference.models import ReplicaState
from inference.node.own_work import OwnTokens, OwnWork
from inference.node.replica_run import ReplicaRun
from tests.inference.engines.test_client import ScriptedEngine, engine
from tests.inference.node.fakes import Workshop
from tests.inference.node.test_replica_run import look_at, ready, shop, steps

__all__ = ["engine", "shop"]
S = ReplicaState
COUNTED = EngineLoad(num_running=0, num_waiting=0, kv_usage_ratio=0.0, progress=1.0, prompt_tokens=120, completion_tokens=45)


def own(tmp_path: Path) -> OwnWork:
    return OwnWork(tmp_path / "own.json", OwnTokens(epoch=3, began_at_s=1.0))


def range_of(work: OwnWork) -> tuple[int, int, int, int]:
    tokens = work.tokens
    return tokens.prompt_tokens, tokens.max_prompt_tokens, tokens.completion_tokens, tokens.max_completion_tokens


def test_token_counters_are_read_and_missing_ones_are_not_zero() -> None:
    load = parse_metrics(
        'vllm:prompt_tokens_total{engine="0"} 120.0\nvllm:prompt_tokens_total{engine="1"} 3.0\n'
        "vllm:generation_tokens_total 45.0\nvllm:prompt_tokens_cached_total 64.0\n"
    )
    assert (load.prompt_tokens, load.completion_tokens) == (123, 45)
    assert parse_metrics("vllm:num_requests_running 1.0\n").prompt_tokens is None


def test_own_work_is_on_disk_before_it_is_asked_for_and_exact_after_it(tmp_path: Path) -> None:
    work = own(tmp_path)
    with work.request(Spent(50, 1)) as told:
        killed_here = OwnWork.found(tmp_path / "own.json", epoch=3)
        assert killed_here is not None
        assert range_of(killed_here) == (0, 50, 0, 1)
        told.append(Spent(2, 1))
    assert range_of(work) == (2, 2, 1, 1)
    again = OwnWork.found(tmp_path / "own.json", epoch=3)
    assert again is not None
    assert again.tokens == work.tokens
    assert OwnWork.found(tmp_path / "own.json", epoch=4) is None, "of another start"
    assert OwnWork.found(tmp_path / "none.json", epoch=3) is None
    (tmp_path / "own.json").write_text("{")
    assert OwnWork.found(tmp_path / "own.json", epoch=3) is None


@pytest.mark.parametrize(
    ("answers", "failure", "expected"),
    [
        ([(200, {"choices": [{}], "usage": {"prompt_tokens": 2, "completion_tokens": 1}})], None, (2, 2, 1, 1)),
        ([(503, {})], EngineRefused, (0, 0, 0, 0)),
        ([(500, {})], EngineRefused, None),
        ([(200, "<html>")], EngineFailed, None),
    ],
)
def test_what_a_probe_took_is_known_or_may_be_all_it_could_take(
    engine: ScriptedEngine,
    tmp_path: Path,
    answers: list[tuple[int, object]],
    failure: type[Exception] | None,
    expected: tuple[int, int, int, int] | None,
) -> None:
    engine.answers = answers
    client = EngineClient(f"unix:{engine.server_address}", "m")
    work = client.tally = own(tmp_path)
    if failure is None:
        client.one_token(timeout_s=5)
    else:
        with pytest.raises(failure):
            client.one_token(timeout_s=5)
    prompt, most_prompt, completion, most_completion = range_of(work)
    if expected is None:
        assert (prompt, completion, most_completion) == (0, 0, 1)
        assert most_prompt > len("Hello")
    else:
        assert range_of(work) == expected


def test_a_probe_of_an_engine_that_does_not_listen_took_nothing(tmp_path: Path) -> None:
    client = EngineClient(f"unix:{tmp_path}/none.sock", "m")
    work = client.tally = own(tmp_path)
    with pytest.raises(EngineFailed):
        client.one_token(timeout_s=1)
    assert range_of(work) == (0, 0, 0, 0)


def test_a_ready_engine_is_counted_now_and_then_and_a_busy_one_more_seldom(shop: Workshop) -> None:
    run = ready(shop)
    shop.engine.current = COUNTED
    look_at(run, shop, 3)
    (first,) = shop.link.counts
    assert (first.replica, first.epoch, first.prompt_tokens, first.completion_tokens) == ("rep-1", 1, 120, 45)
    assert (first.open_requests, first.is_whole) == (0, True)
    look_at(run, shop, 130)
    assert len(shop.link.counts) in (2, 3), "once a minute, and not where a canary of ours was sent"
    before = len(shop.link.counts)
    progress = iter(range(1, 10_000))
    busy = replace(COUNTED, num_running=2)
    shop.engine.load = lambda *, timeout_s: replace(busy, progress=next(progress))  # type: ignore[method-assign]
    look_at(run, shop, 300)
    assert len(shop.link.counts) == before
    look_at(run, shop, 320)
    assert (len(shop.link.counts), shop.link.counts[-1].open_requests) == (before + 1, 2)


def test_with_the_database_away_the_next_look_tells_it(shop: Workshop) -> None:
    run = ready(shop)
    shop.engine.current = COUNTED
    shop.link.is_away = True
    look_at(run, shop, 5)
    assert shop.link.counts == []
    shop.link.is_away = False
    look_at(run, shop, 2)
    assert len(shop.link.counts) == 1


def test_an_engine_that_tells_no_counters_is_not_counted(shop: Workshop) -> None:
    run = ready(shop)
    look_at(run, shop, 70)
    assert shop.link.counts == []


def test_it_is_counted_a_last_time_before_it_is_stopped(shop: Workshop) -> None:
    run = ready(shop)
    shop.engine.current = COUNTED
    run.sync(replace(run.desired, is_wanted=False), shop.clock.monotonic_s())
    steps(run, shop, S.STOPPED)
    assert [count.completion_tokens for count in shop.link.counts] == [45]


@pytest.mark.parametrize(
    ("lose", "is_whole"),
    [(lambda _path: None, True), (Path.unlink, False), (lambda path: path.write_text(other_start(path)), False)],
)
def test_an_adopted_engine_is_counted_whole_only_where_own_work_was(
    shop: Workshop,
    lose: Callable[[Path], object],
    is_whole: bool,
) -> None:
    first = ready(shop)
    assert first.process is not None
    lose(shop.tools().files.own / "rep-1.json")
    second = ReplicaRun(shop.tools(), first.desired)
    second.adopt(first.process, shop.clock.monotonic_s())
    shop.engine.current = COUNTED
    look_at(second, shop, 5)
    assert shop.link.counts[-1].is_whole is is_whole


def other_start(path: Path) -> str:
    return json.dumps(json.loads(path.read_text()) | {"epoch": 7})

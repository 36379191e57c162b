"""A replica's whole life with twins of launcher, engine and registry."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.engines.environments import EngineKind
from inference.engines.vllm import EngineLoad, EngineSettings
from inference.errors import BadWeights
from inference.models import ReplicaState
from inference.node.child import ChildFailed
from inference.node.engine_process import EngineProcess
from inference.node.jobs import Job
from inference.node.node_settings import NodeSettings
from inference.node.replica_run import ReplicaRun
from inference.node.weight_files import Staged
from inference.services.node import Desired
from tests.inference.node.fakes import LaterJobs, Workshop, desired

S = ReplicaState
TO_READY = [S.STAGING, S.STARTING, S.CERTIFYING, S.READY]


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(folder=tmp_path)


def start(shop: Workshop, row: Desired | None = None) -> ReplicaRun:
    return ReplicaRun(shop.tools(), row or desired())


def steps(run: ReplicaRun, shop: Workshop, until: ReplicaState, limit: int = 20) -> ReplicaRun:
    for _ in range(limit):
        if run.state == until:
            return run
        run.step(shop.clock.monotonic_s())
    raise AssertionError(f"{run.state} after {limit} steps, not {until}: {shop.link.moves}")


def ready(shop: Workshop, row: Desired | None = None) -> ReplicaRun:
    return steps(start(shop, row), shop, S.READY)


def test_a_requested_replica_becomes_ready_by_every_state_on_the_way(shop: Workshop) -> None:
    run = ready(shop)
    assert shop.link.states == TO_READY
    assert run.desired.epoch == 1
    assert run.desired.url == f"unix:{run.tools.sockets}/rep-1.sock"
    assert shop.link.digests == ["d1"]
    assert (shop.engine.num_asked, shop.engine.num_warmed) == (1, 1)
    assert list(run.tools.files.read_runs()) == ["rep-1"]


def test_a_replica_nobody_wants_any_more_is_stopped_without_a_start(shop: Workshop) -> None:
    steps(start(shop, desired(is_wanted=False)), shop, S.STOPPED)
    assert shop.launcher.launched == []


def test_the_reason_says_how_far_staging_is(shop: Workshop) -> None:
    shop.jobs = LaterJobs()
    run = start(shop)
    run.step(shop.clock.monotonic_s())
    assert run._job is not None
    run._job.say("downloading 40 of 93 MB")
    run.step(shop.clock.monotonic_s())
    assert shop.link.last_reason == "downloading 40 of 93 MB"


@pytest.mark.parametrize("how", ["its node is taken for lost", "its row is gone"])
def test_an_engine_that_is_being_started_when_it_is_given_up_does_not_come_up_unknown(shop: Workshop, how: str) -> None:
    jobs = shop.jobs = LaterJobs()
    run = start(shop)
    run.step(0)
    jobs.finish()
    run.step(0)
    assert (run.state, run.process, len(jobs.waiting)) == (S.STARTING, None, 1)
    if how == "its row is gone":
        assert not run.abandon()
    else:
        run.sync(replace(run.desired, state=S.FAILED), 0)
        run.step(0)
        assert run.state == S.FAILED, "not before the engine has ended"
    jobs.finish()
    assert (len(shop.launcher.launched), shop.launcher.alive) == (1, set())
    assert run.tools.files.read_runs() == {}
    if how == "its row is gone":
        assert run.abandon()
    else:
        run.step(0)
        run.step(0)
        assert run.state == S.REQUESTED


@pytest.mark.parametrize("state", [S.STAGING, S.STARTING, S.CERTIFYING])
def test_one_that_is_not_wanted_any_more_stops_on_its_way(shop: Workshop, state: ReplicaState) -> None:
    run = steps(start(shop), shop, state)
    run.sync(replace(run.desired, is_wanted=False), 0)
    steps(run, shop, S.STOPPED)
    assert not shop.launcher.alive
    assert run.tools.files.read_runs() == {}


def test_a_crash_is_told_with_its_signal_and_started_again_after_a_pause(shop: Workshop) -> None:
    run = ready(shop)
    shop.launcher.crash(leaves_engine_core=True)
    run.step(shop.clock.monotonic_s())
    assert run.state == S.FAILED
    assert "killed by signal 9 (SIGKILL)" in shop.link.last_reason
    assert shop.launcher.leftover == set(), "what the crash left of its session is killed"
    for _ in range(3):
        run.step(shop.clock.monotonic_s())
    assert run.state == S.FAILED
    shop.clock.advance(1.0)
    steps(run, shop, S.READY)
    assert run.desired.epoch == 2
    assert len(shop.launcher.launched) == 2


def test_it_does_not_start_again_before_the_last_process_is_gone(shop: Workshop) -> None:
    run = ready(shop)
    later = LaterJobs()
    run.tools = replace(run.tools, jobs=later)
    shop.launcher.crash()
    run.step(shop.clock.monotonic_s())
    shop.clock.advance(100)
    run.step(shop.clock.monotonic_s())
    assert run.state == S.FAILED
    later.finish()
    run.step(shop.clock.monotonic_s())
    run.step(shop.clock.monotonic_s())
    assert shop.link.states[-1] == S.REQUESTED


def test_crashes_in_a_row_wait_longer_each_time(shop: Workshop) -> None:
    run = ready(shop)
    for pause_s in (1, 2, 4, 8):
        shop.launcher.crash()
        steps(run, shop, S.FAILED)
        shop.clock.advance(pause_s - 0.5)
        run.step(shop.clock.monotonic_s())
        run.step(shop.clock.monotonic_s())
        assert run.state == S.FAILED
        shop.clock.advance(0.5)
        steps(run, shop, S.READY)


def test_bad_weights_are_final_until_an_operator_asks_again(shop: Workshop) -> None:
    def changed(_desired: Desired, _job: Job[Staged]) -> Staged:
        raise BadWeights("the weights changed since this version was registered")

    shop.stage = changed
    run = steps(start(shop), shop, S.FAILED)
    shop.clock.advance(10_000)
    run.step(shop.clock.monotonic_s())
    assert run.state == S.FAILED
    assert "the weights changed" in shop.link.last_reason
    run.sync(replace(run.desired, state=S.REQUESTED), shop.clock.monotonic_s())
    shop.stage = Workshop.stage
    steps(run, shop, S.READY)


def test_weights_that_could_not_be_fetched_are_tried_again(shop: Workshop) -> None:
    def offline(_desired: Desired, _job: Job[Staged]) -> Staged:
        raise ChildFailed("exit status 1: no route to host")

    shop.stage = offline
    run = steps(start(shop), shop, S.FAILED)
    assert "no route" in shop.link.last_reason
    shop.stage = Workshop.stage
    shop.clock.advance(1.0)
    steps(run, shop, S.READY)


def test_arguments_that_are_ours_fail_for_good_with_the_flag(shop: Workshop) -> None:
    run = steps(start(shop, desired(engine_args=["--port", "1"])), shop, S.FAILED)
    assert "--port" in shop.link.last_reason
    assert run.is_held


def test_an_engine_that_cannot_be_started_is_tried_again(shop: Workshop) -> None:
    shop.launcher.failure = "cannot start python: no such file"
    run = steps(start(shop), shop, S.FAILED)
    assert "cannot start python" in shop.link.last_reason
    assert not run.is_held


def test_one_that_never_answers_fails_with_the_limit_in_the_reason(shop: Workshop) -> None:
    shop.settings = NodeSettings(start_limit_s=0.0)
    shop.engine.failure = "/v1/completions answered with HTTP 503"
    steps(start(shop), shop, S.FAILED)
    assert "no answer to a one-token request within 0 s (last: /v1/completions answered with HTTP 503)" in shop.link.last_reason
    assert S.CERTIFYING not in shop.link.states
    assert not shop.launcher.alive, "it is not left running"


GOLDEN = [{"prompt": "p", "number": 0, "expect": "Paris"}]


def test_the_first_certified_replica_leaves_the_reference_and_the_next_is_held_to_it(shop: Workshop) -> None:
    ready(shop, desired(golden_prompts=GOLDEN))
    assert list(shop.link.references.values()) == [[[-1.0, -2.0, -3.0]]]
    shop.engine.logprobs = [[-1.0, -2.0, -3.9]]
    run = steps(start(shop, desired(replica_id="rep-2", golden_prompts=GOLDEN)), shop, S.FAILED)
    assert "differ from the certified ones by 0.300 nat" in shop.link.last_reason
    assert run.is_held
    assert shop.link.states.count(S.READY) == 1, "it never took traffic"


def test_an_answer_that_misses_the_expectation_takes_no_traffic_and_leaves_no_reference(shop: Workshop) -> None:
    shop.engine.answer = "Rome"
    run = steps(start(shop, desired(golden_prompts=GOLDEN)), shop, S.FAILED)
    assert run.is_held
    assert shop.link.references == {}
    assert S.READY not in shop.link.states


def look_at(run: ReplicaRun, shop: Workshop, duration_s: float) -> None:
    for _ in range(int(duration_s)):
        shop.clock.advance(1.0)
        run.step(shop.clock.monotonic_s())
        if run.state != S.READY:
            return


def test_a_hung_engine_is_killed_and_started_again(shop: Workshop) -> None:
    run = ready(shop)
    shop.engine.current = EngineLoad(num_running=1, num_waiting=0, kv_usage_ratio=0.5, progress=9)
    look_at(run, shop, 60)
    assert run.state == S.FAILED
    assert "it hangs: no progress" in shop.link.last_reason
    assert ("kill", 101) in shop.launcher.signals
    shop.clock.advance(1.0)
    steps(run, shop, S.READY)


def test_an_idle_engine_is_asked_for_a_token_now_and_then_and_hangs_without_one(shop: Workshop) -> None:
    run = ready(shop)
    asked = shop.engine.num_asked
    look_at(run, shop, 100)
    assert run.state == S.READY
    assert 2 <= shop.engine.num_asked - asked <= 4
    shop.engine.failure = "no answer of /v1/completions within 15 s"
    look_at(run, shop, 40)
    assert shop.link.states[-1] == S.FAILED
    assert "within 15 s" in shop.link.last_reason


def test_a_canary_that_waits_behind_customers_is_no_hang(shop: Workshop) -> None:
    run = ready(shop)
    shop.engine.failure = "no answer of /v1/completions within 15 s"
    progress = iter(range(1, 1000))

    def moving_load(*, timeout_s: float) -> EngineLoad:
        return EngineLoad(num_running=0, num_waiting=0, kv_usage_ratio=0.0, progress=next(progress))

    shop.engine.load = moving_load  # type: ignore[method-assign]
    assert run.watchdog is not None
    run.watchdog._answered_s -= 100
    look_at(run, shop, 10)
    assert run.state == S.READY


def test_drain_publishes_first_waits_for_gateways_and_then_for_the_requests(shop: Workshop) -> None:
    run = ready(shop)
    order: list[str] = []
    loads = iter([EngineLoad(2, 1, 0.1, 1.0), EngineLoad(1, 0, 0.1, 2.0)] + [EngineLoad(0, 0, 0.0, 3.0)] * 3)

    def next_load(*, timeout_s: float) -> EngineLoad:
        order.append("scrape")
        return next(loads)

    shop.engine.load = next_load  # type: ignore[method-assign]
    run.sync(replace(run.desired, is_wanted=False), shop.clock.monotonic_s())
    run.step(shop.clock.monotonic_s())
    assert (shop.link.states[-1], order, shop.acknowledged) == (S.DRAINING, [], [])
    steps(run, shop, S.STOPPED)
    assert shop.acknowledged == [(7, NodeSettings().drain_ack_s)]
    assert len(order) == 5
    assert shop.launcher.signals == [("term", 101)]
    assert run.tools.files.read_runs() == {}


def test_one_that_does_not_heed_sigterm_is_killed(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ready(shop)
    shop.launcher.ignores_sigterm = True
    monkeypatch.setattr("inference.node.replica_run.TERM_MARGIN_S", 0.1)
    run.tools = replace(
        run.tools, settings=replace(run.tools.settings, engine=replace(run.tools.settings.engine, shutdown_timeout_s=0))
    )
    run.sync(replace(run.desired, is_wanted=False), shop.clock.monotonic_s())
    steps(run, shop, S.STOPPED)
    assert shop.launcher.signals == [("term", 101), ("kill", 101)]


def test_an_adopted_engine_stays_ready_and_is_asked_for_a_token_at_once(shop: Workshop) -> None:
    first = ready(shop)
    assert first.process is not None
    asked, moves = shop.engine.num_asked, len(shop.link.moves)
    second = ReplicaRun(shop.tools(), first.desired)
    second.adopt(EngineProcess(second.tools, first.process.run, shop.launcher, Path("x")), shop.clock.monotonic_s())
    for _ in range(3):
        second.step(shop.clock.monotonic_s())
    assert shop.engine.num_asked == asked + 1
    assert len(shop.link.moves) == moves
    assert len(shop.launcher.launched) == 1


def test_an_adopted_engine_that_does_not_answer_is_started_again(shop: Workshop) -> None:
    first = ready(shop)
    assert first.process is not None
    shop.engine.failure = "no answer of /v1/completions within 15 s"
    second = ReplicaRun(shop.tools(), first.desired)
    second.adopt(EngineProcess(second.tools, first.process.run, shop.launcher, Path("x")), shop.clock.monotonic_s())
    steps(second, shop, S.FAILED)
    shop.engine.failure = ""
    shop.clock.advance(1.0)
    steps(second, shop, S.READY)
    assert len(shop.launcher.launched) == 2


@pytest.mark.parametrize("state", [S.STAGING, S.STARTING, S.CERTIFYING, S.READY])
def test_what_was_under_way_when_the_agent_died_starts_again(shop: Workshop, state: ReplicaState) -> None:
    run = start(shop, desired(state=state, epoch=4))
    run.lost("its engine had died when the node agent started", shop.clock.monotonic_s())
    assert run.state == S.FAILED
    shop.clock.advance(1.0)
    steps(run, shop, S.READY)
    assert run.desired.epoch == 5


def test_a_drain_whose_engine_is_gone_is_over(shop: Workshop) -> None:
    run = start(shop, desired(state=S.DRAINING, is_wanted=False))
    run.lost("its engine had died when the node agent started", shop.clock.monotonic_s())
    steps(run, shop, S.STOPPED)


def test_someone_elses_word_counts(shop: Workshop) -> None:
    run = ready(shop)
    run.sync(replace(run.desired, state=S.FAILED), shop.clock.monotonic_s())
    run.step(shop.clock.monotonic_s())
    assert not shop.launcher.alive
    steps(run, shop, S.READY)
    assert len(shop.launcher.launched) == 2


def test_a_row_that_is_gone_takes_its_engine_along(shop: Workshop) -> None:
    run = ready(shop)
    assert run.abandon() or run.abandon()
    assert not shop.launcher.alive


def sync(run: ReplicaRun, shop: Workshop, **changes: Any) -> None:
    run.sync(replace(run.desired, **changes), shop.clock.monotonic_s())


def test_a_replica_that_stands_by_is_certified_and_serves_as_soon_as_it_is_wanted_in_rotation(shop: Workshop) -> None:
    run = steps(start(shop, desired(is_standby=True)), shop, S.WARM)
    assert shop.link.states == [*TO_READY[:-1], S.WARM]
    sync(run, shop, is_standby=False)
    run.step(shop.clock.monotonic_s())
    assert run.state == S.READY
    assert len(shop.launcher.launched) == 1


def test_a_serving_replica_that_is_to_stand_by_is_drained_and_kept(shop: Workshop) -> None:
    run = ready(shop)
    sync(run, shop, is_standby=True)
    steps(run, shop, S.WARM)
    assert shop.link.states == [*TO_READY, S.DRAINING, S.WARM]
    assert run.process is not None and run.process.is_alive()


def test_a_warm_replica_that_nobody_wants_stops_without_serving(shop: Workshop) -> None:
    run = steps(start(shop, desired(is_standby=True)), shop, S.WARM)
    sync(run, shop, is_wanted=False)
    steps(run, shop, S.STOPPED)
    assert S.READY not in shop.link.states


def test_a_warm_replica_whose_engine_dies_fails(shop: Workshop) -> None:
    run = steps(start(shop, desired(is_standby=True)), shop, S.WARM)
    shop.launcher.crash()
    steps(run, shop, S.FAILED)


@pytest.fixture
def sleeper(shop: Workshop) -> Workshop:
    """On CUDA, where replicas that stand by sleep."""
    shop.kind = EngineKind.CUDA
    shop.settings = NodeSettings(engine=EngineSettings(sleeps=True))
    return shop


def step(run: ReplicaRun, shop: Workshop, times: int = 1) -> None:
    for _ in range(times):
        run.step(shop.clock.monotonic_s())


def asleep(shop: Workshop) -> ReplicaRun:
    run = steps(start(shop, desired(is_standby=True)), shop, S.WARM)
    step(run, shop, 2)
    assert shop.engine.turns == ["sleep"]
    return run


def test_a_replica_that_stands_by_sleeps_and_is_woken_and_asked_for_a_token_before_it_serves(sleeper: Workshop) -> None:
    run = asleep(sleeper)
    (spec,) = sleeper.launcher.launched
    assert "--enable-sleep-mode" in spec.arguments and spec.process_environment["VLLM_SERVER_DEV_MODE"] == "1"
    num_asked = sleeper.engine.num_asked
    sync(run, sleeper, is_standby=False)
    step(run, sleeper)
    assert (run.state, sleeper.engine.turns) == (S.WARM, ["sleep", "wake up"]), "it serves once it is awake"
    steps(run, sleeper, S.READY)
    assert sleeper.engine.num_asked == num_asked + 1


def test_one_that_sleeps_is_sent_no_canary_and_its_metrics_are_watched(sleeper: Workshop) -> None:
    run = asleep(sleeper)
    num_asked = sleeper.engine.num_asked
    for _ in range(10):
        sleeper.clock.advance(run.tools.settings.watchdog.canary_every_s)
        step(run, sleeper, 2)
    assert (run.state, sleeper.engine.num_asked, sleeper.engine.turns) == (S.WARM, num_asked, ["sleep"])
    assert run.watchdog is not None and run.watchdog.load is not None


def finish_until(run: ReplicaRun, shop: Workshop, jobs: LaterJobs, state: ReplicaState) -> None:
    for _ in range(20):
        if run.state == state:
            return
        jobs.finish()
        step(run, shop)
    raise AssertionError(f"{run.state}, not {state}")


def test_what_is_wanted_while_it_is_sent_to_sleep_waits_for_that(sleeper: Workshop) -> None:
    jobs = sleeper.jobs = LaterJobs()
    run = start(sleeper, desired(is_standby=True))
    finish_until(run, sleeper, jobs, S.WARM)
    step(run, sleeper)
    sync(run, sleeper, is_standby=False)
    step(run, sleeper, 3)
    assert (run.state, sleeper.engine.turns, len(jobs.waiting)) == (S.WARM, [], 1)
    finish_until(run, sleeper, jobs, S.READY)
    assert sleeper.engine.turns == ["sleep", "wake up"]


def test_one_that_cannot_be_woken_is_started_anew(sleeper: Workshop) -> None:
    """As where another engine has taken the memory meanwhile."""
    run = asleep(sleeper)
    sleeper.engine.cannot_wake = "/wake_up answered with HTTP 500"
    sync(run, sleeper, is_standby=False)
    steps(run, sleeper, S.FAILED)
    assert "wake_up" in sleeper.link.last_reason and not run.is_held
    sleeper.clock.advance(1.0)
    steps(run, sleeper, S.READY)
    assert len(sleeper.launcher.launched) == 2


@pytest.mark.parametrize(("kind", "sleeps"), [(EngineKind.CPU, True), (EngineKind.CUDA, False)])
def test_without_the_mode_nothing_sleeps(shop: Workshop, kind: EngineKind, sleeps: bool) -> None:
    shop.kind, shop.settings = kind, NodeSettings(engine=EngineSettings(sleeps=sleeps))
    run = steps(start(shop, desired(is_standby=True)), shop, S.WARM)
    step(run, shop, 3)
    (spec,) = shop.launcher.launched
    assert "--enable-sleep-mode" not in spec.arguments and "VLLM_SERVER_DEV_MODE" not in spec.process_environment
    sync(run, shop, is_standby=False)
    steps(run, shop, S.READY)
    assert shop.engine.turns == []

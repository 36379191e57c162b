"""Launchers over small scripts in vLLM's place; the real ones are in node/test_real_engines.py."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inference.engines.environments import EngineEnvironment, EngineKind
from inference.engines.vllm import TAG_VARIABLE
from inference.launchers import parser_child, prefork_launcher, processes
from inference.launchers.base import LaunchFailed, LaunchSpec
from inference.launchers.exec_launcher import ExecLauncher
from inference.launchers.prefork_launcher import PreforkLauncher

TAG = f"test-launchers-{os.getpid()}/node"
SCRIPT = prefork_launcher.SCRIPT
# prefork.py with a server of three lines: it prints, starts a child in its session, and waits.
FAKE_IMPORT = """
import sys, types
sys.path.insert(0, {folder!r})
sys.modules["setproctitle"] = types.SimpleNamespace(setproctitle=lambda title: None)
source = open({script!r}).read()
namespace = {{"__name__": "prefork"}}
exec(compile(source, {script!r}, "exec"), namespace)
def server():
    import os, time
    print("serving", sys.argv[1:], flush=True)
    if "--die" in sys.argv:
        raise RuntimeError("no such model")
    if not os.fork():
        time.sleep(60)
    time.sleep(60)
namespace["import_engine"] = lambda: server
namespace["main"]()
"""


def eventually(check: Callable[[], bool], within_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.01)


@pytest.fixture
def environment(tmp_path: Path) -> EngineEnvironment:
    """Its `python -m <server module>` is a script that sleeps."""
    (tmp_path / "env/bin").mkdir(parents=True)
    python = tmp_path / "env/bin/python"
    python.write_text(f"#!/bin/sh\necho plain \"$@\"\nexec {sys.executable} -c 'import time; time.sleep(60)'\n")
    python.chmod(0o755)
    return EngineEnvironment(name="vllm-cpu-1", folder=tmp_path / "env", kind=EngineKind.CPU)


@pytest.fixture
def forking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineEnvironment:
    script = tmp_path / "fake_prefork.py"
    script.write_text(FAKE_IMPORT.format(script=str(SCRIPT), folder=str(SCRIPT.parent)))
    monkeypatch.setattr(prefork_launcher, "SCRIPT", script)
    (tmp_path / "fork/bin").mkdir(parents=True)
    (tmp_path / "fork/bin/python").symlink_to(sys.executable)
    return EngineEnvironment(name="vllm-cpu-2", folder=tmp_path / "fork", kind=EngineKind.CPU)


CHECKER = """
import json, os, sys
def check(argv):
    if "--die" in argv:
        os._exit(3)
    return f"unknown {argv[-1]} in {os.environ['KIND']}" if "--bad" in argv else ""
if __name__ == "__main__":
    print("chatter")
    print(json.dumps({"refused": check(json.loads(sys.argv[1]))}))
"""


@pytest.fixture
def checker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of check_args.py."""
    script = tmp_path / "check_args.py"
    script.write_text(CHECKER)
    monkeypatch.setattr(prefork_launcher, "CHECK_SCRIPT", script)
    monkeypatch.setattr(parser_child, "SCRIPT", script)


@pytest.mark.usefixtures("checker")
@pytest.mark.parametrize("kind", [ExecLauncher, PreforkLauncher])
def test_the_engines_parser_is_asked_in_a_child(
    forking: EngineEnvironment, tmp_path: Path, kind: type[ExecLauncher] | type[PreforkLauncher]
) -> None:
    launcher = PreforkLauncher(TAG, tmp_path) if kind is PreforkLauncher else ExecLauncher(TAG)
    variables = {TAG_VARIABLE: TAG, "PATH": os.environ["PATH"], "KIND": "child"}
    with contextlib.closing(launcher):
        assert launcher.refusal(forking, variables, ["--good"]) == ""
        assert launcher.refusal(forking, variables, ["--bad", "--x"]) == "unknown --x in child"
        with pytest.raises(LaunchFailed, match="could not be asked"):
            launcher.refusal(forking, variables, ["--die"])
        assert launcher.refusal(forking, variables, ["--good"]) == "", "and it goes on"


@pytest.mark.usefixtures("checker")
def test_without_the_forking_process_the_parser_is_asked_the_plain_way(
    forking: EngineEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(1)")
    monkeypatch.setattr(prefork_launcher, "SCRIPT", broken)
    variables = {TAG_VARIABLE: TAG, "PATH": os.environ["PATH"], "KIND": "child"}
    with contextlib.closing(PreforkLauncher(TAG, tmp_path)) as launcher:
        assert launcher.refusal(forking, variables, ["--bad", "--x"]) == "unknown --x in child"


def spec_of(environment: EngineEnvironment, log: Path, *arguments: str) -> LaunchSpec:
    variables = {TAG_VARIABLE: TAG, "PATH": os.environ["PATH"]}
    return LaunchSpec("rep-1", environment, arguments, variables, log)


def nothing_tagged() -> bool:
    """Kills until it is so: one of them may be forking just now."""
    left = processes.tagged(TAG)
    for stat in left:
        processes.send_signal(stat, signal.SIGKILL)
    return not left


@pytest.fixture
def plain() -> Iterator[ExecLauncher]:
    launcher = ExecLauncher(TAG)
    yield launcher
    eventually(nothing_tagged)
    launcher.close()


@pytest.fixture
def prefork(tmp_path: Path, plain: ExecLauncher) -> Iterator[PreforkLauncher]:
    launcher = PreforkLauncher(TAG, tmp_path)
    yield launcher
    launcher.close()


def test_an_engine_leads_a_session_of_its_own_and_its_output_goes_to_its_log(
    plain: ExecLauncher, environment: EngineEnvironment, tmp_path: Path
) -> None:
    log = tmp_path / "r.log"
    log.write_text("before\n")
    running = plain.launch(spec_of(environment, log, "--flag", "1"))
    eventually(lambda: "--flag 1" in log.read_text())
    assert log.read_text().startswith("before\n")
    stat = processes.read_stat(running.pid)
    assert stat is not None
    assert stat.session == running.session == running.pid
    assert plain.is_alive(running)
    plain.terminate(running)
    eventually(lambda: not plain.is_alive(running))
    assert plain.exit_status(running) == -signal.SIGTERM
    assert plain.is_gone(running)


def test_an_interpreter_that_is_not_there_is_a_reason(
    plain: ExecLauncher, environment: EngineEnvironment, tmp_path: Path
) -> None:
    environment.python.unlink()
    with pytest.raises(LaunchFailed, match="No such file"):
        plain.launch(spec_of(environment, tmp_path / "r.log"))


def test_a_forked_engine_leads_its_session_and_kill_takes_all_of_it(
    prefork: PreforkLauncher, forking: EngineEnvironment, tmp_path: Path
) -> None:
    running = prefork.launch(spec_of(forking, tmp_path / "r.log", "--model", "m"))
    eventually(lambda: len(processes.members(running.session, TAG)) == 2)
    assert "serving ['--model', 'm']" in (tmp_path / "r.log").read_text()
    assert prefork.prefork_pids()
    os.kill(running.pid, signal.SIGKILL)
    eventually(lambda: not prefork.is_alive(running))
    assert not prefork.is_gone(running), "its child lives on"
    assert prefork.exit_status(running) == -signal.SIGKILL
    prefork.kill(running)
    eventually(lambda: prefork.is_gone(running))
    assert prefork.prefork_pids(), "the forking process is another session"


def test_a_forked_server_that_fails_says_why_in_its_log(
    prefork: PreforkLauncher, forking: EngineEnvironment, tmp_path: Path
) -> None:
    running = prefork.launch(spec_of(forking, tmp_path / "r.log", "--die"))
    eventually(lambda: not prefork.is_alive(running))
    assert prefork.exit_status(running) == 1
    assert "RuntimeError: no such model" in (tmp_path / "r.log").read_text()


def test_engines_live_on_when_the_launcher_lets_go_and_the_forking_process_ends(
    prefork: PreforkLauncher, forking: EngineEnvironment, tmp_path: Path
) -> None:
    running = prefork.launch(spec_of(forking, tmp_path / "r.log"))
    (pid,) = prefork.prefork_pids()
    prefork.close()
    assert processes.read_stat(pid) is None
    assert prefork.is_alive(running)
    assert processes.tag_of(running.pid) == TAG


def test_a_dead_forking_process_is_replaced(prefork: PreforkLauncher, forking: EngineEnvironment, tmp_path: Path) -> None:
    first = prefork.launch(spec_of(forking, tmp_path / "r.log"))
    (pid,) = prefork.prefork_pids()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: prefork.prefork_pids() == [])
    second = prefork.launch(spec_of(forking, tmp_path / "r.log"))
    assert prefork.prefork_pids() not in ([], [pid])
    assert prefork.is_alive(first)
    assert prefork.is_alive(second)


def test_where_nothing_can_be_forked_engines_are_started_the_plain_way(
    prefork: PreforkLauncher, environment: EngineEnvironment, tmp_path: Path
) -> None:
    """Its interpreter cannot run prefork.py: this one's only prints its arguments."""
    script = environment.python.read_text()
    environment.python.write_text(script.replace("#!/bin/sh\n", '#!/bin/sh\ncase "$*" in *control-fd*) exit 3;; esac\n'))
    running = prefork.launch(spec_of(environment, tmp_path / "r.log", "--flag"))
    eventually(lambda: "plain -m vllm" in (tmp_path / "r.log").read_text())
    assert prefork.is_alive(running)
    assert prefork.prefork_pids() == []
    with contextlib.suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGKILL)
    eventually(lambda: not prefork.is_alive(running))
    assert prefork.exit_status(running) == -signal.SIGKILL

"""The newcomer's way on the embedded default: up, a streamed token, up again, down; and nothing is left."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headway.home import Home
from headway.processes import end, is_running, tagged
from tests.e2e.installation import Installation, eventually


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path, database_url="", is_plain=True)
    yield made
    made.manage("down")


def running(installation: Installation) -> list[int]:
    identity = Home(installation.home).installation_id
    return tagged("HEADWAY_DAEMON_TAG", identity) + tagged("HEADWAY_REPLICA_TAG", f"{identity}/test-node")


def stream(installation: Installation, key: str) -> str:
    body: dict[str, Any] = {
        "model": "smollm2-135m",
        "stream": True,
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "hi"}],
    }
    url = f"{installation.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers={"authorization": f"Bearer {key}"}, timeout=60).text


def test_up_serves_a_second_up_reuses_and_down_leaves_nothing(installation: Installation) -> None:
    made = json.loads(installation.manage("up", "--json", timeout_s=400))
    assert stream(installation, made["key"]).endswith("data: [DONE]\n\n")
    assert httpx.get(f"http://127.0.0.1:{installation.site_port}/admin/login/", timeout=60).status_code == 200
    pids = running(installation)

    started_s = time.monotonic()
    again = json.loads(installation.manage("up", "--json", timeout_s=60))
    assert again == made
    assert time.monotonic() - started_s < 30
    assert set(pids) == set(running(installation)), "the second up starts nothing"

    other_ports = subprocess.run(
        installation.command("up"),
        env={**installation.environment, "HEADWAY_GATEWAY_PORT": str(installation.port + 1)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert other_ports.returncode == 1
    assert "runs already, on other ports" in other_ports.stderr
    installation.manage("scale", "tiny", "--replicas", "0")
    assert json.loads(installation.manage("up", "--json", timeout_s=60)) == made, "a model scaled to nothing is not waited for"

    installation.manage("down")
    eventually(lambda: running(installation) == [], within_s=5, what="nothing is left")
    assert len(installation.usage("demo")) >= 3
    assert made["key"] not in _everything_logged(installation.home)


def test_a_killed_supervisor_is_settled_by_the_next_up(installation: Installation) -> None:
    made = json.loads(installation.manage("up", "--json", timeout_s=400))
    supervisor = int((Home(installation.home).run / "supervisord.pid").read_text())
    end([supervisor], grace_s=0)  # straight to SIGKILL
    assert not is_running(supervisor)
    assert running(installation), "its daemons live on without it"
    again = json.loads(installation.manage("up", "--json", timeout_s=120))
    assert again == made
    assert stream(installation, made["key"]).endswith("data: [DONE]\n\n")
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in running(installation)]
    for each in (b"\0gateway\0", b"redis.conf"):
        assert sum(each in command for command in commands) == 1, (each, commands)


def test_ctrl_c_while_it_starts_stops_everything(installation: Installation) -> None:
    up = installation.start("up")
    eventually(lambda: len(running(installation)) >= 4, within_s=60, what="the daemons are starting")
    up.send_signal(signal.SIGINT)
    assert up.wait(timeout=90) == 130
    eventually(lambda: running(installation) == [], within_s=5, what="nothing is left")
    installation.processes.clear()


def test_a_taken_port_is_a_clear_message(installation: Installation) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", installation.port))
        other.listen()
        done = subprocess.run(
            installation.command("up"), env=installation.environment, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 1
    assert f"port {installation.port} on 127.0.0.1 is taken" in done.stderr
    assert "HEADWAY_GATEWAY_PORT" in done.stderr
    assert running(installation) == []


def _everything_logged(home: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in (home / "logs").iterdir())

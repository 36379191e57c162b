"""The server around the application: ports, drain, metrics, and the command in a process of its own."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prometheus_client import start_http_server
from uvicorn import Config, Server

from headway.errors import ConfigurationError
from inference.gateway import server
from inference.gateway.app import tidy_path
from inference.gateway.ends import Cut
from inference.gateway.listening import bind
from inference.gateway.parts import GatewayTunables
from inference.wiring import gateway_name
from tests.fakes.gateway import GatewayUnderTest, basic, model_changes, running_gateway, until
from tests.fakes.migrated import migrated_sqlite
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import EVENT_STREAM_HEAD, Script, ScriptedReplica, chat_events, piece, streamed

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("path", "tidy"),
    [("/", "/"), ("", "/"), ("//", "/"), ("/a/", "/a"), ("//a///b//", "/a/b"), ("/v1/models/o/n", "/v1/models/o/n")],
)
def test_paths_are_tidied(path: str, tidy: str) -> None:
    assert tidy_path(path) == tidy


def test_a_gateways_name_is_its_own_short_and_fit_for_a_folder() -> None:
    name = gateway_name("node/" + "x" * 200)
    assert len(name) <= 64
    assert "/" not in name
    assert name != gateway_name("node/" + "x" * 200)


def test_a_taken_port_is_one_clear_line() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"cannot listen on 127.0.0.1:{port}: the port is taken"):
            bind("127.0.0.1", port)


def test_a_host_that_is_none_is_one_clear_line() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on no\.such\.host\.invalid:1"):
        bind("no.such.host.invalid", 1)


class Listens(Exception):
    """The worker has come so far."""


@pytest.mark.parametrize(("found_after_s", "told"), [(0.1, ""), (60.0, "no dispatcher was found yet")])
async def test_a_worker_of_several_listens_once_it_is_ready_or_after_a_while(
    monkeypatch: pytest.MonkeyPatch, found_after_s: float, told: str
) -> None:
    """Before, what had waited in its place's socket was refused for a dispatcher that it found a moment later."""
    missing = ["no dispatcher was found yet"]

    async def opens(_on_lost: object) -> None:
        asyncio.get_running_loop().call_later(found_after_s, missing.clear)

    async def listens(_server: object, _sockets: object = None) -> None:
        raise Listens("".join(missing))

    monkeypatch.setattr(Server, "startup", listens)
    monkeypatch.setattr(server, "LISTEN_WITHIN_S", 1.0)
    parts: Any = SimpleNamespace(brain=SimpleNamespace(open=opens), why_not_ready=lambda: "".join(missing))
    link: Any = object()
    with pytest.raises(Listens) as raised:
        await server.GatewayServer(Config(tidy_path), parts, lambda: None, link).startup()
    assert str(raised.value) == told


# -- drain


async def start(gateway: GatewayUnderTest, **more: Any) -> RawClient:
    client = await RawClient.connect(gateway.port)
    await client.send("POST", "/v1/chat/completions", gateway.auth, json.dumps(basic(**more)).encode())
    return client


async def test_b54_a_drain_lets_running_answers_end(replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    first, *rest = chat_events()
    replica.script(streamed([first, rest[0], go, *rest[1:]]))
    async with running_gateway(model_changes("m", [replica.url]), tunables=GatewayTunables(drain_s=5.0)) as gateway:
        client = await start(gateway, stream=True)
        await client.read_until(b"Hel")
        stopping = asyncio.create_task(gateway.stop())
        await until(lambda: gateway.parts.is_draining)
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(gateway.port)
        go.set()
        await client.read_until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await stopping
        await client.close()
    assert gateway.journal.closed[0].end_state == "done"


@pytest.mark.parametrize("phase", ["streaming", "not streamed", "before headers", "queued"])
async def test_b54_what_does_not_end_in_time_is_cut_recorded_and_told(replica: ScriptedReplica, phase: str) -> None:
    hanging: Script = [EVENT_STREAM_HEAD, piece(b"".join(chat_events()[:2])), asyncio.Event()]
    replica.script([asyncio.Event()] if phase == "before headers" else hanging)
    changes = model_changes("m", [replica.url], max_in_flight=1)
    async with running_gateway(changes, tunables=GatewayTunables(drain_s=0.2)) as gateway:
        running = await start(gateway, stream=phase != "not streamed")
        seen = await replica.wait_for_request()
        client = running
        if phase == "queued":
            client = await start(gateway)
            await until(lambda: gateway.queued() == 1)
        if phase == "streaming":
            await client.read_until(b"Hel")
        await gateway.stop()
        if phase == "streaming":
            rest = await client.read_until(b"0\r\n\r\n")
            assert b'"gateway_stopping"' in rest
            assert b"[DONE]" not in rest
        else:
            status, headers, answer = await client.answer()
            assert (status, headers["retry-after"], answer["error"]["code"]) == (503, "1", "gateway_stopping")
        await asyncio.wait_for(seen.peer_closed.wait(), 1.0)
        await client.close()
        await running.close()
    states = [record.end_state for record in gateway.journal.closed]
    assert states == ["cut_by_drain"] * len(gateway.journal.opened)
    if phase in ("streaming", "not streamed"):
        assert gateway.journal.closed[0].completion_tokens == 1


async def test_a_request_that_was_settled_is_not_cut(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    go = asyncio.Event()
    replica.script(streamed([go, *chat_events()]))
    asking = asyncio.create_task(gateway.post())
    await replica.wait_for_request()
    exchange = next(iter(gateway.parts.running))
    exchange.record.is_settled = True
    exchange.cut(Cut.DRAIN)
    go.set()
    assert (await asking).status_code == 200


# -- metrics


async def test_metrics_count_what_happened_and_name_no_tenant(gateway: GatewayUnderTest, replica: ScriptedReplica) -> None:
    await gateway.post(body=basic(stream=True))
    await gateway.post(body=basic(n=0))
    await gateway.http.get("/v1/models")
    go = asyncio.Event()
    replica.script(streamed([go, *chat_events()]))
    running = asyncio.create_task(gateway.post())
    await replica.wait_for_request(2)
    gateway.parts.sample_metrics()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start_http_server(port, addr="127.0.0.1", registry=gateway.parts.metrics.registry)
    text = (await gateway.http.get(f"http://127.0.0.1:{port}/metrics")).text
    go.set()
    await running
    for line in (
        'headway_requests_total{end_state="done",route="/v1/chat/completions",status="200"} 1.0',
        'headway_requests_total{end_state="refused",route="/v1/chat/completions",status="400"} 1.0',
        'headway_unauthenticated_requests_total{route="/v1/models"} 1.0',
        'headway_tokens_total{kind="completion"} 3.0',
        'headway_in_flight{model="m",replica="rep-0"} 1.0',
        'headway_queued{model="m",tier="standard"} 0.0',
        "headway_journal_depth 2.0",
        "headway_feed_age_seconds 0.0",
        "headway_ttft_seconds_count 1.0",
        'headway_ttft_seconds_bucket{le="+Inf"} 1.0',
    ):
        assert line in text.splitlines(), line
    assert "acme" not in text
    assert gateway.key.split("_")[2] not in text


# -- the command


def manage(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=CHECKOUT,
        env=_environment(home),
        capture_output=True,
        text=True,
        timeout=60,
    )


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "DATABASE_URL", "DJANGO_"))}
    return {**kept, "HEADWAY_HOME": str(home), "HEADWAY_GATEWAY_DRAIN_S": "1"}


@contextmanager
def gateway_process(home: Path, port: int, metrics_port: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error::DeprecationWarning", "manage.py", "gateway", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--metrics-port", str(metrics_port)], cwd=CHECKOUT, env=_environment(home), stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def wait_for_line(process: subprocess.Popen[str], text: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"the process ended without {text!r}")


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [bound.getsockname()[1] for bound in sockets]
    for bound in sockets:
        bound.close()
    return ports


def test_the_command_listens_says_so_serves_and_ends_on_sigterm(tmp_path: Path) -> None:
    home = tmp_path / "home"
    migrated_sqlite(home)
    port, metrics_port = free_ports(2)
    with gateway_process(home, port, metrics_port) as process:
        assert wait_for_line(process, "gateway: listening") == f"gateway: listening on http://127.0.0.1:{port}\n"
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").json() == {"status": "ok"}
        assert "headway_journal_depth" in httpx.get(f"http://127.0.0.1:{metrics_port}/metrics").text
        taken = manage("gateway", "--port", str(port), "--metrics-port", "0", home=home)
        assert taken.returncode == 1
        assert taken.stderr.strip() == f"CommandError: cannot listen on 127.0.0.1:{port}: the port is taken"
        assert taken.stdout == ""
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    assert list((home / "journal").iterdir()) == [], "its journal is in the ledger"


def test_a_gateway_without_a_database_or_snapshot_listens_and_says_that_it_is_not_ready(tmp_path: Path) -> None:
    port, _ = free_ports(2)
    with gateway_process(tmp_path / "home", port, 0) as process:
        wait_for_line(process, "gateway: listening")
        ready = httpx.get(f"http://127.0.0.1:{port}/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")
        refused = httpx.get(f"http://127.0.0.1:{port}/v1/models", headers={"authorization": "Bearer x"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "gateway_not_ready")

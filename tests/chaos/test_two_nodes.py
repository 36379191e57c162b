"""Two node agents with folders and zones of their own over one database, with real engines: both serve, a zone is emptied
under streams, and a node that is killed loses nothing but its engines."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headway.certificates import Certificates
from headway.home import Home
from inference.gateway.upstream import UpstreamPool, UpstreamTunables
from inference.gateway.upstream_connection import UpstreamClosed, UpstreamError
from inference.launchers import processes
from inference.node.remote_address import remote_url
from tests.chaos.test_replica_dies import Ask, join_all, run_all
from tests.e2e.conftest import TINY
from tests.e2e.installation import ROOT, WEIGHTS, Installation, eventually, free_port
from tests.fakes.gateway import until

pytestmark = pytest.mark.soak

LOST_S = 5.0
NUM_STREAMS = 8
MAX_TOKENS = 1200
ENGINE_ARGS = "--max-model-len 2048 --max-num-seqs 32"


class Machine:
    """A node agent with a HEADWAY_HOME of its own."""

    def __init__(self, folder: Path, installation: Installation, *, name: str, zone: str) -> None:
        self.name, self.home = name, folder / name
        self.home.mkdir(parents=True, mode=0o700)
        (self.home / "weights").symlink_to(WEIGHTS)
        (self.home / "logs").mkdir()
        base = installation.environment
        database = base.get("DATABASE_URL") or f"sqlite:///{installation.home}/headway.sqlite3"
        self.environment = {
            **base,
            "DATABASE_URL": database,
            "HEADWAY_HOME": str(self.home),
            "HEADWAY_NODE_NAME": name,
            "HEADWAY_ZONE": zone,
            "HEADWAY_NODE_MAX_REPLICAS": "2",
        }
        self.port = free_port()
        self.environment |= {"HEADWAY_NODE_ADDRESS": f"127.0.0.1:{self.port}", "HEADWAY_NODE_LISTEN_HOST": "127.0.0.1"}
        self.process: subprocess.Popen[bytes] | None = None
        self.front: subprocess.Popen[bytes] | None = None

    @property
    def tag(self) -> str:
        return f"{Home(self.home).installation_id}/{self.name}"

    def start(self) -> None:
        with (self.home / "logs" / "node.log").open("ab") as log:
            command = [sys.executable, str(ROOT / "manage.py"), "node"]
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def start_front(self, installation: Installation) -> None:
        """With certificates that the first machine has made, as an operator would copy them."""
        files = json.loads(installation.manage("node_certificate", self.name, "--json"))
        tls = Home(self.home).tls
        for name in ("authority", "certificate", "key"):
            shutil.copy(files[name], tls)
        with (self.home / "logs" / "front.log").open("ab") as log:
            command = [sys.executable, str(ROOT / "manage.py"), "node_front"]
            self.front = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def engines(self) -> list[processes.ProcessStat]:
        return processes.tagged(self.tag)

    def killed(self) -> None:
        """As a machine that loses its power: the agent first, and everything it has started."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        for stat in self.engines():
            processes.send_signal(stat, signal.SIGKILL)

    def close(self) -> None:
        for process in (self.process, self.front):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(60)
        for stat in self.engines():
            processes.send_signal(stat, signal.SIGKILL)


@dataclass
class Cell:
    installation: Installation
    key: str
    north: Machine
    south: Machine

    def replicas(self) -> list[dict[str, Any]]:
        return self.installation.replicas(TINY)

    def ready(self) -> dict[str, str]:
        """Node by id of those that serve."""
        return {name: node for name, node, state in self.installation.live_replicas(TINY) if state == "ready"}

    def wait_for(self, *nodes: str, within_s: float = 120) -> float:
        """Until these, and no others, have a replica that serves."""
        return eventually(
            lambda: sorted(self.living()) == sorted((node, "ready") for node in nodes),
            within_s=within_s,
            every_s=0.1,
            what=f"replicas on {nodes}: {self.living()}",
        )

    def living(self) -> list[tuple[str, str]]:
        return [(node, state) for _name, node, state in self.installation.live_replicas(TINY)]

    def start_of(self, replica: str, *, since: datetime) -> str:
        """In seconds since then: when it was asked for, and how far its start was when."""
        names = ("requested_at", "staging_at", "starting_at", "certifying_at", "up_at")
        columns = ", ".join(names)
        (row,) = self.installation.query(f"SELECT {columns} FROM inference_replicastart WHERE replica = ?", replica)
        return ", ".join(
            f"{name.removesuffix('_at')} {(at - since).total_seconds():.1f}" for name, at in zip(names, row, strict=True)
        )

    def served_by(self, records: list[dict[str, Any]]) -> set[str]:
        return {record["replica"] for record in records}


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    folder = tmp_path_factory.mktemp("cell")
    installation = Installation(
        folder, database_url=os.environ.get("DATABASE_URL", ""), HEADWAY_NODE_LOST_S=str(LOST_S), HEADWAY_ZONE="north"
    )
    machines = [Machine(folder, installation, name=f"{zone}-1", zone=zone) for zone in ("north", "south")]
    try:
        installation.migrate()
        installation.manage("create_tenant", "acme")
        key = installation.manage("issue_key", "acme", "--name", "ci")
        installation.manage("make_tiny_model", str(WEIGHTS / "tiny"), timeout_s=300)
        for machine in machines:
            machine.start()
        installation.start_gateway()
        eventually(lambda: len(installation.status()["nodes"]) == 2, within_s=60, every_s=0.3, what="two agents beat")
        installation.manage(
            "register_model", TINY, "--weights", str(WEIGHTS / "tiny"), "--dtype", "float32",
            f"--engine-args={ENGINE_ARGS}", "--max-in-flight", str(NUM_STREAMS),
        )  # fmt: skip
        installation.manage("scale", TINY, "--replicas", "2")
        made = Cell(installation, key, *machines)
        made.wait_for("north-1", "south-1")
        yield made
    finally:
        for machine in machines:
            machine.close()
        installation.close()


def streams(number: int = NUM_STREAMS) -> list[Ask]:
    body = {"temperature": 0, "max_tokens": MAX_TOKENS, "ignore_eos": True}
    return [Ask("/v1/completions", {**body, "prompt": f"Tell me about train {index}"}) for index in range(number)]


def have_begun(asked: list[Ask]) -> None:
    eventually(lambda: min(ask.num_events for ask in asked) >= 10, within_s=60, every_s=0.01, what="all streams have begun")


def all_whole(asked: list[Ask]) -> None:
    assert [ask.error for ask in asked] == [""] * len(asked)
    assert {(ask.finish_reason, ask.usage["completion_tokens"]) for ask in asked} == {("length", MAX_TOKENS)}


def test_each_node_runs_one_replica_in_its_zone_and_both_serve(cell: Cell) -> None:
    nodes = {node["name"]: (node["zone"], node["max_replicas"]) for node in cell.installation.status()["nodes"]}
    assert nodes == {"north-1": ("north", 2), "south-1": ("south", 2)}
    asked = streams(2 * NUM_STREAMS)  # more than one of them may have at once
    join_all(run_all(cell, asked))  # type: ignore[arg-type]  # it has the two fields that are used
    all_whole(asked)
    assert cell.served_by(cell.installation.wait_usage(len(asked))) == set(cell.ready())


def test_a_gateway_prefers_its_own_zone_where_that_has_room(cell: Cell) -> None:
    (near,) = [replica for replica, node in cell.ready().items() if node == "north-1"]
    before = len(cell.installation.usage())
    for ask in streams(4):
        ask.body["max_tokens"] = 5
        ask.run(cell)  # type: ignore[arg-type]
    assert cell.served_by(cell.installation.wait_usage(before + 4)[before:]) == {near}


def test_a_gateway_of_another_machine_streams_from_it_over_tls(cell: Cell) -> None:
    (replica,) = [replica for replica, node in cell.ready().items() if node == "south-1"]
    cell.south.start_front(cell.installation)
    url = remote_url(f"127.0.0.1:{cell.south.port}", node="south-1", replica=replica, epoch=1)
    certificates = Certificates(Home(cell.installation.home).tls)
    body = {"model": TINY, "prompt": "Tell me", "stream": True, "max_tokens": 50, "temperature": 0, "ignore_eos": True}

    async def stream() -> tuple[bytes, bool]:
        pool = UpstreamPool(UpstreamTunables(), node_tls=certificates.client_context)
        asked, is_newer_refused = json.dumps(body).encode(), False
        response = await pool.request(url, "POST", "/v1/completions", [("content-type", "application/json")], asked)
        text = await response.read_all(30.0, 10**7)
        try:
            await pool.request(url.replace(f"{replica}-1", f"{replica}-2"), "GET", "/v1/models", [], b"")
        except UpstreamClosed:
            is_newer_refused = True
        pool.close()
        await until(lambda: pool.num_open() == 0)
        return text, is_newer_refused

    eventually(lambda: is_listening(cell.south.port), within_s=30, what="the front listens")
    text, is_newer_refused = asyncio.run(stream())
    assert text.rstrip().endswith(b"data: [DONE]")
    assert is_newer_refused


def test_a_gateway_whose_certificate_is_revoked_is_refused_by_the_front_that_runs_and_a_new_one_opens_it(
    cell: Cell, tmp_path: Path
) -> None:
    (replica,) = [replica for replica, node in cell.ready().items() if node == "south-1"]
    url = remote_url(f"127.0.0.1:{cell.south.port}", node="south-1", replica=replica, epoch=1)
    ours, stolen = Home(cell.installation.home).tls, tmp_path
    for name in ("ca.pem", "gateway.pem", "gateway.key"):
        shutil.copy(ours / name, stolen)

    async def is_open(folder: Path) -> bool:
        pool = UpstreamPool(UpstreamTunables(), node_tls=Certificates(folder).client_context)
        try:
            response = await pool.request(url, "GET", "/v1/models", [], b"")
            return bool(await response.read_all(30.0, 10**7))
        except UpstreamError:
            return False
        finally:
            pool.close()

    assert asyncio.run(is_open(stolen))
    cell.installation.manage("revoke_node_certificate", "--gateway", "--reason", "stolen")
    eventually(lambda: not asyncio.run(is_open(stolen)), within_s=30, what="the agent has brought the list to the front")
    assert asyncio.run(is_open(ours))


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_b126_a_zone_is_emptied_under_streams_and_none_is_cut(cell: Cell) -> None:
    (old,) = [replica for replica, node in cell.ready().items() if node == "north-1"]
    asked = streams()
    threads = run_all(cell, asked)  # type: ignore[arg-type]
    have_begun(asked)
    report = cell.installation.manage("drain_zone", "north", timeout_s=180)
    assert "zone north: clean" in report, report
    assert "0 failed" in report
    join_all(threads)
    all_whole(asked)
    assert sorted(cell.ready().values()) == ["south-1", "south-1"]
    assert old not in cell.ready()
    cell.installation.manage("undrain_zone", "north")


def test_a_replica_is_moved_back(cell: Cell) -> None:
    moved = next(iter(cell.ready()))
    cell.installation.manage("drain_replica", moved)
    cell.wait_for("north-1", "south-1")
    assert moved not in cell.ready()


def test_b126_all_replicas_are_restarted_under_load_and_no_request_fails(cell: Cell) -> None:
    """Streams come one after the other on each of several lines, for as long as it takes."""
    before, lines, is_over = set(cell.ready()), [list[Ask]() for _ in range(NUM_STREAMS)], threading.Event()

    def line(asked: list[Ask]) -> None:
        while not is_over.is_set():
            ask = Ask("/v1/completions", {"temperature": 0, "max_tokens": 200, "ignore_eos": True, "prompt": "Tell me"})
            asked.append(ask)
            ask.run(cell)  # type: ignore[arg-type]  # it has the two fields that are used

    threads = [threading.Thread(target=line, args=(asked,)) for asked in lines]
    for thread in threads:
        thread.start()
    least = [len(before)]
    with subprocess.Popen(cell.installation.command("restart", TINY, "--json"), env=cell.installation.environment) as restart:
        while restart.poll() is None:
            least.append(len(cell.ready()))
            is_over.wait(0.05)
    is_over.set()
    join_all(threads)
    assert (restart.returncode, min(least)) == (0, len(before)), "each new one serves before the one in whose place it is goes"
    assert len(cell.ready()) == len(before) and not before & set(cell.ready())
    asked = [ask for line in lines for ask in line]
    assert [ask.error for ask in asked] == [""] * len(asked)
    assert {(ask.finish_reason, ask.usage["completion_tokens"]) for ask in asked} == {("length", 200)}
    print(f"restarted {len(before)} replicas under {len(asked)} requests; at least {min(least)} were ready")  # noqa: T201
    assert sorted(cell.ready().values()) == ["north-1", "south-1"]


def test_a_node_is_killed_under_streams_and_all_go_on_and_its_replica_is_placed_again(cell: Cell) -> None:
    whole = streams()
    join_all(run_all(cell, whole))  # type: ignore[arg-type]
    before = len(cell.installation.usage())
    (old,) = [replica for replica, node in cell.ready().items() if node == "south-1"]
    asked = streams()
    threads = run_all(cell, asked)  # type: ignore[arg-type]
    have_begun(asked)
    before_it, killed_at = set(cell.ready()), datetime.now(UTC)
    cell.south.killed()
    join_all(threads)
    all_whole(asked)
    assert [ask.text for ask in asked] == [ask.text for ask in whole]  # greedy in float32: continued to the byte
    cell.wait_for("north-1", "north-1")
    (new,) = set(cell.ready()) - before_it
    load = os.getloadavg()[0]
    print(  # noqa: T201
        f"seconds after the kill (limit of silence {LOST_S:g} s, load {load:.1f}): {cell.start_of(new, since=killed_at)}"
    )
    records = cell.installation.wait_usage(before + NUM_STREAMS)[before:]
    assert {record["end_state"] for record in records} == {"done"}
    (row,) = [row for row in cell.replicas() if row["id"] == old]
    assert (row["state"], "its node is lost" in row["reason"]) == ("failed", True)


def test_the_node_that_comes_back_finds_its_old_replica_replaced_and_takes_new_ones(cell: Cell) -> None:
    cell.south.start()
    eventually(lambda: all(row["state"] == "ready" for row in cell.replicas()), within_s=60, every_s=0.3, what="no row is left")
    assert not [node for node in cell.installation.status()["nodes"] if node["is_lost"]]
    moved = next(iter(cell.ready()))
    cell.installation.manage("drain_replica", moved)
    cell.wait_for("north-1", "south-1")


def test_a_partitioned_agents_engine_is_killed_when_it_hears_that_it_was_replaced(cell: Cell) -> None:
    """The agent alone stands still; its engine lives on, and would answer whoever asked it."""
    (old,) = [replica for replica, node in cell.ready().items() if node == "south-1"]
    assert cell.south.process is not None
    cell.south.process.send_signal(signal.SIGSTOP)
    cell.wait_for("north-1", "north-1")
    engines = {stat.session for stat in cell.south.engines()}
    assert len(engines) >= 2  # the engine, and the process that forks them
    cell.south.process.send_signal(signal.SIGCONT)
    eventually(lambda: old not in {row["id"] for row in cell.replicas()}, within_s=60, what="the old replica has stopped")
    left = {stat.session for stat in cell.south.engines()}
    assert len(left) == len(engines) - 1
    assert sorted(cell.ready().values()) == ["north-1", "north-1"]

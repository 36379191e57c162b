"""Two dispatcher processes and a real kill: who stands by leads within two seconds, and every counter is what it was."""

import asyncio
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headway.home import Home
from inference.dispatch.address import Address, parse_address
from inference.dispatch.visitor import look_at
from inference.gateway.state import Change, ControlState
from inference.policy.decisions import PICOS_A_MICRO, Ask, Ending, TokenPrice, Usage
from tests.fakes.gateway import ACME, model_changes
from tests.fakes.migrated import migrated_sqlite
from tests.inference.dispatch.cell import SECRET, Gateway, terms, until

ROOT = Path(__file__).resolve().parents[3]
LIMITS = {"requests_per_minute": 100, "output_tokens_per_minute": 2000, "concurrent_requests": 6, "monthly_budget": 900}
GRACE_S = 1.0
CHANGES: list[Change] = [*model_changes("m", ["http://a", "http://b"], max_in_flight=3, max_queued=20), terms(**LIMITS)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Machine:
    """An installation with a database and dispatchers, and gateways of this process."""

    def __init__(self, home: Path) -> None:
        self.home = Home(home)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "DJANGO_", "DATABASE_"))}
        self.environment = kept | {"HEADWAY_HOME": str(home), "HEADWAY_NODE_NAME": "machine"}
        migrated_sqlite(home)
        with sqlite3.connect(home / "headway.sqlite3") as database:
            database.executemany(
                "INSERT INTO inference_controlchange (id, kind, key, payload, at) VALUES (?, ?, ?, ?, '2026-01-01')",
                [(change.id, change.kind, change.key, json.dumps(change.payload)) for change in CHANGES],
            )
        database.close()
        self.state = ControlState()
        self.state.apply(CHANGES)
        self.address = Address(path=self.home.run / "dispatcher.sock")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.gateways: list[Gateway] = []

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(ROOT / "manage.py"), *arguments]

    def manage(self, *arguments: str) -> str:
        done = subprocess.run(self.command(*arguments), env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str, **settings: str) -> "subprocess.Popen[bytes]":
        environment = self.environment | settings
        with (self.home.root / "log").open("ab") as log:
            process = subprocess.Popen(self.command(*arguments), env=environment, stderr=log, stdout=log)
        self.processes.append(process)
        return process

    def log(self) -> str:
        return (self.home.root / "log").read_text()

    async def dispatchers(self) -> "tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]":
        """The one that leads, and one that stands by."""
        active = self.start("dispatcher")
        await self.seen()
        standby = self.start("dispatcher")
        await until(lambda: self.log().count("dispatcher_stands_by") == 2, within_s=20)
        return active, standby

    async def seen(self, **wanted: Any) -> dict[str, Any]:
        """What the leading dispatcher shows, once it shows this."""
        async with asyncio.timeout(20):
            while True:
                found = await look_at(self.address)
                if found is not None and all(found[name] == value for name, value in wanted.items()):
                    return found
                await asyncio.sleep(0.01)

    async def gateway(self, name: str) -> Gateway:
        self.write("INSERT INTO inference_gatewayfeed VALUES (?, 0, ?, 1, 1)", name, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}")
        gateway = Gateway(name, self.state, lambda: self.address)
        gateway.link.start()
        self.gateways.append(gateway)
        await until(lambda: gateway.link.is_open)
        return gateway

    def lease(self) -> tuple[str, str, int]:
        with sqlite3.connect(self.home.root / "headway.sqlite3") as database:
            row: tuple[str, str, int] = database.execute("SELECT holder, address, epoch FROM inference_lease").fetchone()
        database.close()
        return row

    def members(self) -> list[str]:
        with sqlite3.connect(self.home.root / "headway.sqlite3") as database:
            (names,) = database.execute("SELECT members FROM inference_lease").fetchone()
        database.close()
        found: list[str] = json.loads(names)
        return found

    def write(self, statement: str, *values: Any) -> None:
        with sqlite3.connect(self.home.root / "headway.sqlite3") as database:
            database.execute(statement, values)
        database.close()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(10)
        shutil.rmtree(self.home.run, ignore_errors=True)  # outside the folder when that lies deep


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for gateway in made.gateways:
        await gateway.link.close()
    made.close()


def ask(request_id: str) -> Ask:
    price = TokenPrice(output_picos=1_000_000)
    return Ask(request_id, "m", ACME, "k1", prompt_tokens=10, max_tokens=20, price=price)


def counters(seen: dict[str, Any]) -> dict[str, Any]:
    return {name: seen[name] for name in ("in_flight", "queued", "away", "leaked_slots", "overcommitted", "limits")}


async def test_a_kill_of_the_active_is_a_takeover_within_two_seconds_and_changes_no_counter(machine: Machine) -> None:
    active, standby = await machine.dispatchers()
    a, b = await machine.gateway("a"), await machine.gateway("b")
    for number in range(4):
        await a.dispatcher.submit(ask(f"a{number}"))
    await b.dispatcher.submit(ask("b0"))
    await b.dispatcher.submit(ask("b1"))
    waiting = [asyncio.create_task(gateway.dispatcher.submit(ask(f"w{number}"))) for number, gateway in enumerate((a, b))]
    await machine.seen(queued=2)
    a.dispatcher.settle("a0", Ending.WELL, Usage(10, 0, 7, 7 * PICOS_A_MICRO))
    before = await machine.seen(queued=1, in_flight=6)
    assert before["epoch"] == 1

    killed_s = time.monotonic()
    active.send_signal(signal.SIGKILL)
    await until(lambda: all(gateway.link.num_attached == 2 and gateway.link.is_open for gateway in (a, b)))
    took_s = time.monotonic() - killed_s
    after = await machine.seen()

    assert took_s < 2.0
    assert counters(after) == counters(before)
    assert (after["epoch"], after["gateways"], a.link.highest_epoch) == (2, ["a", "b"], 2)
    assert machine.lease()[2] == 2
    running = list(a.dispatcher.running) + list(b.dispatcher.running)
    assert sum(task.done() for task in waiting) == 1 and len(running) == 6
    for name in running:
        (a if name in a.dispatcher.running else b).dispatcher.settle(name, Ending.WELL, Usage(10, 0, 7, 7 * PICOS_A_MICRO))
    for task in waiting:
        grant = await task
        (a if grant.decision.id == "w0" else b).dispatcher.settle(
            grant.decision.id, Ending.WELL, Usage(10, 0, 7, 7 * PICOS_A_MICRO)
        )
    ended = await machine.seen(in_flight=0, queued=0)
    uses = {use["kind"]: (use["used"], use["reserved"]) for use in ended["limits"]["in_use"]}
    assert uses == {"requests_per_minute": (8, 0), "output_tokens_per_minute": (56, 0), "monthly_budget": (56, 0)}
    assert (ended["leaked_slots"], ended["limits"]["open"], ended["limits"]["overcommitted"]) == (0, 0, 0)
    assert standby.poll() is None


async def test_a_gateway_that_ends_is_gone_at_once_and_one_that_is_stopped_hands_over(machine: Machine) -> None:
    active, _ = await machine.dispatchers()
    a, b = await machine.gateway("a"), await machine.gateway("b")
    await a.dispatcher.submit(ask("a0"))
    a.die()
    await machine.seen(in_flight=0, gateways=["b"])
    active.send_signal(signal.SIGTERM)
    await until(lambda: b.link.num_attached == 2 and b.link.is_open)
    assert active.wait(10) == 0
    assert (await b.dispatcher.submit(ask("b0"))).replica.id in {"rep-0", "rep-1"}


async def test_one_whose_lease_was_taken_decides_nothing_more(machine: Machine) -> None:
    """As by another machine: the row says so, the lock does not."""
    active = machine.start("dispatcher")
    await machine.seen()
    machine.write("UPDATE inference_lease SET holder = 'elsewhere/x/y', address = 'tcp://127.0.0.1:1', epoch = 7")
    await until(lambda: active.poll() is not None, within_s=10)
    assert active.poll() == 1
    assert "lease_lost" in machine.log()
    assert machine.lease() == ("elsewhere/x/y", "tcp://127.0.0.1:1", 7)


async def two_machines(machine: Machine, folder: Path) -> "tuple[list[subprocess.Popen[bytes]], list[int]]":
    """Dispatchers over TCP that share a database; the first leads."""
    ports = [free_port(), free_port()]
    homes = [folder, folder / "other"]
    shared = {"HEADWAY_DISPATCHER_SECRET": SECRET, "DATABASE_URL": f"sqlite:///{folder}/headway.sqlite3"}
    processes = []
    for number, (port, home) in enumerate(zip(ports, homes, strict=True)):
        listen = {"HEADWAY_HOME": str(home), "HEADWAY_DISPATCHER_LISTEN": f"127.0.0.1:{port}"}
        processes.append(machine.start("dispatcher", HEADWAY_NODE_NAME=f"machine{number}", **listen, **shared))
        await until(lambda: machine.log().count("dispatcher_stands_by") == len(processes), within_s=20)
        if not number:
            await machine.seen()
    return processes, ports


async def test_another_machine_takes_over_within_two_seconds_and_gateways_find_it_by_the_row(
    machine: Machine, tmp_path: Path
) -> None:
    processes, ports = await two_machines(machine, tmp_path)
    gateway = Gateway("a", machine.state, lambda: parse_address(machine.lease()[1]))
    machine.gateways.append(gateway)
    assert (await gateway.dispatcher.submit(ask("a0"))).replica.id
    killed_s = time.monotonic()
    processes[0].send_signal(signal.SIGKILL)
    await until(lambda: gateway.link.num_attached == 2 and gateway.link.is_open)
    assert time.monotonic() - killed_s < 2.0 + GRACE_S
    holder, address, epoch = machine.lease()
    assert (holder.split("/")[0], address, epoch) == ("machine1", f"tcp://127.0.0.1:{ports[1]}", 2)
    seen = await look_at(parse_address(address), secret=SECRET)
    assert seen is not None and (seen["in_flight"], seen["overcommitted"], seen["leaked_slots"]) == (1, 0, 0)
    assert await look_at(parse_address(address), secret="another secret of some length") is None


async def test_a_gateway_hosts_the_brain_a_second_one_attaches_to_it_and_a_third_elsewhere_refuses(
    machine: Machine, tmp_path: Path
) -> None:
    ports = [str(free_port()) for _ in range(6)]
    first = machine.start("gateway", HEADWAY_GATEWAY_PORT=ports[0], HEADWAY_METRICS_PORT=ports[1])
    seen = await machine.seen()
    assert seen["pid"] == first.pid
    second = machine.start("gateway", HEADWAY_GATEWAY_PORT=ports[2], HEADWAY_METRICS_PORT=ports[3])
    await until(lambda: machine.log().count('"gateway_attached"'), within_s=20)
    elsewhere = {"HEADWAY_HOME": str(tmp_path / "other"), "DATABASE_URL": f"sqlite:///{tmp_path}/headway.sqlite3"}
    third = machine.start("gateway", HEADWAY_GATEWAY_PORT=ports[4], HEADWAY_METRICS_PORT=ports[5], **elsewhere)
    assert await asyncio.to_thread(third.wait, 30) == 1
    assert "another machine has the brain of this installation" in machine.log()
    status = json.loads(machine.manage("status", "--json"))
    assert (status["lease"]["epoch"], status["dispatcher"]["epoch"], len(status["dispatcher"]["gateways"])) == (1, 1, 1)
    first.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(first.wait, 30) == 0
    assert machine.lease()[1:] == ("", 1), "given back"
    assert second.poll() is None


async def test_with_the_database_away_who_stands_by_takes_over_all_the_same(machine: Machine) -> None:
    active, _ = await machine.dispatchers()
    a = await machine.gateway("a")
    await a.dispatcher.submit(ask("a0"))
    database = machine.home.root / "headway.sqlite3"
    moved = list(database.parent.glob("headway.sqlite3*"))
    for path in moved:
        path.rename(path.with_name(f"away-{path.name}"))
    database.mkdir()  # nothing can be opened there
    killed_s = time.monotonic()
    active.send_signal(signal.SIGKILL)
    await until(lambda: a.link.num_attached == 2 and a.link.is_open, within_s=10)
    assert time.monotonic() - killed_s < 2.0
    seen = await machine.seen()
    assert (seen["epoch"], seen["in_flight"]) == (2, 1)
    database.rmdir()
    for path in moved:
        path.with_name(f"away-{path.name}").rename(path)
    await until(lambda: machine.lease()[2] == 2, within_s=10)


async def test_with_the_database_away_another_machine_takes_over_with_most_gateways(machine: Machine, tmp_path: Path) -> None:
    processes, ports = await two_machines(machine, tmp_path)
    first = parse_address(f"127.0.0.1:{ports[0]}")
    machine.write("INSERT INTO inference_gatewayfeed VALUES (?, 0, ?, 1, 1)", "a", f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}")
    gateway = Gateway("a", machine.state, lambda: first, wait_s=20.0)
    machine.gateways.append(gateway)
    await gateway.dispatcher.submit(ask("a0"))
    await until(lambda: gateway.link._standbys and machine.members() == ["a"], within_s=10)
    database = machine.home.root / "headway.sqlite3"
    for path in list(database.parent.glob("headway.sqlite3*")):
        path.rename(path.with_name(f"away-{path.name}"))
    database.mkdir()
    await asyncio.sleep(2.0)
    assert gateway.link.is_open and gateway.link.num_attached == 1, "with most gateways attached the first goes on"
    assert (await gateway.dispatcher.submit(ask("a1"))).replica.id
    processes[0].send_signal(signal.SIGKILL)
    assert (await gateway.dispatcher.submit(ask("a2"))).replica.id
    assert gateway.link.highest_epoch == 2
    seen = await look_at(parse_address(f"127.0.0.1:{ports[1]}"), secret=SECRET)
    assert seen is not None and (seen["in_flight"], seen["gateways"], seen["leaked_slots"]) == (3, ["a"], 0)

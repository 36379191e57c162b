"""`manage.py gateway --processes N` as real processes in front of a scripted engine: restarts, kills, drains, counts."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.launchers.processes import all_processes
from tests.e2e.installation import Installation
from tests.fakes.replica import ScriptedReplica, SeenRequest, Step, answered, chat_answer, chat_events, streamed

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50}


@dataclass
class Fleet:
    """A gateway of several processes; `seen` is what its clients got."""

    installation: Installation
    key: str
    seen: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    @property
    def parent_pid(self) -> int:
        return self.installation.processes["gateway"].pid

    def pids(self, kind: str = "--worker") -> set[int]:
        """Of the workers, or of the dispatchers (`--child`)."""
        children = [stat.pid for stat in all_processes() if stat.parent_pid == self.parent_pid]
        return {pid for pid in children if kind in command_of(pid)}

    async def manage(self, *arguments: str) -> str:
        """In a thread: the engine answers on this loop."""
        return await asyncio.to_thread(self.installation.manage, *arguments)

    async def start(self, processes: int, **settings: str) -> None:
        self.installation.start("gateway", "--processes", str(processes), **settings)
        await until(lambda: "gateway: listening" in self.installation.log("gateway"), 120)
        await until_status(f"{self.installation.url}/readyz", 200)

    async def ask(self, client: httpx.AsyncClient, **more: Any) -> None:
        """One request, noted by how it ended."""
        try:
            answer = await client.post("/v1/chat/completions", json={**BODY, **more})
        except httpx.HTTPError as error:
            self.seen["broken"] += 1
            self.errors.append(repr(error))
            return
        if answer.status_code != 200:
            self.seen[f"status {answer.status_code} {answer.json()['error']['code']}"] += 1
        elif not more.get("stream"):
            self.seen["whole"] += 1
        elif answer.text.endswith("data: [DONE]\n\n"):
            self.seen["streamed"] += 1
        else:
            last = json.loads(answer.text.strip().rsplit("\n\n", 1)[-1].removeprefix("data: "))
            self.seen[f"event {last['error']['code']}"] += 1

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        headers = {"authorization": f"Bearer {self.key}"}
        return httpx.AsyncClient(base_url=self.installation.url, headers=headers, timeout=90, limits=limits)

    async def usage(self, count: int) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self.installation.wait_usage, count)

    async def metric(self, start: str) -> float:
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://127.0.0.1:{self.installation.metrics_port}/metrics")).text
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(start))


def command_of(pid: int) -> list[str]:
    """Its arguments, from /proc: `ps` cuts them at the COLUMNS of whoever runs us. Empty when it is gone."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except OSError:
        return []


async def until(holds: Any, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def until_status(url: str, status: int) -> None:
    async with asyncio.timeout(60), httpx.AsyncClient() as client:
        while True:
            try:
                if (await client.get(url)).status_code == status:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.05)


def paced(seen: SeenRequest) -> list[Step]:
    """Half a second an answer for those who ask for 10 tokens, a minute for those who ask for 1000."""
    if seen.method != "POST" or not seen.json.get("stream"):
        return answered(chat_answer())
    pause_s = {10: 0.05, 50: 0.3, 1000: 6.0}.get(seen.json["max_tokens"], 0.0)
    first, *rest = chat_events(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"])
    return streamed([first, *(step for event in rest for step in (event, pause_s))])


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    installation = Installation(
        tmp_path,
        database_url=os.environ.get("DATABASE_URL", ""),
        HEADWAY_GATEWAY_DRAIN_S="8",
        HEADWAY_LOST_RECORDS_WAIT_S="1",
    )
    async with ScriptedReplica(default=paced) as replica:
        fleet = Fleet(installation, "")
        await asyncio.to_thread(installation.migrate)
        await fleet.manage("create_tenant", "acme")
        fleet.key = await fleet.manage("issue_key", "acme", "--name", "ci")
        await fleet.manage("register_model", "m", "--max-in-flight", "200")
        await fleet.manage("register_replica", "--model", "m", "--url", replica.url, "--kind", "vllm")
        try:
            yield fleet
        finally:
            await asyncio.to_thread(installation.close)


async def test_b125_b126_a_rolling_restart_under_load_cuts_nothing_and_loses_no_record(fleet: Fleet) -> None:
    await fleet.start(2)
    before, is_over = fleet.pids(), asyncio.Event()
    async with fleet.client() as client:

        async def short_ones() -> None:
            while not is_over.is_set():
                await fleet.ask(client, stream=bool(fleet.seen.total() % 2), max_tokens=10)

        load = [asyncio.create_task(short_ones()) for _ in range(8)]
        long_ones = [asyncio.create_task(fleet.ask(client, stream=True)) for _ in range(20)]
        await asyncio.sleep(1.0)
        os.kill(fleet.parent_pid, signal.SIGHUP)
        await until(lambda: len(fleet.pids()) == 2 and not fleet.pids() & before, 60)
        is_over.set()
        await asyncio.gather(*load, *long_ones)
    assert set(fleet.seen) == {"whole", "streamed"}, fleet.errors
    records = await fleet.usage(fleet.seen.total())
    assert len(records) == fleet.seen.total()
    assert {record["end_state"] for record in records} == {"done"}
    assert {record["completion_tokens"] for record in records} == {3}
    await until_counted(fleet, fleet.seen.total())


async def until_counted(fleet: Fleet, count: int) -> None:
    """Workers tell their values once a second: then they are exact."""
    for _ in range(40):
        counted = await fleet.metric("headway_requests_total{")
        assert counted <= count, "counted twice"
        if counted == count:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{counted} of {count}")


async def until_begun(fleet: Fleet, count: int) -> None:
    """Of `count` requests since the start, each is known to a worker by now: it runs or has ended."""
    begun = 0.0
    for _ in range(200):
        begun = await fleet.metric("headway_journal_open") + await fleet.metric("headway_requests_total{")
        if begun >= count:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{begun} of {count} have begun")


async def test_b54_after_sigterm_running_streams_end_and_all_are_in_the_ledger(fleet: Fleet) -> None:
    await fleet.start(2)
    async with fleet.client() as client:
        running = [asyncio.create_task(fleet.ask(client, stream=True)) for _ in range(100)]
        await until_begun(fleet, 100)
        assert await asyncio.to_thread(fleet.installation.stop, "gateway") == 0
        await asyncio.gather(*running)
    assert fleet.seen == {"streamed": 100}, fleet.errors
    records = await fleet.usage(100)
    assert len(records) == 100
    assert {(record["end_state"], record["completion_tokens"]) for record in records} == {("done", 3)}
    assert list((fleet.installation.home / "journal").iterdir()) == []


async def test_b126_beyond_the_limit_streams_end_with_an_error_event_and_a_bill_for_what_was_made(fleet: Fleet) -> None:
    await fleet.start(2, HEADWAY_GATEWAY_DRAIN_S="1")
    async with fleet.client() as client:
        running = [asyncio.create_task(fleet.ask(client, stream=True, max_tokens=1000)) for _ in range(10)]
        await until_begun(fleet, 10)
        assert await asyncio.to_thread(fleet.installation.stop, "gateway") == 0
        await asyncio.gather(*running)
    assert fleet.seen == {"event gateway_stopping": 10}, fleet.errors
    records = await fleet.usage(10)
    assert {(record["end_state"], record["completion_tokens"]) for record in records} == {("cut_by_drain", 1)}


async def test_b54_a_killed_worker_is_replaced_its_requests_are_recorded_and_its_counts_stay(fleet: Fleet) -> None:
    await fleet.start(2)
    async with fleet.client() as client:
        await asyncio.gather(*(fleet.ask(client) for _ in range(40)))
        await until_counted(fleet, 40)
        before = fleet.pids()
        running = [asyncio.create_task(fleet.ask(client, stream=True, max_tokens=1000)) for _ in range(20)]
        await until_begun(fleet, 60)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(fleet.pids()) == 2 and victim not in fleet.pids(), 30)
        assert await fleet.metric("headway_requests_total{") >= 40
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    records = await fleet.usage(60)
    assert len(records) == 60
    assert {record["end_state"] for record in records} <= {
        "done",
        "gateway_lost",
        "client_gone_before_first_token",
        "client_gone_after_first_token",
    }
    assert await fleet.metric("headway_gateway_process_restarts") == 1


async def test_a_killed_workers_streams_are_on_record_with_what_they_had_made(fleet: Fleet) -> None:
    """Its journal says only that they had begun; the dispatcher knows how far they were, whichever of both comes first."""
    await fleet.start(2)
    async with fleet.client() as client:
        running = [asyncio.create_task(fleet.ask(client, stream=True, max_tokens=1000)) for _ in range(20)]
        await until_begun(fleet, 20)
        await asyncio.sleep(1.0)  # two reports
        victim = min(fleet.pids())
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(fleet.pids()) == 2 and victim not in fleet.pids(), 30)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    async with asyncio.timeout(30):
        while True:
            lost = [record for record in await fleet.usage(20) if record["end_state"] == "gateway_lost"]
            if lost and all(record["usage_source"] == "partial" for record in lost):
                break
            await asyncio.sleep(0.2)
    assert all(record["completion_tokens"] >= 1 and record["prompt_tokens"] == 7 for record in lost)


async def test_status_names_each_process_and_shows_the_brain(fleet: Fleet) -> None:
    await fleet.start(3)
    status = json.loads(await fleet.manage("status", "--json"))
    gateways = [gateway for gateway in status["gateways"] if not gateway["gateway"].startswith("dispatcher:")]
    assert sorted((gateway["process"], gateway["processes"]) for gateway in gateways) == [(1, 3), (2, 3), (3, 3)]
    assert status["lease"]["epoch"] == status["dispatcher"]["epoch"] == 1
    assert len(status["dispatcher"]["gateways"]) == 3
    text = await fleet.manage("status")
    assert "2 of 3" in text and "epoch 1" in text


async def test_b118_several_processes_share_one_brain_and_its_death_cuts_no_stream(fleet: Fleet) -> None:
    await fleet.start(3)
    dispatchers = fleet.pids("--child")
    assert len(dispatchers) == 2
    async with fleet.client() as client:
        running = [asyncio.create_task(fleet.ask(client, stream=True)) for _ in range(30)]
        await until_begun(fleet, 30)
        status = json.loads(await fleet.manage("status", "--json"))
        victim = int(status["dispatcher"]["pid"])
        assert victim in dispatchers
        os.kill(victim, signal.SIGKILL)
        later = [asyncio.create_task(fleet.ask(client, stream=True)) for _ in range(30)]
        await asyncio.gather(*running, *later)
    assert fleet.seen == {"streamed": 60}, fleet.errors
    await until(lambda: len(fleet.pids("--child")) == 2 and victim not in fleet.pids("--child"), 30)
    seen = json.loads(await fleet.manage("status", "--json"))["dispatcher"]
    assert (seen["epoch"], seen["in_flight"], seen["queued"], seen["leaked_slots"], seen["overcommitted"]) == (2, 0, 0, 0, 0)


async def test_b70_an_idempotency_key_is_one_over_all_processes(fleet: Fleet) -> None:
    await fleet.start(3)
    same = {"authorization": f"Bearer {fleet.key}", "idempotency-key": "order-66"}

    async def ask_anew() -> int:
        async with httpx.AsyncClient(base_url=fleet.installation.url, headers=same, timeout=60) as client:
            return (await client.post("/v1/chat/completions", json=BODY)).status_code

    statuses = Counter(await asyncio.gather(*(ask_anew() for _ in range(24))))  # connections are spread over the processes
    assert statuses == {200: 1, 409: 23}


async def test_workers_whose_parent_is_killed_drain_and_end(fleet: Fleet) -> None:
    await fleet.start(2)
    workers = fleet.pids() | fleet.pids("--child")
    assert len(workers) == 4
    async with fleet.client() as client:
        running = [asyncio.create_task(fleet.ask(client, stream=True)) for _ in range(4)]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(fleet.installation.stop, "gateway", signal.SIGKILL)
        await asyncio.gather(*running)
    assert fleet.seen == {"streamed": 4}
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 30)


async def test_a_setting_that_is_wrong_ends_the_parent_with_the_workers_word(fleet: Fleet) -> None:
    gateway = fleet.installation.start("gateway", "--processes", "2", HEADWAY_HEAD_S="soon")
    assert await asyncio.to_thread(gateway.wait, 120) == 1
    assert "HEADWAY_HEAD_S must be a number of seconds" in fleet.installation.log("gateway")

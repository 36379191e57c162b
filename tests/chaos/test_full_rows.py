"""Rows of the fault list at their full size, which take minutes: their short forms are in the rings (`make soak`)."""

import asyncio
import json
import os
import signal
import time
from collections import Counter

import httpx
import pytest

from inference.gateway.edge import EdgeTunables
from inference.gateway.parts import GatewayTunables
from tests.chaos.conftest import Pair
from tests.e2e.conftest import TINY
from tests.e2e.installation import Installation, eventually
from tests.e2e.test_gateway_processes import Fleet, fleet, until, until_begun
from tests.fakes.gateway import basic, model_changes, running_gateway
from tests.fakes.raw_http import RawClient
from tests.fakes.replica import ScriptedReplica

__all__ = ["fleet"]  # a fixture

pytestmark = pytest.mark.soak
MESSAGES = [{"role": "user", "content": "hi"}]
BODY_BYTES = 20_000_000


async def test_b97_one_connection_is_kept_however_far_apart_its_requests_are() -> None:
    """75 s is where ours is closed: that request alone may meet an end, and then before it was sent."""
    async with ScriptedReplica() as replica, running_gateway(model_changes("m", [replica.url])) as gateway:
        body = json.dumps(basic()).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {gateway.key}\r\n"
        request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        client = await RawClient.connect(gateway.port)
        for pause_s in (0.0, 4.9, 5.0, 5.1, 60.0, 74.0):
            await asyncio.sleep(pause_s)
            client.writer.write(request)
            assert (await client.answer())[0] == 200, f"after {pause_s} s"
        await client.close()
    assert EdgeTunables().idle_connection_s == 75.0


async def test_b101_fifty_bodies_of_20_mb_on_reused_connections_get_a_status_each() -> None:
    """Those for which there is no room are told so (503), and none is cut off."""
    tunables = GatewayTunables(max_body_bytes=32 * 2**20, drain_s=0.2)
    edge = EdgeTunables(max_bodies_bytes=512 * 2**20, idle_connection_s=5.0)
    messages = [{"role": "user", "content": "a" * (BODY_BYTES // 16)}] * 16
    body = json.dumps(basic(messages=messages)).encode()
    assert len(body) > BODY_BYTES * 0.99
    async with (
        ScriptedReplica() as replica,
        running_gateway(model_changes("m", [replica.url], max_queued=100), tunables=tunables, edge=edge) as gateway,
        httpx.AsyncClient(base_url=gateway.url, headers=gateway.auth, timeout=300) as client,
    ):
        seen: Counter[int] = Counter()
        for _ in range(2):
            answers = await asyncio.gather(*(client.post("/v1/chat/completions", content=body) for _ in range(50)))
            seen.update(answer.status_code for answer in answers)
        assert seen.total() == 100
        assert set(seen) <= {200, 503}, seen
        assert seen[200] > 0


async def test_b126_minute_long_streams_outlive_a_rolling_restart(fleet: Fleet) -> None:
    await fleet.start(2, HEADWAY_GATEWAY_DRAIN_S="90")
    before = fleet.pids()
    async with fleet.client() as client:
        running = [asyncio.create_task(fleet.ask(client, stream=True, max_tokens=1000)) for _ in range(20)]
        await until_begun(fleet, 20)
        os.kill(fleet.parent_pid, signal.SIGHUP)
        await until(lambda: len(fleet.pids()) == 2 and not fleet.pids() & before, 150)
        await asyncio.gather(*running)
    assert fleet.seen == {"streamed": 20}, fleet.errors
    records = await fleet.usage(20)
    assert {record["end_state"] for record in records} == {"done"}


def test_b126_draining_each_of_two_replicas_in_turn_fails_no_request(service: Pair) -> None:
    """Two real engines; the fleet is taken down to one and up to two again, twice, while 8 clients ask without a pause."""
    installation, headers = service.installation, {"authorization": f"Bearer {service.key}"}
    service.wait_for_two()

    async def load(is_over: asyncio.Event) -> Counter[str]:
        seen: Counter[str] = Counter()

        async def client_loop(client: httpx.AsyncClient, number: int) -> None:
            body = {"model": TINY, "messages": MESSAGES, "max_tokens": 400, "ignore_eos": True, "stream": bool(number % 2)}
            while not is_over.is_set():
                answer = await client.post("/v1/chat/completions", json=body)
                is_whole = answer.status_code == 200 and ("[DONE]" in answer.text if number % 2 else "choices" in answer.text)
                seen["whole" if is_whole else f"{answer.status_code} {answer.text[-200:]}"] += 1

        async with httpx.AsyncClient(base_url=installation.url, headers=headers, timeout=120) as client:
            await asyncio.gather(*(client_loop(client, number) for number in range(8)))
        return seen

    async def roll() -> Counter[str]:
        is_over = asyncio.Event()
        under_way = asyncio.create_task(load(is_over))
        for _ in range(2):
            for replicas in (1, 2):
                await asyncio.to_thread(installation.manage, "scale", TINY, "--replicas", str(replicas))
                await asyncio.to_thread(until_ready, installation, replicas)
        is_over.set()
        return await under_way

    first = {replica["id"] for replica in installation.replicas(TINY) if replica["state"] == "ready"}
    started_s = time.monotonic()
    seen = asyncio.run(roll())
    last = {replica["id"] for replica in installation.replicas(TINY) if replica["state"] == "ready"}
    print(f"\n{seen.total()} requests in {time.monotonic() - started_s:.0f} s over {first} -> {last}: {dict(seen)}")  # noqa: T201
    assert set(seen) == {"whole"}
    assert seen.total() > 50
    records = installation.wait_usage(seen.total())
    assert {record["end_state"] for record in records} == {"done"}


def until_ready(installation: Installation, replicas: int) -> None:
    def holds() -> bool:
        states = Counter(replica["state"] for replica in installation.replicas(TINY))
        return states["ready"] == replicas and states["draining"] == 0

    eventually(holds, within_s=240, every_s=0.5, what=f"{replicas} are ready, none drains")

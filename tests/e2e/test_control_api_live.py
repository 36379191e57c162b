"""The control API beside the gateways: what is done through one is known to all processes of the other within a second."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.installation import Installation
from tests.fakes.replica import ScriptedReplica

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
BASE = "/api/v1/tenants/acme"


@dataclass
class Live:
    installation: Installation
    key: str
    manager: str
    """A key that manages."""

    def gateway(self, key: str) -> httpx.AsyncClient:
        """Each request on a connection of its own, so that every process gets some."""
        limits = httpx.Limits(max_keepalive_connections=0)
        headers = {"authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.installation.url, headers=headers, limits=limits, timeout=30)

    def site(self) -> httpx.AsyncClient:
        url = f"http://127.0.0.1:{self.installation.site_port}"
        return httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {self.manager}"}, timeout=30)

    async def start_site(self) -> None:
        self.installation.start("web")
        await answers(f"http://127.0.0.1:{self.installation.site_port}/readyz")


async def answers(url: str) -> None:
    async with asyncio.timeout(60), httpx.AsyncClient() as client:
        while True:  # noqa: ASYNC110, RUF100
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(url)).status_code == 200:
                    return
            await asyncio.sleep(0.1)


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    installation = Installation(
        tmp_path,
        database_url=os.environ.get("DATABASE_URL", ""),
        HEADWAY_BAD_KEYS_PER_MINUTE="100000",  # a key that was taken away is tried again and again here
    )
    try:
        async with ScriptedReplica() as replica:
            await asyncio.to_thread(installation.migrate)
            await asyncio.to_thread(installation.manage, "create_tenant", "acme")
            issue = ("issue_key", "acme", "--name")
            key = await asyncio.to_thread(installation.manage, *issue, "ci")
            scopes = ("--scope", "manage", "--scope", "read_usage", "--scope", "inference")
            manager = await asyncio.to_thread(installation.manage, *issue, "manager", *scopes)
            await asyncio.to_thread(installation.manage, "register_model", "m")
            register = ("register_replica", "--model", "m", "--url", replica.url, "--kind", "vllm")
            await asyncio.to_thread(installation.manage, *register)
            made = Live(installation, key, manager)
            installation.start("gateway", "--processes", "2")
            await made.start_site()
            await answers(f"{installation.url}/readyz")
            async with made.gateway(key) as client, asyncio.timeout(60):
                while (await client.post("/v1/chat/completions", json=BODY)).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            yield made
    finally:
        await asyncio.to_thread(installation.close)


async def last_success_s(client: httpx.AsyncClient, *, since_s: float) -> float:
    """How long after `since_s` the last request that was served had been sent; one every 20 ms, until refused for a second."""
    last_s, refused_since_s = 0.0, None
    while refused_since_s is None or time.monotonic() - refused_since_s < 1.0:
        sent_s = time.monotonic()
        status = (await client.post("/v1/chat/completions", json=BODY)).status_code
        now_s = time.monotonic()
        if status == 200:
            last_s, refused_since_s = sent_s - since_s, None
        else:
            assert status in (401, 403)
            refused_since_s = refused_since_s or now_s
        await asyncio.sleep(0.02)
        assert now_s - since_s < 30, "it goes on being served"
    return last_s


async def test_b72_b73_a_key_that_is_taken_away_works_nowhere_a_second_later(live: Live) -> None:
    for how in ("revoke", "disable", "demote"):
        await take_away(live, how)


async def take_away(live: Live, how: str) -> None:
    async with live.site() as site, live.gateway(live.key) as first, live.gateway(live.key) as second:
        issued = (await site.post(f"{BASE}/keys/", json={"name": "doomed"})).json()
        for client in (first, second):
            client.headers["authorization"] = f"Bearer {issued['key']}"
        warm: list[int] = []
        async with asyncio.timeout(10):  # each process of the gateway learns of the key for itself
            while set(warm) != {200}:
                asked = [client.post("/v1/chat/completions", json=BODY) for client in (first, second) * 10]
                warm = [answer.status_code for answer in await asyncio.gather(*asked)]
        path = f"{BASE}/keys/{issued['id']}/"
        if how == "revoke":
            done = await site.delete(path)
        elif how == "disable":
            done = await site.post(f"{path}disable/")
        else:
            done = await site.patch(path, json={"scopes": ["read_usage"]})
        since_s = time.monotonic()
        lasts = await asyncio.gather(*(last_success_s(client, since_s=since_s) for client in (first, second)))
    assert done.status_code in (200, 204)
    assert max(lasts) <= 1.0


async def test_b69_usage_is_the_same_whoever_is_asked_and_after_a_restart(live: Live) -> None:
    async def requests(site: httpx.AsyncClient) -> int:
        found = (await site.get(f"{BASE}/usage/?granularity=hour")).json()
        number: int = found["totals"]["requests"]
        return number

    async with live.site() as site, live.gateway(live.key) as client:
        async with asyncio.timeout(20):
            before, again = await requests(site), -1
            while before != again:  # what the fixture asked is on its way
                await asyncio.sleep(1)
                before, again = await requests(site), before
        statuses = [
            answer.status_code
            for _ in range(10)
            for answer in await asyncio.gather(*(client.post("/v1/chat/completions", json=BODY) for _ in range(10)))
        ]
        assert statuses == [200] * 100
        async with asyncio.timeout(5):  # the stated lag: journals are carried over twice a second
            while await requests(site) < before + 100:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert {await requests(site) for _ in range(20)} == {before + 100}
    await asyncio.to_thread(live.installation.stop, "web")
    await live.start_site()
    async with live.site() as site:
        assert {await requests(site) for _ in range(20)} == {before + 100}
        keys = (await site.get(f"{BASE}/requests/?page_size=200")).json()["results"]
        assert len(keys) == before + 100
        assert live.key not in json.dumps(keys)

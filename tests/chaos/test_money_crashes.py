"""Gateways, the dispatcher, the worker, the database and the Redis-protocol server die under load, twenty times each: every
answer is on record once, and nobody spends more than they have.
"""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.installation import Installation
from tests.e2e.test_gateway_processes import Fleet, until, until_status
from tests.fakes.postgres import postgres_server, restart_postgres
from tests.fakes.replica import ScriptedReplica, SeenRequest, Step, answered, chat_answer, chat_events, streamed

pytestmark = pytest.mark.soak

TIMES = int(os.environ.get("MONEY_CRASHES", "20"))
VICTIMS = ("gateway", "dispatcher", "worker", "database", "redis")
AT_ONCE = 12
LOST_RECORDS_WAIT_S = 1
CREDIT_USD, BUDGET_USD = Decimal("0.008"), Decimal("0.008")
FLUSH = (
    "import redis; from django.conf import settings; redis.Redis.from_url(settings.CACHES['default']['LOCATION']).flushall()"
)
SPENT = """
import json
from billing.models import MonthSpend
rows = MonthSpend.objects.filter(key_id="", model="").values_list("tenant_id", "amount_picos")
print(json.dumps([[str(tenant), str(picos)] for tenant, picos in rows]))
"""


def slowly(seen: SeenRequest) -> list[Step]:
    if seen.method != "POST" or not seen.json.get("stream"):
        return answered(chat_answer())
    first, *rest = chat_events(["a", "b", "c", "d", "e", "f"])
    return streamed([first, *(step for event in rest for step in (event, 0.04))])


@dataclass
class Client:
    """One tenant's programs: they ask on and on, and leave in the middle now and then."""

    fleet: Fleet
    tenant: str
    key: str
    rng: random.Random
    answered: set[str] = field(default_factory=set)
    ends: Counter[str] = field(default_factory=Counter)

    async def go_on(self, stop: asyncio.Event) -> None:
        headers = {"authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(base_url=self.fleet.installation.url, headers=headers, timeout=60) as client:
            while not stop.is_set():
                try:
                    end = await self._ask(client)
                except httpx.HTTPError:
                    end = "broken"
                self.ends[end] += 1
                await asyncio.sleep(0.2 if end != "answered" else 0)

    async def _ask(self, client: httpx.AsyncClient) -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "stream": True}
        leaves_after = self.rng.randint(1, 6) if self.rng.random() < 0.2 else None
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                return str(json.loads(await response.aread())["error"]["code"])
            text, count = "", 0
            async for piece in response.aiter_text():
                text, count = text + piece, count + 1
                if count == leaves_after:
                    return "left"
        if not text.endswith("data: [DONE]\n\n"):
            return "cut"
        self.answered.add(response.headers["x-request-id"])
        return "answered"


class Killer:
    def __init__(self, fleet: Fleet, server_url: str, rng: random.Random) -> None:
        self.fleet, self.server_url, self.rng = fleet, server_url, rng

    async def kill(self, victim: str) -> None:
        """And wait until one like it works again: of two deaths at once more may be lost (DESIGN: fault model)."""
        installation = self.fleet.installation
        match victim:
            case "gateway" | "dispatcher":
                kind = "--worker" if victim == "gateway" else "--child"
                before = self.fleet.pids(kind)
                dies = self.rng.choice(sorted(before))
                os.kill(dies, signal.SIGKILL)
                await until(lambda: len(self.fleet.pids(kind) - {dies}) >= len(before), 60)
                await until_status(f"{installation.url}/readyz", 200)
                await asyncio.sleep(2 * LOST_RECORDS_WAIT_S)  # until what it had open is on record: one death at a time
            case "database":
                await asyncio.to_thread(restart_postgres, self.server_url)
            case "worker" | "redis":
                if victim == "redis":
                    await self.fleet.manage("shell", "-v", "0", "-c", FLUSH)
                installation.processes[victim].kill()
                await asyncio.to_thread(installation.processes[victim].wait)
                installation.start(victim)


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[tuple[Fleet, str]]:
    with postgres_server() as url:
        installation = Installation(
            tmp_path, database_url=url, HEADWAY_LOST_RECORDS_WAIT_S=str(LOST_RECORDS_WAIT_S), HEADWAY_OUTBOX_SWEEP_S="1"
        )
        async with ScriptedReplica(default=slowly) as replica:
            fleet = Fleet(installation, "")
            await asyncio.to_thread(installation.migrate)
            await fleet.manage("define_plan", "prepaid", "--is-prepaid", "yes")
            await fleet.manage("register_model", "m", "--max-in-flight", "200")
            await fleet.manage("set_price", "m", "--input-usd", "1", "--output-usd", "1")
            await fleet.manage("register_replica", "--model", "m", "--url", replica.url, "--kind", "vllm")
            for name in ("redis", "worker"):
                installation.start(name)
            try:
                await fleet.start(2)
                yield fleet, url
            finally:
                await asyncio.to_thread(installation.close)


async def a_client(fleet: Fleet, tenant: str, rng: random.Random) -> Client:
    await fleet.manage("create_tenant", tenant)
    if tenant == "prepaid":
        await fleet.manage("set_plan", tenant, "prepaid")
        await fleet.manage("grant_credit", tenant, "--usd", str(CREDIT_USD), "--reason", "test")
    else:
        await fleet.manage("set_limits", tenant, "--budget-usd", str(BUDGET_USD))
    return Client(fleet, tenant, await fleet.manage("issue_key", tenant, "--name", "ci"), rng)


async def test_every_answer_is_on_record_once_and_nobody_spends_more_than_they_have(
    fleet: tuple[Fleet, str], capsys: pytest.CaptureFixture[str]
) -> None:
    fleet_, server_url = fleet
    rng, stop = random.Random(4711), asyncio.Event()
    clients = [await a_client(fleet_, tenant, rng) for tenant in ("prepaid", "budgeted")]
    killer = Killer(fleet_, server_url, rng)
    asking = [asyncio.create_task(client.go_on(stop)) for client in clients for _ in range(AT_ONCE // 2)]
    deaths = list(VICTIMS * TIMES)
    rng.shuffle(deaths)
    for victim in deaths:
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        await killer.kill(victim)
    stop.set()
    await asyncio.gather(*asking)
    await _settled(fleet_, clients)
    for client in clients:
        records = await asyncio.to_thread(fleet_.installation.usage, client.tenant)
        ids = Counter(record["request_id"] for record in records)
        assert client.answered <= ids.keys(), "every answer is on record"
        assert set(ids.values()) <= {1}, "and none twice"
        spent_usd = Decimal(sum(record["amount_picos"] or 0 for record in records)) / 10**12
        assert spent_usd <= (CREDIT_USD if client.tenant == "prepaid" else BUDGET_USD)
        assert spent_usd == await _month_spend_usd(fleet_, records)
        refused = client.ends["credit_balance_exhausted"] + client.ends["insufficient_quota"]
        assert refused or TIMES < 8, f"nobody came to the end of it: {client.ends}"
        told = f"{client.tenant}: {len(client.answered)} answered, spent ${spent_usd} after {len(deaths)} deaths; {client.ends}"
        with capsys.disabled():
            print(told)  # noqa: T201
    shown: dict[str, Any] = json.loads(await fleet_.manage("balance", "prepaid", "--json"))
    assert (shown["overdrawn_usd"], shown["holds"]) == ("0", [])
    assert Decimal(shown["left_usd"]) >= 0


async def _settled(fleet: Fleet, clients: list[Client]) -> None:
    """Until journals are carried over and lost requests are written: no record comes any more."""
    before = -1
    for _ in range(30):
        await asyncio.sleep(2)
        now = sum([len(await asyncio.to_thread(fleet.installation.usage, client.tenant)) for client in clients])
        if now == before:
            return
        before = now


async def _month_spend_usd(fleet: Fleet, records: list[dict[str, Any]]) -> Decimal:
    rows = json.loads((await fleet.manage("shell", "-v", "0", "-c", SPENT)).splitlines()[-1])
    tenant_id = records[0]["tenant_id"]
    return Decimal(sum(int(picos) for tenant, picos in rows if tenant == tenant_id)) / 10**12

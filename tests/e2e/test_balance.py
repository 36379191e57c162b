"""A balance before real gateway processes, a real ledger and a scripted engine: many at once, and kills in the middle."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.installation import Installation
from tests.e2e.test_gateway_processes import Fleet, until, until_status
from tests.fakes.replica import ScriptedReplica, SeenRequest, Step, answered, chat_answer, chat_events, streamed

ASKED_TOKENS = 100
PRICE = Decimal("1e-6")
"""US dollars a token, whichever."""


class Engine:
    """Answers streams when the gate opens; counts how many wait at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = 0

    def __call__(self, seen: SeenRequest) -> list[Step]:
        if seen.method != "POST" or not seen.json.get("stream"):
            return answered(chat_answer())
        self.begun += 1
        first, *rest = chat_events(["a", "b", "c"])
        return streamed([first, self.gate, *rest])


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def fleet(tmp_path: Path, engine: Engine) -> AsyncIterator[Fleet]:
    installation = Installation(tmp_path, database_url=os.environ.get("DATABASE_URL", ""), HEADWAY_LOST_RECORDS_WAIT_S="1")
    async with ScriptedReplica(default=engine) as replica:
        fleet = Fleet(installation, "")
        await asyncio.to_thread(installation.migrate)
        await fleet.manage("define_plan", "prepaid", "--is-prepaid", "yes")
        await fleet.manage("create_tenant", "acme")
        await fleet.manage("set_plan", "acme", "prepaid")
        fleet.key = await fleet.manage("issue_key", "acme", "--name", "ci")
        await fleet.manage("register_model", "m", "--max-in-flight", "200")
        await fleet.manage("set_price", "m", "--input-usd", "1", "--output-usd", "1")
        await fleet.manage("register_replica", "--model", "m", "--url", replica.url, "--kind", "vllm")
        try:
            yield fleet
        finally:
            await asyncio.to_thread(installation.close)


async def balance(fleet: Fleet) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await fleet.manage("balance", "acme", "--json"))
    return found


async def start(fleet: Fleet, processes: int) -> None:
    if processes > 1:
        await fleet.start(processes)
    else:
        await asyncio.to_thread(fleet.installation.start_gateway)
        await until_status(f"{fleet.installation.url}/readyz", 200)


async def cost_at_most(fleet: Fleet) -> Decimal:
    """What one request reserves, as its refusal says."""
    async with fleet.client() as client:
        answer = await client.post("/v1/chat/completions", json=_body())
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (429, "credit_balance_exhausted")
    return Decimal(error["detail"]["limit"]["asked"]) * PRICE


def _body() -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": ASKED_TOKENS,
        "stream": True,
    }


def ask_many(fleet: Fleet, client: httpx.AsyncClient, number: int) -> list["asyncio.Task[None]"]:
    return [asyncio.create_task(fleet.ask(client, stream=True, max_tokens=ASKED_TOKENS)) for _ in range(number)]


async def settled(fleet: Fleet, granted: Decimal) -> None:
    """The balance is what was granted less the ledger, to the pico-dollar, and not below nothing."""
    records = await asyncio.to_thread(fleet.installation.usage)
    spent = Decimal(sum(record["amount_picos"] or 0 for record in records))
    shown = await balance(fleet)
    assert Decimal(shown["left_usd"]) == granted - spent / 10**12 >= 0
    assert (shown["overdrawn_usd"], shown["holds"]) == ("0", [])


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with fleet.client() as client:
        yield client


@pytest.mark.parametrize("processes", [1, 2])
async def test_b51_200_requests_at_once_against_a_balance_for_ten(
    fleet: Fleet, client: httpx.AsyncClient, engine: Engine, processes: int
) -> None:
    await start(fleet, processes)
    granted = 10 * await cost_at_most(fleet)
    await fleet.manage("grant_credit", "acme", "--usd", str(granted), "--reason", "for ten")
    async with asyncio.timeout(30):
        while Decimal((await _told(fleet))["credit_picos"]) != granted * 10**12:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    asking = ask_many(fleet, client, 200)
    await until(lambda: sum(task.done() for task in asking) == 190, 60)
    assert engine.begun == 10
    seen = await _told(fleet)
    assert int(seen["spent_picos"]) + int(seen["reserved_picos"]) <= int(seen["credit_picos"])
    taking = ("debit_credit", "acme", "--usd", "0.00001", "--reason", "a mistake")
    with pytest.raises(AssertionError, match="nothing was taken: requests that run may need"):
        await fleet.manage(*taking)
    engine.gate.set()
    await asyncio.gather(*asking)
    assert fleet.seen == Counter({"status 429 credit_balance_exhausted": 190, "streamed": 10}), fleet.errors
    await fleet.usage(201)
    await settled(fleet, granted)
    assert "taken" in await fleet.manage(*taking)
    await settled(fleet, granted - Decimal("0.00001"))


async def _told(fleet: Fleet) -> dict[str, Any]:
    """The balance as the dispatcher counts it."""
    status = json.loads(await fleet.manage("status", "--json"))
    balances = ((status.get("dispatcher") or {}).get("limits") or {}).get("balances") or {}
    return next(iter(balances.values()), {"credit_picos": "0"})


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_gateway_that_is_killed_in_the_middle_leaves_what_was_granted_less_the_ledger(
    fleet: Fleet, client: httpx.AsyncClient, engine: Engine, processes: int
) -> None:
    await start(fleet, processes)
    granted = 40 * await cost_at_most(fleet)
    await fleet.manage("grant_credit", "acme", "--usd", str(granted), "--reason", "for forty")
    engine.gate.set()
    done = 0
    async with asyncio.timeout(60):
        while done < 5:  # until the grant is known
            (asking,) = ask_many(fleet, client, 1)
            await asking
            done = fleet.seen["streamed"]
    engine.gate.clear()
    before = engine.begun
    asking_many = ask_many(fleet, client, 20)
    await until(lambda: engine.begun == before + 20, 60)
    victim = min(fleet.pids()) if processes > 1 else fleet.parent_pid
    os.kill(victim, signal.SIGKILL)
    engine.gate.set()
    if processes == 1:
        await asyncio.to_thread(fleet.installation.processes["gateway"].wait, 30)
        await start(fleet, 1)
    await asyncio.wait(asking_many, timeout=60)
    asked = fleet.seen.total() + 1
    records = await fleet.usage(asked)
    assert len({record["request_id"] for record in records}) == len(records) == asked
    assert "gateway_lost" in {record["end_state"] for record in records}
    async with asyncio.timeout(30):  # a lost record may still get better
        while True:
            try:
                await settled(fleet, granted)
                break
            except AssertionError:
                await asyncio.sleep(0.5)
    await until_status(f"{fleet.installation.url}/readyz", 200)
    fleet.seen.clear()
    engine.gate.clear()  # what is held for one that runs is not there for the next
    before = engine.begun
    asking_many = ask_many(fleet, client, 100)
    await until(lambda: engine.begun - before + sum(task.done() for task in asking_many) == 100, 60)
    engine.gate.set()
    await asyncio.gather(*asking_many)
    assert set(fleet.seen) == {"streamed", "status 429 credit_balance_exhausted"}, fleet.seen
    await fleet.usage(asked + 100)
    await settled(fleet, granted)

"""Tenants that pay in advance, as their clients see it: what is left lets in, and nothing more."""

import asyncio
from typing import Any

import httpx
import pytest

from headway.clock import FakeClock
from headway.money import PICOS_A_MICRO
from inference.gateway.state import Change
from tests.fakes.gateway import ACME, GatewayUnderTest, basic, model_changes, running_gateway, until
from tests.fakes.replica import ScriptedReplica, chat_events, streamed
from tests.inference.dispatch.test_dispatcher import terms
from tests.inference.gateway.test_edge_limits import PRICE

PRICED = Change(id=910, kind="price", key="m", payload=PRICE)
COSTS = 13
"""Micro-dollars that a request of the cast costs: seven tokens of prompt as the engine counts, and three made."""


def prepaid(change_id: int = 901) -> Change:
    row = terms(ACME, id=change_id)
    return Change(id=change_id, kind="terms", key=ACME, payload={**(row.payload or {}), "is_prepaid": True})


def balance(left: int, *, spent: int = 0, change_id: int = 920, expiring: list[tuple[float, int]] | None = None) -> Change:
    """Micro-dollars."""
    payload = {
        "credit_picos": str((left + spent) * PICOS_A_MICRO),
        "spent_picos": str(spent * PICOS_A_MICRO),
        "expiring": [[at_s, str(picos * PICOS_A_MICRO)] for at_s, picos in expiring or []],
    }
    return Change(id=change_id, kind="balance", key=ACME, payload=payload)


def left(gateway: GatewayUnderTest) -> int:
    (use,) = gateway.host.snapshot().limits.balances
    return (use.credit_picos - use.spent_picos - use.reserved_picos) // PICOS_A_MICRO


@pytest.fixture
async def replica() -> Any:
    async with ScriptedReplica() as scripted:
        yield scripted


async def reserved_by_one(replica: ScriptedReplica) -> int:
    """What a request of the cast reserves, in micro-dollars."""
    gate = asyncio.Event()
    replica.script(streamed([gate, *chat_events()]))
    changes = [*model_changes("m", [replica.url]), PRICED, prepaid(), balance(10**6)]
    async with running_gateway(changes) as gateway:
        asking = asyncio.create_task(gateway.post())
        await until(lambda: gateway.in_flight() == 1)
        reserved = 10**6 - left(gateway)
        gate.set()
        await asking
    return reserved


async def test_b51_of_200_requests_at_once_against_a_balance_for_ten_at_most_ten_run(replica: ScriptedReplica) -> None:
    reserved, gate = await reserved_by_one(replica), asyncio.Event()
    replica.requests.clear()
    replica.script(*[streamed([gate, *chat_events()]) for _ in range(200)])
    changes = [*model_changes("m", [replica.url], max_in_flight=200, max_queued=200), PRICED, prepaid(), balance(10 * reserved)]
    async with running_gateway(changes) as gateway:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=gateway.url, headers=gateway.auth, timeout=60, limits=limits) as http:
            asking = [asyncio.create_task(http.post("/v1/chat/completions", json=basic())) for _ in range(200)]
            await until(lambda: sum(task.done() for task in asking) == 190, 60)
            assert (gateway.in_flight(), left(gateway)) == (10, 0)
            gate.set()
            answers = await asyncio.gather(*asking)
        codes = [(answer.status_code, answer.json().get("error", {}).get("code")) for answer in answers]
        assert codes.count((200, None)) == 10
        assert codes.count((429, "credit_balance_exhausted")) == 190
        assert len(replica.requests) == 10
        spent = sum(record.amount_picos or 0 for record in gateway.journal.closed)
        assert left(gateway) == 10 * reserved - spent // PICOS_A_MICRO > 0, "what was reserved and not used is back, exactly"


async def test_a_refusal_says_what_is_left_reserved_and_asked_and_whether_waiting_helps(replica: ScriptedReplica) -> None:
    reserved, gate = await reserved_by_one(replica), asyncio.Event()
    replica.script(streamed([gate, *chat_events()]))
    changes = [*model_changes("m", [replica.url]), PRICED, prepaid(), balance(reserved + 5)]
    async with running_gateway(changes) as gateway:
        asking = asyncio.create_task(gateway.post())
        await until(lambda: gateway.in_flight() == 1)
        waits, never = await gateway.post(), await gateway.post(body=basic(max_tokens=500))
        gate.set()
        assert (await asking).status_code == 200
    for answer, retry in ((waits, "estimate"), (never, "never")):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["type"]) == (429, "credit_balance_exhausted", "insufficient_quota")
        assert error["detail"]["retry"] == retry
        limit = error["detail"]["limit"]
        assert (limit["kind"], limit["value"], limit["reserved"]) == ("balance", reserved + 5, reserved)
        assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" in waits.headers
    assert "retry-after" not in never.headers
    assert never.json()["error"]["message"].endswith("Add credit, or make the request smaller.")


async def test_who_pays_in_advance_and_has_no_balance_gets_nothing(replica: ScriptedReplica) -> None:
    async with running_gateway([*model_changes("m", [replica.url]), PRICED, prepaid()]) as gateway:
        assert (await gateway.post()).status_code == 429
        gateway.state.apply([balance(1000)])
        await until(lambda: left(gateway) == 1000)
        assert (await gateway.post()).status_code == 200
        gateway.state.apply([Change(id=930, kind="balance", key=ACME, payload={"credit_picos": "much"})])
        await asyncio.sleep(0)
        assert left(gateway) == 1000 - COSTS, "what cannot be read changes nothing"
        gateway.state.apply([terms(ACME, id=940)])
        await until(lambda: not gateway.host.snapshot().limits.balances)
        assert (await gateway.post(body=basic(max_tokens=5000))).status_code == 200, "it pays later now"


async def test_a_hold_lets_in_less_at_once_and_cuts_nothing_that_runs(replica: ScriptedReplica) -> None:
    gate = asyncio.Event()
    replica.script(streamed([gate, *chat_events()]))
    async with running_gateway([*model_changes("m", [replica.url]), PRICED, prepaid(), balance(100)]) as gateway:
        asking = asyncio.create_task(gateway.post())
        await until(lambda: gateway.in_flight() == 1)
        gateway.state.apply([balance(0, change_id=930)])
        await until(lambda: left(gateway) < 0)
        assert (await gateway.post()).status_code == 429
        gate.set()
        assert (await asking).status_code == 200


async def test_credit_is_gone_for_new_requests_at_the_instant_it_expires(replica: ScriptedReplica) -> None:
    clock = FakeClock()
    over_s = clock.now().timestamp() + 3600
    changes = [*model_changes("m", [replica.url]), PRICED, prepaid(), balance(1000, expiring=[(over_s, 1000)])]
    async with running_gateway(changes, clock=clock) as gateway:
        assert (await gateway.post()).status_code == 200
        clock.advance(3599)
        assert (await gateway.post()).status_code == 200
        clock.advance(1)
        assert (await gateway.post()).status_code == 429
        assert left(gateway) == 0

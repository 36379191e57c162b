"""Idempotency-Keys over several gateways of one brain."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from headway.clock import SystemClock
from inference.dispatch.dispatcher import Dispatcher
from inference.dispatch.host import BrainHost
from inference.gateway.idempotency import IdempotencyKeyUsed
from inference.gateway.state import ControlState
from inference.policy.decisions import Ask, Ending, Usage
from tests.fakes.gateway import ACME, GLOBEX, model_changes

pytestmark = pytest.mark.asyncio
KEY = b"0123456789abcdef"
MADE = Usage(10, 0, 3)


class Pair:
    """Two gateways."""

    def __init__(self) -> None:
        self.state = ControlState()
        self.state.apply(model_changes("m", ["http://replica-0"], max_in_flight=4, max_queued=4))
        self.host = BrainHost(self.state, SystemClock())
        self.one, self.other = Dispatcher(self.state), Dispatcher(self.state)
        self.sessions = [self.host.open(gateway.deliver) for gateway in (self.one, self.other)]
        self.one.link, self.other.link = self.sessions


def ask(request_id: str, tenant: str = ACME, key: bytes = KEY) -> Ask:
    return Ask(id=request_id, model="m", tenant=tenant, key="k1", prompt_tokens=10, max_tokens=20, repeat_key=key)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = Pair()
    yield pair
    pair.host.brain.check_invariants(pair.host.now_s())
    for gateway in (pair.one, pair.other):
        gateway.close()
    pair.host.close()


async def test_b70_a_key_in_use_at_one_gateway_is_refused_at_another_with_its_request(pair: Pair) -> None:
    await pair.one.submit(ask("r1"))
    with pytest.raises(IdempotencyKeyUsed) as running:
        await pair.other.submit(ask("r2"))
    assert "in use by the request r1" in running.value.message
    assert running.value.data["headers"] == [("x-headway-receipt", "r1"), ("x-should-retry", "true")]
    assert pair.host.snapshot().in_flight == 1
    pair.one.settle("r1", Ending.WELL, MADE)
    with pytest.raises(IdempotencyKeyUsed, match="was used for the request r1"):
        await pair.other.submit(ask("r3"))
    assert pair.host.snapshot().in_flight == 0


async def test_b70_a_request_that_made_nothing_or_whose_gateway_died_early_frees_its_key(pair: Pair) -> None:
    await pair.one.submit(ask("r1"))
    pair.one.settle("r1", Ending.FAILED, Usage())
    await pair.other.submit(ask("r2"))
    pair.sessions[1].close()
    await pair.one.submit(ask("r3"))
    pair.one.settle("r3", Ending.WELL, MADE)


async def test_another_attempt_of_the_same_request_has_its_key_still(pair: Pair) -> None:
    grant = await pair.one.submit(ask("r1"))
    grant.give_back(Ending.FAILED)
    await pair.one.submit(ask("r1"))
    pair.one.settle("r1", Ending.WELL, MADE)
    with pytest.raises(IdempotencyKeyUsed):
        await pair.one.submit(ask("r2"))


async def test_a_key_is_its_tenants_own_and_no_key_is_no_repeat(pair: Pair) -> None:
    await asyncio.gather(pair.one.submit(ask("r1")), pair.other.submit(ask("r2", GLOBEX)))
    await asyncio.gather(pair.one.submit(ask("r3", key=b"")), pair.other.submit(ask("r4", key=b"")))
    for gateway, name in ((pair.one, "r1"), (pair.other, "r2"), (pair.one, "r3"), (pair.other, "r4")):
        gateway.settle(name, Ending.WELL, MADE)


async def test_a_restored_request_keeps_its_key_through_a_takeover(pair: Pair) -> None:
    session = pair.host.open(lambda _decisions: None)
    session.restore_running(ask("r1"), "rep-0", age_s=1.0, completion_tokens=2)
    with pytest.raises(IdempotencyKeyUsed):
        await pair.other.submit(ask("r2"))
    session.end("r1", Ending.WELL, Usage())
    await pair.other.submit(ask("r3"))
    pair.other.settle("r3", Ending.WELL, MADE)

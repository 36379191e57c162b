"""The gateway's side of the brain, with the brain in the same process: grants, refusals, cancels, limits."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from headway.clock import SystemClock
from inference.dispatch.dispatcher import Dispatcher, Grant
from inference.dispatch.host import BrainHost, HostTunables
from inference.errors import DeadlineNotMet, NoReplicaReady, QueueFull, QuotaSpent, RateLimited
from inference.gateway.state import Change, ControlState
from inference.policy.brain_tunables import BrainTunables
from inference.policy.decisions import Ask, Ending, Queued, Tier, TokenPrice, Usage
from tests.fakes.gateway import ACME, GLOBEX, model_changes

pytestmark = pytest.mark.asyncio


def terms(tenant: str = ACME, *, id: int = 900, tier_ceiling: str = "interactive", **limits: int) -> Change:  # noqa: A002
    rows = [{"scope": "tenant", "id": tenant, "kind": kind, "value": value} for kind, value in limits.items()]
    payload = {
        "plan": "p",
        "weight": 1.0,
        "tier_ceiling": tier_ceiling,
        "time_zone": "UTC",
        "default_max_tokens": None,
        "limits": rows,
    }
    return Change(id=id, kind="terms", key=tenant, payload=payload)


class Rig:
    def __init__(self, *changes: Change, slots: int = 2, replicas: int = 1, brain: BrainTunables | None = None) -> None:
        self.state = ControlState()
        urls = [f"http://replica-{number}" for number in range(replicas)]
        self.state.apply([*model_changes("m", urls, max_in_flight=slots, max_queued=3), *changes])
        self.host = BrainHost(self.state, SystemClock(), brain=brain, tunables=HostTunables(positions_s=0.02))
        self.dispatcher = Dispatcher(self.state)
        self.dispatcher.link = self.session = self.host.open(self.dispatcher.deliver)
        self.number = 0

    def ask(self, tenant: str = ACME, **more: Any) -> Ask:
        self.number += 1
        given = {"id": f"r{self.number}", "prompt_tokens": 10, "max_tokens": 20, **more}
        return Ask(model="m", tenant=tenant, key="k1", **given)

    def check(self) -> None:
        self.host.brain.check_invariants(self.host.now_s())

    @property
    def in_flight(self) -> int:
        return self.host.snapshot().in_flight


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def build(*changes: Change, **options: Any) -> Rig:
        rigs.append(Rig(*changes, **options))
        return rigs[-1]

    yield build
    for rig in rigs:
        rig.check()
        rig.dispatcher.close()
        rig.host.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  nobody tells when it changes
            await asyncio.sleep(0.002)


async def test_a_grant_names_a_replica_and_settling_gives_its_slot_back(make: Callable[..., Rig]) -> None:
    rig = make()
    grant = await rig.dispatcher.submit(rig.ask())
    assert (grant.replica.id, grant.decision.max_tokens, rig.in_flight) == ("rep-0", 20, 1)
    rig.dispatcher.settle("r1", Ending.WELL, Usage(10, 0, 3))
    rig.dispatcher.settle("r1", Ending.WELL, Usage(10, 0, 3))
    assert rig.in_flight == 0


async def test_the_next_in_the_queue_is_woken_and_was_told_where_it_stood(make: Callable[..., Rig]) -> None:
    rig = make(slots=1)
    told: list[Queued] = []
    await rig.dispatcher.submit(rig.ask())
    waiting = asyncio.create_task(rig.dispatcher.submit(rig.ask(), told.append))
    await until(lambda: len(told) > 1)
    assert {queued.position for queued in told} == {1}
    rig.dispatcher.settle("r1", Ending.WELL, Usage())
    grant = await waiting
    assert (grant.decision.id, rig.in_flight) == ("r2", 1)


@pytest.mark.parametrize("turns", range(4))
async def test_cancelling_leaks_nothing_whenever_it_comes(make: Callable[..., Rig], turns: int) -> None:
    rig = make(slots=1)
    first = await rig.dispatcher.submit(rig.ask())
    assert isinstance(first, Grant)
    waiting = asyncio.create_task(rig.dispatcher.submit(rig.ask()))
    await asyncio.sleep(0)
    if turns > 1:
        rig.dispatcher.settle("r1", Ending.WELL, Usage())
    for _ in range(turns % 2):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled() or turns == 3
    rig.dispatcher.settle("r2", Ending.NEUTRAL, Usage())
    rig.dispatcher.settle("r1", Ending.WELL, Usage())
    assert (rig.in_flight, rig.host.snapshot().queued, rig.host.snapshot().limits.open) == (0, 0, 0)


async def test_a_full_queue_refuses_and_says_when_to_come_back(make: Callable[..., Rig]) -> None:
    rig = make(slots=1)
    await rig.dispatcher.submit(rig.ask())
    waiting = [asyncio.create_task(rig.dispatcher.submit(rig.ask())) for _ in range(3)]
    await until(lambda: rig.host.snapshot().queued == 3)
    with pytest.raises(QueueFull) as refused:
        await rig.dispatcher.submit(rig.ask())
    assert refused.value.retry_after_s and refused.value.data["detail"]["retry"] == "estimate"  # type: ignore[index]
    rig.dispatcher.close()
    for task in waiting:
        with pytest.raises(NoReplicaReady):
            await task
        rig.dispatcher.settle(f"r{waiting.index(task) + 2}", Ending.NEUTRAL, Usage())


async def test_a_wait_that_is_foreseen_to_be_too_long_is_refused_at_once(make: Callable[..., Rig]) -> None:
    rig = make(slots=1, brain=BrainTunables(queue_timeout_s=0.05))
    await rig.dispatcher.submit(rig.ask())
    with pytest.raises(DeadlineNotMet) as refused:
        await rig.dispatcher.submit(rig.ask())
    assert refused.value.data["detail"]["predicted_wait_s"] > 0.05  # type: ignore[index]


async def test_b37_calls_started_together_reserve_what_they_may_use(make: Callable[..., Rig]) -> None:
    rig = make(terms(input_tokens_per_minute=1000, output_tokens_per_minute=1000), slots=50)
    asks = [rig.ask(prompt_tokens=100, max_tokens=200) for _ in range(50)]
    results = await asyncio.gather(*(rig.dispatcher.submit(ask) for ask in asks), return_exceptions=True)
    granted = [result for result in results if isinstance(result, Grant)]
    assert sum(grant.decision.max_tokens for grant in granted) == 1000
    refused = [result for result in results if not isinstance(result, Grant)]
    assert all(isinstance(error, RateLimited) for error in refused)
    error = refused[0]
    assert isinstance(error, RateLimited)
    assert error.data["detail"]["limit"] == {  # type: ignore[index]
        "kind": "output_tokens_per_minute",
        "scope": "tenant",
        "value": 1000,
        "used": 0,
        "reserved": 1000,
        "asked": 200,
        "resets_in_s": pytest.approx(60, abs=1),
    }


async def test_b36_what_is_left_falls_by_what_was_used(make: Callable[..., Rig]) -> None:
    rig = make(terms(output_tokens_per_minute=10_000))
    await rig.dispatcher.submit(rig.ask(max_tokens=500))
    rig.dispatcher.settle("r1", Ending.WELL, Usage(10, 0, 123))
    grant = await rig.dispatcher.submit(rig.ask(max_tokens=100))
    assert grant.decision.rates.remaining_tokens == 10_000 - 123 - 100


async def test_b32_a_spent_budget_is_no_rate_limit_and_is_not_retried(make: Callable[..., Rig]) -> None:
    rig = make(terms(monthly_budget=1_000_000))
    price = TokenPrice(output_picos=1_000_000 * 1_000_000)  # a dollar a token
    with pytest.raises(QuotaSpent) as refused:
        await rig.dispatcher.submit(rig.ask(max_tokens=2, price=price))
    error = refused.value
    assert (error.http_status, error.code) == (429, "insufficient_quota")
    assert ("x-should-retry", "false") in error.data["headers"]  # type: ignore[operator]
    await rig.dispatcher.submit(rig.ask(max_tokens=1, price=price))


async def test_b61_a_retry_counts_as_the_same_request(make: Callable[..., Rig]) -> None:
    rig = make(terms(requests_per_minute=1), replicas=2)
    ask = rig.ask()
    grant = await rig.dispatcher.submit(ask)
    grant.give_back(Ending.FAILED, "reset")
    again = await rig.dispatcher.submit(Ask(**{**_fields(ask), "excluded": frozenset({grant.replica.id})}))
    assert again.replica.id != grant.replica.id
    rig.dispatcher.settle(ask.id, Ending.WELL, Usage())
    with pytest.raises(RateLimited):
        await rig.dispatcher.submit(rig.ask())


async def test_concurrency_waits_instead_of_refusing(make: Callable[..., Rig]) -> None:
    rig = make(terms(concurrent_requests=1), slots=4)
    await rig.dispatcher.submit(rig.ask())
    waiting = asyncio.create_task(rig.dispatcher.submit(rig.ask()))
    other = await rig.dispatcher.submit(rig.ask(GLOBEX))
    assert other.replica.id == "rep-0" and not waiting.done()
    rig.dispatcher.settle("r1", Ending.WELL, Usage())
    await waiting


async def test_a_tier_above_the_plan_s_is_clamped(make: Callable[..., Rig]) -> None:
    rig = make(terms(tier_ceiling="batch"))
    grant = await rig.dispatcher.submit(rig.ask(tier=Tier.INTERACTIVE))
    assert grant.decision.tier is Tier.BATCH


async def test_terms_that_change_hold_from_then_on(make: Callable[..., Rig]) -> None:
    rig = make(terms(requests_per_minute=1))
    await rig.dispatcher.submit(rig.ask())
    with pytest.raises(RateLimited):
        await rig.dispatcher.submit(rig.ask())
    rig.state.apply([terms(id=901, requests_per_minute=2)])
    await asyncio.sleep(0.01)
    await rig.dispatcher.submit(rig.ask())


async def test_a_gateway_that_dies_frees_all_it_held_at_once(make: Callable[..., Rig]) -> None:
    rig = make(slots=1)
    await rig.dispatcher.submit(rig.ask())
    other = Dispatcher(rig.state)
    other.link = rig.host.open(other.deliver)
    waiting = asyncio.create_task(other.submit(Ask(id="x1", model="m", tenant=GLOBEX, key="k2")))
    await until(lambda: rig.host.snapshot().queued == 1)
    rig.session.close()
    assert (await waiting).replica.id == "rep-0"
    assert rig.in_flight == 1


async def test_a_replica_that_drains_gets_nothing_new(make: Callable[..., Rig]) -> None:
    rig = make(replicas=2)
    rig.state.apply([Change(id=950, kind="replica", key="rep-0", payload={**_payload(rig, "rep-0"), "state": "draining"})])
    await asyncio.sleep(0.01)
    grants = [await rig.dispatcher.submit(rig.ask()) for _ in range(2)]
    assert {grant.replica.id for grant in grants} == {"rep-1"}


def _payload(rig: Rig, replica_id: str) -> dict[str, Any]:
    replica = rig.state.replica(replica_id)
    assert replica is not None
    return {name: getattr(replica, name) for name in replica.__dataclass_fields__ if name != "id"}


def _fields(ask: Ask) -> dict[str, Any]:
    return {name: getattr(ask, name) for name in ask.__dataclass_fields__}

"""The dispatcher and a pool at zero: asked for once, waited for with a place, served or refused by rule (B127)."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from headway.clock import SystemClock
from inference.dispatch.dispatcher import Dispatcher, Grant
from inference.dispatch.host import BrainHost, HostTunables
from inference.dispatch.wake_desk import AWAY, NOBODY, TAKEN_WITHIN_S, WakeDesk
from inference.errors import NoReplicaReady
from inference.gateway.state import Change, ControlState
from inference.policy.decisions import Ask, Ending, Queued, Usage
from inference.services.wake_ups import WakeView
from tests.fakes.gateway import ACME, model_changes

pytestmark = pytest.mark.asyncio
NUM_ASKERS = 100
SLOTS = 8


class Control:
    """What the database would answer: one row a model."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.num_calls = 0
        self.view = WakeView(is_taken=True, age_s=0.0, refused="")

    def ask(self, *, model: str, asked_by: str) -> WakeView:
        self.num_calls += 1
        self.rows.setdefault(model, asked_by)
        return self.view


class Rig:
    def __init__(self, *, hold_limit_s: float = 30.0) -> None:
        self.state, self.control = ControlState(), Control()
        model, self.replica = model_changes("m", ["http://replica"], max_in_flight=SLOTS, max_queued=500)
        assert model.payload is not None
        asleep = {**model.payload, "hold_limit_s": hold_limit_s, "start_s": 8.0}
        self.state.apply([Change(id=1, kind="model", key="m", payload=asleep)])
        self.desk = WakeDesk("d1", ask=self.control.ask)
        self.host = BrainHost(
            self.state, SystemClock(), tunables=HostTunables(positions_s=0.02, cannot_wake_s=3600.0), wake_desk=self.desk
        )
        self.dispatcher = Dispatcher(self.state)
        self.dispatcher.link = self.host.open(self.dispatcher.deliver)
        self.number = 0
        self.told: list[Queued] = []

    def submit(self) -> "asyncio.Task[Grant]":
        self.number += 1
        ask = Ask(id=f"r{self.number}", model="m", tenant=ACME, key="k1", prompt_tokens=10, max_tokens=20)
        return asyncio.create_task(self.dispatcher.submit(ask, self.told.append))

    def wakes(self) -> None:
        self.state.apply([self.replica])

    @property
    def queued(self) -> int:
        return self.host.snapshot().queued


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def build(**options: float) -> Rig:
        rigs.append(Rig(**options))
        return rigs[-1]

    yield build
    for rig in rigs:
        rig.host.brain.check_invariants(rig.host.now_s())
        rig.dispatcher.close()
        rig.host.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  nobody tells when it changes
            await asyncio.sleep(0.002)


async def test_b127_a_hundred_calls_ask_for_one_start_and_all_are_served(make: Callable[..., Rig]) -> None:
    rig = make()
    calls = [rig.submit() for _ in range(NUM_ASKERS)]
    await until(lambda: rig.queued == NUM_ASKERS)
    rig.desk.work(is_database_there=True)
    assert rig.control.rows == {"m": "d1"}
    assert rig.control.num_calls == 1
    await until(lambda: max((queued.position for queued in rig.told), default=0) == NUM_ASKERS)
    assert all(0 < queued.predicted_wait_s <= 8.0 for queued in rig.told)
    rig.wakes()
    served: set[str] = set()
    while len(served) < NUM_ASKERS:
        done, _ = await asyncio.wait([call for call in calls if call.get_name() not in served], return_when="FIRST_COMPLETED")
        for call in done:
            served.add(call.get_name())
            rig.dispatcher.settle(call.result().decision.id, Ending.WELL, Usage(10, 0, 1))
    assert rig.queued == 0 and rig.host.snapshot().in_flight == 0


async def test_b127_those_who_leave_leave_the_queue(make: Callable[..., Rig]) -> None:
    rig = make()
    calls = [rig.submit() for _ in range(10)]
    await until(lambda: rig.queued == 10)
    for call in calls[:7]:
        call.cancel()
    await until(lambda: rig.queued == 3)
    rig.wakes()
    grants = [await call for call in calls[7:]]
    assert len(grants) == 3 and rig.host.snapshot().in_flight == 3
    for grant in grants:
        rig.dispatcher.settle(grant.decision.id, Ending.WELL, Usage())


async def test_b127_beyond_the_limit_they_are_refused_with_a_time_to_come_back(make: Callable[..., Rig]) -> None:
    rig = make(hold_limit_s=0.05)
    with pytest.raises(NoReplicaReady) as refused:
        await rig.submit()
    assert refused.value.retry_after_s and rig.queued == 0


@pytest.mark.parametrize(
    ("is_there", "view"),
    [
        (False, WakeView(is_taken=True, age_s=0.0, refused="")),
        (True, WakeView(is_taken=False, age_s=TAKEN_WITHIN_S + 1, refused="")),
        (True, WakeView(is_taken=False, age_s=0.0, refused="no node has room")),
    ],
    ids=[AWAY, NOBODY, "refused"],
)
async def test_without_a_control_plane_who_waits_and_who_comes_is_told_so(
    make: Callable[..., Rig], is_there: bool, view: WakeView
) -> None:
    rig = make()
    rig.control.view = view
    calls = [rig.submit() for _ in range(5)]
    await until(lambda: rig.queued == 5)
    rig.desk.work(is_database_there=is_there)
    for call in [*calls, rig.submit()]:
        with pytest.raises(NoReplicaReady) as refused:
            await call
        assert refused.value.http_status == 503 and refused.value.retry_after_s
    assert bool(rig.control.rows) == is_there, "without a database nothing is asked of it"


async def test_it_is_asked_again_only_while_somebody_waits(make: Callable[..., Rig]) -> None:
    rig = make()
    call = rig.submit()
    await until(lambda: rig.queued == 1)
    for calls in (1, 2):
        await until(lambda: bool(rig.desk._wanted))
        rig.desk.work(is_database_there=True)
        assert rig.control.num_calls == calls
    call.cancel()
    await until(lambda: rig.queued == 0)
    rig.desk.work(is_database_there=True)  # what was asked for before it left
    before = rig.control.num_calls
    waking = rig.host.brain.waiting_to_wake()
    rig.desk.work(is_database_there=True)
    assert (rig.control.num_calls, waking) == (before, [])

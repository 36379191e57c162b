import asyncio
import gc
import threading
from typing import Any

import pytest

from headway.clock import FakeClock, SystemClock
from inference.dispatch.dispatcher import Ask, Grant, LocalDispatcher
from inference.errors import NoReplicaReady, QueueFull, QueueTimeout, UnknownModel
from inference.gateway.state import Change, ControlState
from inference.policy.admission import AdmissionTunables
from tests.inference.gateway.control_rows import gone, model_row, replica_row, state_of

TUNABLES = AdmissionTunables(queue_timeout_s=30.0, replica_hold_s=2.0)


def ask(model: str = "m", *excluded: str) -> Ask:
    return Ask("req_1", model, "acme-id", "standard", 10, 10, frozenset(excluded))


def dispatcher_of(*changes: Change, tunables: AdmissionTunables = TUNABLES) -> tuple[LocalDispatcher, ControlState, FakeClock]:
    state, clock = state_of(*changes), FakeClock()
    return LocalDispatcher(state, tunables, clock), state, clock


def one_slot() -> tuple[LocalDispatcher, ControlState, FakeClock]:
    return dispatcher_of(model_row(1), replica_row(2, max_in_flight=1))


async def start(dispatcher: LocalDispatcher, request: Ask) -> asyncio.Task[Grant]:
    task = asyncio.create_task(dispatcher.submit(request))
    await asyncio.sleep(0)
    return task


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_free_replica_is_granted_at_once_and_its_release_is_idempotent() -> None:
    dispatcher, _, _ = one_slot()
    grant = await dispatcher.submit(ask())
    assert (grant.replica.id, grant.replica.url, grant.queue_ms) == ("r1", "http://127.0.0.1:1", 0)
    assert dispatcher.snapshot()["m"].in_flight_by_replica == {"r1": 1}
    grant.release()
    grant.release()
    assert dispatcher.snapshot()["m"].in_flight == 0


async def test_a_release_wakes_the_next_in_the_queue_who_learns_how_long_he_waited() -> None:
    dispatcher, _, clock = one_slot()
    first = await dispatcher.submit(ask())
    second, third = await start(dispatcher, ask()), await start(dispatcher, ask())
    clock.advance(1.5)
    first.release()
    grant = await second
    assert grant.queue_ms == 1500
    assert not third.done()
    grant.release()
    (await third).release()
    assert dispatcher.snapshot()["m"].in_flight == 0


async def test_an_unknown_model_is_the_client_s_mistake() -> None:
    dispatcher, _, _ = one_slot()
    with pytest.raises(UnknownModel):
        await dispatcher.submit(ask("nope"))


async def test_a_full_queue_and_a_model_without_replicas_are_refused_with_a_time_to_come_back() -> None:
    dispatcher, _, _ = dispatcher_of(model_row(1, max_queued=0), replica_row(2, max_in_flight=1), model_row(3, "empty"))
    grant = await dispatcher.submit(ask())
    with pytest.raises(QueueFull) as full:
        await dispatcher.submit(ask())
    with pytest.raises(NoReplicaReady) as none:
        await dispatcher.submit(ask("empty"))
    with pytest.raises(NoReplicaReady) as tried:
        await dispatcher.submit(ask("m", "r1"))
    assert all((error.value.retry_after_s or 0) >= 1 for error in (full, none, tried))
    grant.release()


async def test_who_waits_too_long_is_refused() -> None:
    dispatcher, _, clock = one_slot()
    grant = await dispatcher.submit(ask())
    waiting = await start(dispatcher, ask())
    clock.advance(29.9)
    dispatcher.tick()
    await turns()
    assert not waiting.done()
    clock.advance(0.2)
    dispatcher.tick()
    with pytest.raises(QueueTimeout) as refused:
        await waiting
    assert refused.value.retry_after_s
    assert dispatcher.snapshot()["m"].queued == 0
    grant.release()


async def test_the_timer_refuses_without_anybody_calling() -> None:
    state = state_of(model_row(1), replica_row(2, max_in_flight=1))
    dispatcher = LocalDispatcher(state, AdmissionTunables(queue_timeout_s=0.03), SystemClock())
    grant = await dispatcher.submit(ask())
    async with asyncio.timeout(5):
        results = await asyncio.gather(*(dispatcher.submit(ask()) for _ in range(5)), return_exceptions=True)
    assert [type(result) for result in results] == [QueueTimeout] * 5
    grant.release()


async def test_a_waiting_request_that_is_cancelled_leaves_the_queue() -> None:
    dispatcher, _, _ = one_slot()
    first = await dispatcher.submit(ask())
    second, third = await start(dispatcher, ask()), await start(dispatcher, ask())
    second.cancel()
    await turns()
    assert dispatcher.snapshot()["m"].queued == 1
    first.release()
    (await third).release()
    assert dispatcher.snapshot()["m"].in_flight == 0


@pytest.mark.parametrize("release_first", [True, False])
async def test_a_request_cancelled_in_the_turn_in_which_it_is_granted_gives_the_slot_to_the_next(release_first: bool) -> None:
    dispatcher, _, _ = one_slot()
    first = await dispatcher.submit(ask())
    second, third = await start(dispatcher, ask()), await start(dispatcher, ask())
    for step in (first.release, second.cancel) if release_first else (second.cancel, first.release):
        step()
    with pytest.raises(asyncio.CancelledError):
        await second
    async with asyncio.timeout(5):
        (await third).release()
    assert dispatcher.snapshot()["m"].in_flight == 0


async def test_a_request_cancelled_in_the_turn_in_which_it_is_refused_leaves_no_unseen_error() -> None:
    dispatcher, _, clock = one_slot()
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unseen.append(context))
    grant = await dispatcher.submit(ask())
    waiting = await start(dispatcher, ask())
    clock.advance(31)
    dispatcher.tick()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    del waiting
    gc.collect()
    await turns()
    assert unseen == []
    grant.release()


async def test_a_failed_replica_is_spared_and_its_slot_is_given_back() -> None:
    dispatcher, _, _ = dispatcher_of(model_row(1), replica_row(2, "r1"), replica_row(3, "r2"))
    grant = await dispatcher.submit(ask())
    grant.replica_failed("connection refused")
    grant.release()
    others = [await dispatcher.submit(ask()) for _ in range(2)]
    assert {other.replica.id for other in others} == {"r2"}
    assert dispatcher.snapshot()["m"].in_flight == 2
    assert dispatcher.snapshot()["m"].cooling_down == {grant.replica.id}


async def on_another_thread(state: ControlState, *changes: Change) -> None:
    thread = threading.Thread(target=state.apply, args=(changes,))
    thread.start()
    thread.join()
    await turns()


async def test_a_draining_replica_gets_nothing_new_while_what_runs_on_it_ends() -> None:
    dispatcher, state, _ = dispatcher_of(model_row(1), replica_row(2, "r1", max_in_flight=4))
    old = await dispatcher.submit(ask())
    await on_another_thread(state, replica_row(3, "r1", state="draining"), replica_row(4, "r2"))
    grants = [await dispatcher.submit(ask()) for _ in range(2)]
    assert {grant.replica.id for grant in grants} == {"r2"}
    assert dispatcher.snapshot()["m"].in_flight_by_replica == {"r1": 1, "r2": 2}
    old.release()
    assert dispatcher.snapshot()["m"].in_flight_by_replica == {"r2": 2}


async def test_a_replica_that_comes_serves_those_who_wait() -> None:
    dispatcher, state, _ = one_slot()
    grant = await dispatcher.submit(ask())
    waiting = await start(dispatcher, ask())
    # While the loop sleeps: the change has to wake it.
    feed = threading.Timer(0.05, state.apply, args=([replica_row(3, "r2")],))
    feed.start()
    async with asyncio.timeout(5):
        assert (await waiting).replica.id == "r2"
    feed.join()
    grant.release()


async def test_requests_are_held_for_a_moment_when_an_engine_restarts() -> None:
    dispatcher, state, clock = one_slot()
    (await dispatcher.submit(ask())).release()
    await on_another_thread(state, gone(3, "replica", "r1"))
    held = await start(dispatcher, ask())
    assert not held.done()
    await on_another_thread(state, replica_row(4, "r1", epoch=1))
    async with asyncio.timeout(5):
        (await held).release()
    await on_another_thread(state, gone(5, "replica", "r1"))
    lost = await start(dispatcher, ask())
    clock.advance(2.1)
    dispatcher.tick()
    with pytest.raises(NoReplicaReady):
        await lost


async def test_a_model_registered_later_is_served_and_one_that_goes_is_forgotten() -> None:
    dispatcher, state, _ = one_slot()
    (await dispatcher.submit(ask())).release()
    await on_another_thread(state, model_row(3, "new"), replica_row(4, "r9", "new"))
    grant = await dispatcher.submit(ask("new"))
    await on_another_thread(state, gone(5, "model", "new"))
    with pytest.raises(UnknownModel):
        await dispatcher.submit(ask("new"))
    grant.release()
    await on_another_thread(state, model_row(6, "other"))
    assert sorted(dispatcher.snapshot()) == ["m", "other"]


async def test_closing_refuses_those_who_wait_and_those_who_come() -> None:
    dispatcher, state, _ = one_slot()
    grant = await dispatcher.submit(ask())
    waiting = await start(dispatcher, ask())
    dispatcher.close()
    with pytest.raises(NoReplicaReady):
        await waiting
    with pytest.raises(NoReplicaReady):
        await dispatcher.submit(ask())
    grant.release()
    await on_another_thread(state, replica_row(3, "r2"))


async def test_a_storm_of_requests_of_which_many_leave_at_any_moment_leaks_no_slot_and_never_exceeds_a_cap() -> None:
    dispatcher, _, _ = dispatcher_of(
        model_row(1, max_queued=1000), *(replica_row(2 + n, f"r{n}", max_in_flight=3) for n in range(3))
    )
    served = 0

    async def request(number: int) -> None:
        nonlocal served
        grant = await dispatcher.submit(ask("m", *(["r0"] if number % 5 == 0 else [])))
        try:
            assert max(dispatcher.snapshot()["m"].in_flight_by_replica.values()) <= 3
            await turns(number % 4)
            served += 1
        finally:
            grant.replica_failed("storm") if number % 11 == 0 else grant.release()

    tasks = []
    for number in range(600):
        tasks.append(asyncio.create_task(request(number)))
        if number % 3 == 0:
            await turns(number % 3)
        if number % 2 == 0:
            tasks[number * 7 % len(tasks)].cancel()
    async with asyncio.timeout(20):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {type(None), asyncio.CancelledError}
    assert served >= 300
    snapshot = dispatcher.snapshot()["m"]
    assert (snapshot.in_flight, snapshot.queued) == (0, 0)

"""Gateways and a dispatcher over real sockets: one brain for all, whoever dies."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError
from inference.dispatch.dispatcher import Grant
from inference.errors import NoReplicaReady, QueueFull, QuotaSpent, RateLimited
from inference.gateway.state import Change
from inference.policy.decisions import PICOS_A_MICRO, Ending, Queued, TokenPrice, Usage
from tests.fakes.gateway import ACME
from tests.inference.dispatch.cell import Cell, Gateway, terms, until

pytestmark = pytest.mark.asyncio

Make = Callable[..., Cell]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    cells: list[Cell] = []

    def build(*changes: Any, **options: Any) -> Cell:
        cells.append(Cell(tmp_path, *changes, **options))
        return cells[-1]

    yield build
    for cell in cells:
        await cell.close()


async def submit(gateway: Gateway, *asks: Any) -> "list[Grant | BaseException]":
    return await asyncio.gather(*(gateway.dispatcher.submit(ask) for ask in asks), return_exceptions=True)


def granted(results: "list[Grant | BaseException]") -> list[Grant]:
    return [result for result in results if isinstance(result, Grant)]


async def attached_again(*gateways: Gateway) -> None:
    await until(lambda: all(gateway.link.num_attached == 2 and gateway.link.is_open for gateway in gateways))


async def test_two_gateways_share_the_slots_of_a_replica(make: Make) -> None:
    cell = make(slots=2)
    await cell.serve()
    a, b = await cell.gateway("a"), await cell.gateway("b")
    await submit(a, cell.ask("r1"), cell.ask("r2"))
    told: list[Queued] = []
    waiting = asyncio.create_task(b.dispatcher.submit(cell.ask("r3"), told.append))
    await until(lambda: told)
    a.dispatcher.settle("r1", Ending.WELL, Usage(10, 0, 3))
    grant = await waiting
    assert (grant.replica.id, cell.host.snapshot().in_flight) == ("rep-0", 2)


async def test_b37_a_token_limit_is_charged_at_admission_over_all_gateways(make: Make) -> None:
    cell = make(terms(input_tokens_per_minute=1000, output_tokens_per_minute=1000), slots=100)
    await cell.serve()
    gateways = [await cell.gateway("a"), await cell.gateway("b")]
    asks = [cell.ask(f"r{number}", prompt_tokens=100, max_tokens=200) for number in range(50)]
    results = await asyncio.gather(submit(gateways[0], *asks[::2]), submit(gateways[1], *asks[1::2]))
    grants = granted(results[0]) + granted(results[1])
    assert len(grants) == 5
    refused = [result for result in results[0] + results[1] if not isinstance(result, Grant)]
    assert all(isinstance(result, RateLimited) for result in refused)


async def test_b56_a_budget_is_one_whichever_gateway_is_restarted(make: Make) -> None:
    price = TokenPrice(input_picos=0, output_picos=1_000_000)
    cell = make(terms(monthly_budget=10), slots=100)
    await cell.serve()
    passed = 0
    for life in range(4):
        gateway = await cell.gateway(f"a{life}")
        for number in range(4):
            name = f"r{life}-{number}"
            results = await submit(gateway, cell.ask(name, max_tokens=1, price=price))
            if granted(results):
                passed += 1
                gateway.dispatcher.settle(name, Ending.WELL, Usage(10, 0, 1, 1 * PICOS_A_MICRO))
            else:
                assert isinstance(results[0], QuotaSpent)
        await until(lambda: not cell.host.snapshot().in_flight)
        gateway.die()
    assert passed == 10


async def test_b118_the_queue_bound_is_the_pools_however_many_gateways(make: Make) -> None:
    cell = make(slots=4, max_queued=6)
    await cell.serve()
    gateways = [await cell.gateway(name) for name in "abcd"]
    tasks = [asyncio.create_task(gateways[number % 4].dispatcher.submit(cell.ask(f"r{number}"))) for number in range(20)]
    await until(lambda: sum(task.done() for task in tasks) == 14)
    ends = Counter(type(task.exception()) for task in tasks if task.done())
    assert ends == {type(None): 4, QueueFull: 10}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_gateways_death_frees_its_slots_at_once_and_keeps_what_it_told_of_its_tokens(make: Make) -> None:
    cell = make(terms(output_tokens_per_minute=100), slots=2)
    await cell.serve()
    a, b = await cell.gateway("a"), await cell.gateway("b")
    grants = granted(await submit(a, cell.ask("r1"), cell.ask("r2")))
    for grant in grants:
        grant.first_token()
        grant.num_tokens = lambda: 7
    a.dispatcher.report_progress()
    waiting = asyncio.create_task(b.dispatcher.submit(cell.ask("r3")))
    await until(lambda: cell.host.snapshot().queued == 1)
    a.die()
    assert (await waiting).decision.id == "r3"
    assert cell.host.snapshot().in_flight == 1
    uses = {use.limit.kind.value: (use.used, use.reserved) for use in cell.host.snapshot().limits.limits}
    assert uses == {"output_tokens_per_minute": (14, 20)}
    cell.host.brain.check_invariants(cell.host.now_s())


async def test_after_a_takeover_every_counter_is_what_it_was(make: Make) -> None:
    limits = {"requests_per_minute": 100, "output_tokens_per_minute": 2000, "concurrent_requests": 4, "monthly_budget": 500}
    price = TokenPrice(output_picos=1_000_000)
    cell = make(terms(**limits), slots=3, replicas=2)
    await cell.serve(1)
    a, b = await cell.gateway("a"), await cell.gateway("b")
    grants = granted(await submit(a, *(cell.ask(f"a{number}", price=price) for number in range(3))))
    await submit(b, cell.ask("b0", price=price))
    waiting = [
        asyncio.create_task(gateway.dispatcher.submit(cell.ask(name, price=price))) for gateway, name in ((a, "a3"), (b, "b1"))
    ]
    await until(lambda: cell.host.snapshot().queued == 2)
    a.dispatcher.settle("a0", Ending.WELL, Usage(10, 0, 5, 5 * PICOS_A_MICRO))
    await until(lambda: cell.host.snapshot().queued == 1)
    grants[1].give_back(Ending.FAILED)
    await until(lambda: cell.host.snapshot().away == 1)
    await until(lambda: sum(task.done() for task in waiting) == 2)
    await until(lambda: len(a.dispatcher.running) + len(b.dispatcher.running) == 4)
    again = asyncio.create_task(a.dispatcher.submit(cell.ask("a1", price=price)))  # full: it waits
    await until(lambda: cell.host.snapshot().queued == 1)
    before = cell.counters()

    cell.kill()
    await cell.serve(2, known=("a", "b"))
    await attached_again(a, b)
    after = cell.counters()

    assert before == after
    assert (a.link.highest_epoch, b.link.highest_epoch) == (2, 2)
    b.dispatcher.settle("b0", Ending.WELL, Usage(10, 0, 5, 5 * PICOS_A_MICRO))
    assert (await again).decision.id == "a1"
    for gateway, names in ((a, ("a1", "a2", "a3")), (b, ("b1",))):
        for name in names:
            gateway.dispatcher.settle(name, Ending.WELL, Usage(10, 0, 5, 5 * PICOS_A_MICRO))
    await until(lambda: not cell.host.snapshot().in_flight)
    ended = cell.counters()
    assert ended["limits.open"] == 0 and ended["leaked_slots"] == 0


async def test_nothing_is_granted_until_all_who_are_known_have_said_what_they_hold(make: Make) -> None:
    cell = make(terms(concurrent_requests=1), slots=5)
    await cell.serve(1)
    a, b = await cell.gateway("a"), await cell.gateway("b")
    await submit(a, cell.ask("r1"))
    b_link, b.link._locate = b.link, lambda: None  # b's way is longer
    cell.kill()
    await cell.serve(2, known=("a", "b"), grace_s=60.0)
    await until(lambda: a.link.num_attached == 2)
    waiting = asyncio.create_task(a.dispatcher.submit(cell.ask("r2")))
    await until(lambda: "a" in cell.server.gateways and cell.server.gateways["a"].has_announced)
    assert cell.host.is_holding and not a.link.is_open
    b_link._locate = lambda: cell.address
    await until(lambda: a.link.is_open)
    await until(lambda: cell.host.snapshot().queued == 1)  # r1 has the one slot
    a.dispatcher.settle("r1", Ending.WELL, Usage())
    assert (await waiting).decision.id == "r2"


async def test_a_gateway_that_does_not_come_is_waited_for_no_longer_than_the_grace(make: Make) -> None:
    cell = make()
    await cell.serve(1, known=("dead",), grace_s=0.05)
    gateway = await cell.gateway("a")
    assert granted(await submit(gateway, cell.ask("r1")))


async def test_asks_on_their_way_when_the_dispatcher_dies_are_asked_again(make: Make) -> None:
    cell = make(slots=50)
    await cell.serve(1)
    gateway = await cell.gateway("a")
    tasks = [asyncio.create_task(gateway.dispatcher.submit(cell.ask(f"r{number}"))) for number in range(20)]
    await asyncio.sleep(0)  # said, not read
    cell.kill()
    await cell.serve(2, known=("a",))
    grants = await asyncio.gather(*tasks)
    assert len({grant.decision.id for grant in grants}) == 20
    assert cell.host.snapshot().in_flight == 20


async def test_what_ends_while_nobody_is_there_is_told_to_the_next(make: Make) -> None:
    cell = make(terms(output_tokens_per_minute=1000))
    await cell.serve(1)
    gateway = await cell.gateway("a")
    await submit(gateway, cell.ask("r1"))
    cell.kill()
    await until(lambda: not gateway.link.is_open)
    gateway.dispatcher.settle("r1", Ending.WELL, Usage(10, 0, 7))
    await cell.serve(2, known=("a",))
    await attached_again(gateway)
    use = cell.host.snapshot().limits.limits[0]
    assert (use.used, use.reserved, cell.host.snapshot().in_flight) == (7, 0, 0)


async def test_a_dispatcher_of_an_older_epoch_is_not_listened_to(make: Make) -> None:
    cell = make()
    await cell.serve(5)
    gateway = await cell.gateway("a")
    cell.kill()
    seen: list[int] = []
    await cell.serve(4)
    cell.server._on_newer_epoch = seen.append
    waiting = asyncio.create_task(gateway.dispatcher.submit(cell.ask("r1")))
    await until(lambda: 5 in seen)
    assert not waiting.done() and not gateway.link.is_open
    cell.kill()
    await cell.serve(6)
    assert (await waiting).decision.id == "r1"
    assert gateway.link.highest_epoch == 6


async def test_while_nobody_is_there_asks_are_refused_after_a_stated_time_and_streams_run_on(make: Make) -> None:
    cell = make()
    await cell.serve(1)
    gateway = await cell.gateway("a", wait_s=0.05)
    (running,) = granted(await submit(gateway, cell.ask("r1")))
    cell.kill()
    with pytest.raises(NoReplicaReady, match="Nobody can admit"):
        await gateway.dispatcher.submit(cell.ask("r2"))
    assert gateway.dispatcher.running == {"r1": running}
    await cell.serve(2, known=("a",))
    await attached_again(gateway)
    assert cell.host.snapshot().in_flight == 1


async def test_those_who_wait_for_a_dispatcher_are_not_more_than_stated(make: Make) -> None:
    cell = make()
    gateway = Gateway("a", cell.state, lambda: None)
    cell.gateways.append(gateway)
    gateway.link.tunables = type(gateway.link.tunables)(max_waiting=2)
    tasks = [asyncio.create_task(gateway.dispatcher.submit(cell.ask(f"r{number}"))) for number in range(3)]
    await until(lambda: tasks[2].done())
    assert isinstance(tasks[2].exception(), HeadwayError)
    for task in tasks[:2]:
        assert not task.done()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not gateway.link._held


async def test_a_shortened_request_that_waits_keeps_to_what_was_reserved_for_it(make: Make) -> None:
    cell = make(terms(output_tokens_per_minute=1000), slots=1)
    await cell.serve(1)
    gateway = await cell.gateway("a")
    await submit(gateway, cell.ask("r1", max_tokens=20))
    waiting = asyncio.create_task(gateway.dispatcher.submit(cell.ask("r2", max_tokens=5000, may_shorten=True)))
    await until(lambda: cell.host.snapshot().queued == 1)
    await until(lambda: gateway.link.book.lines["r2"].reserved_s is not None)
    cell.kill()
    await cell.serve(2, known=("a",))
    await attached_again(gateway)
    gateway.dispatcher.settle("r1", Ending.WELL, Usage(10, 0, 20))
    assert (await waiting).decision.max_tokens == 980
    assert cell.host.snapshot().limits.limits[0].reserved == 980


async def test_a_parked_request_that_waits_through_a_takeover_is_granted_what_is_left_of_it(make: Make) -> None:
    cell = make(terms(output_tokens_per_minute=1000), slots=1)
    await cell.serve(1)
    gateway = await cell.gateway("a")
    (grant,) = granted(await submit(gateway, cell.ask("r1", max_tokens=20, can_park=True)))
    cell.kill()
    await until(lambda: not gateway.link.is_open)
    left = cell.ask("r1", max_tokens=13, prompt_tokens=17, can_park=True)
    waiting = asyncio.create_task(gateway.dispatcher.resubmit_parked(grant, left))
    await cell.serve(2, known=("a",))
    assert (await waiting).decision.max_tokens == 13
    use = cell.host.snapshot().limits.limits[0]
    assert (use.used, use.reserved, cell.host.snapshot().in_flight) == (0, 20, 1)


async def test_one_that_waits_for_its_engines_restart_waits_on_through_a_takeover(make: Make) -> None:
    cell = make(slots=1)
    await cell.serve(1)
    gateway = await cell.gateway("a")
    (grant,) = granted(await submit(gateway, cell.ask("r1")))
    grant.give_back(Ending.FAILED)
    again = cell.ask("r1", excluded=frozenset({"rep-0"}), waits_for_restart=True)
    waiting = asyncio.create_task(gateway.dispatcher.submit(again))
    replica = next(change for change in cell.state.rows() if change.kind == "replica")
    assert replica.payload is not None
    cell.state.apply([Change(900, "replica", replica.key, {**replica.payload, "state": "failed"})])
    await until(lambda: cell.host.snapshot().queued == 1)
    cell.kill()
    await cell.serve(2, known=("a",))
    await attached_again(gateway)
    await asyncio.sleep(1.2)  # longer than the news of an engine's end takes
    assert not waiting.done()
    cell.state.apply([Change(901, "replica", replica.key, {**replica.payload, "epoch": 2})])
    assert (await waiting).replica.id == "rep-0"


async def test_how_limits_stand_is_asked_over_the_socket_and_nobody_waits_for_a_dispatcher_that_is_gone(make: Make) -> None:
    cell = make(terms(requests_per_minute=5, output_tokens_per_minute=1000))
    await cell.serve()
    gateway = await cell.gateway("a")
    await submit(gateway, cell.ask("r1"))
    rates = await gateway.dispatcher.rates(ACME, "k1", "m")
    assert rates is not None and (rates.limit_requests, rates.remaining_requests) == (5, 4)
    assert cell.host.snapshot().limits.open == 1
    assert await gateway.dispatcher.rates("stranger", "k1", "m") is None, "without limits nobody is asked"
    cell.kill()
    await until(lambda: not gateway.link.is_open)
    assert await gateway.dispatcher.rates(ACME, "k1", "m") is None


# Over TCP


async def test_over_tcp_a_gateway_that_comes_back_in_time_has_lost_nothing_and_counts_nothing_twice(make: Make) -> None:
    cell = make(terms(requests_per_minute=10, output_tokens_per_minute=1000), slots=3)
    await cell.serve(1, tcp=True, freeze_s=60.0)
    gateway = await cell.gateway("a")
    await submit(gateway, cell.ask("r1"), cell.ask("r2"), cell.ask("r3"))
    gateway.dispatcher.settle("r1", Ending.WELL, Usage(10, 0, 5))
    await until(lambda: cell.host.snapshot().in_flight == 2)
    before = cell.counters()
    assert gateway.link._connection is not None
    gateway.link._connection.abandon()
    await until(lambda: gateway.link.num_attached == 2 and gateway.link.is_open)
    assert cell.counters() == before
    gateway.link._connection.abandon()
    gateway.dispatcher.settle("r2", Ending.WELL, Usage(10, 0, 6))  # nobody hears it
    await until(lambda: gateway.link.num_attached == 3 and gateway.link.is_open)
    after = cell.counters()
    assert (after["in_flight"], after["requests_per_minute"], after["output_tokens_per_minute"]) == (1, (2, 1), (11, 20))


async def test_over_tcp_a_gateway_that_stays_away_is_freed_after_a_stated_time(make: Make) -> None:
    cell = make(slots=1)
    await cell.serve(1, tcp=True, freeze_s=0.1)
    a, b = await cell.gateway("a"), await cell.gateway("b")
    await submit(a, cell.ask("r1"))
    waiting = asyncio.create_task(b.dispatcher.submit(cell.ask("r2")))
    await until(lambda: cell.host.snapshot().queued == 1)
    a.die()
    await until(lambda: cell.server.gateways["a"].connection is None)
    assert not waiting.done() and cell.host.snapshot().in_flight == 1
    assert (await waiting).decision.id == "r2"


async def test_over_tcp_a_grant_that_was_lost_on_its_way_is_given_back(make: Make) -> None:
    cell = make(slots=1)
    await cell.serve(1, tcp=True, freeze_s=60.0)
    a, b = await cell.gateway("a"), await cell.gateway("b")
    await submit(b, cell.ask("r1"))
    waiting = asyncio.create_task(a.dispatcher.submit(cell.ask("r2")))
    await until(lambda: "r2" in a.link.book.lines and a.link.book.lines["r2"].reserved_s is not None)
    assert a.link._connection is not None
    a.link._locate = lambda: None
    a.link._connection.abandon()
    await until(lambda: cell.server.gateways["a"].connection is None)
    b.dispatcher.settle("r1", Ending.WELL, Usage())
    await until(lambda: cell.host.snapshot().in_flight == 1 and not cell.host.snapshot().queued)  # r2, and nobody hears it
    a.link._locate = lambda: cell.address
    assert (await waiting).decision.id == "r2"
    counters = cell.counters()
    assert (counters["in_flight"], counters["queued"], counters["away"]) == (1, 0, 0)


async def test_over_tcp_who_does_not_know_the_secret_is_turned_away(make: Make) -> None:
    cell = make()
    await cell.serve(1, tcp=True)
    stranger = Gateway("stranger", cell.state, lambda: cell.address, wait_s=0.1)
    stranger.link.secret = "guessed"
    cell.gateways.append(stranger)
    with pytest.raises(NoReplicaReady):
        await stranger.dispatcher.submit(cell.ask("r1"))
    assert cell.server.gateways == {} and cell.host.snapshot().in_flight == 0

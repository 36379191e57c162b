"""With the lease row out of reach: a dispatcher goes on while most gateways stay, and nobody else decides meanwhile.

Leaderships of two machines over a store that fails for whom the test says; gateways and dispatchers on real sockets.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from headway.clock import SystemClock
from headway.errors import HeadwayError
from inference.dispatch import leadership as module
from inference.dispatch.address import Address
from inference.dispatch.brain_lock import BrainLock
from inference.dispatch.dispatcher import Grant
from inference.dispatch.host import BrainHost
from inference.dispatch.leadership import Leadership
from inference.dispatch.server import DispatcherServer
from inference.dispatch.visitor import _visit, members_at_end_of
from inference.dispatch.wire import Role
from inference.policy.decisions import Ending, Reason, Usage
from inference.services import feed_progress
from inference.services.lease import LeaseView
from tests.inference.dispatch.cell import SECRET, Cell, Gateway, until


class Store:
    """The row and the gateways that are known, as the database has them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.row: LeaseView | None = None
        self.gateways: set[str] = set()
        self.cut_off: set[str] = set()  # machines that cannot reach it
        self.asking = ""
        monkeypatch.setattr(module, "connection", SimpleNamespace(in_atomic_block=True))
        lease: dict[str, Callable[..., Any]] = {
            "current_lease": self.current,
            "take_lease": self.take,
            "renew_lease": self.renew,
            "give_lease_back": lambda **_: True,
        }
        known: dict[str, Callable[..., Any]] = {
            "gateways_that_may_live": lambda _now: frozenset(self.gateways),
            "signed_off": lambda gateways: frozenset(gateways) - self.gateways,
        }
        for name, call in lease.items():
            monkeypatch.setattr(module, name, self.answering(call))
        for name, call in known.items():
            monkeypatch.setattr(feed_progress, name, self.answering(call))

    def answering(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*arguments: Any, **named: Any) -> Any:
            if self.asking in self.cut_off:
                raise OperationalError("away")
            return call(*arguments, **named)

        return answer

    def current(self) -> LeaseView | None:
        return self.row

    def take(self, *, holder: str, address: str, epoch: int, expected_epoch: int | None, is_open: bool, **more: Any) -> bool:
        row = self.row
        if (row.epoch if row else None) != expected_epoch or (row and row.renewed_at != more["expected_renewed_at"]):
            return False
        self.row = LeaseView(holder, address, epoch, more["now"], row.members if row else (), is_open)
        return True

    def renew(self, *, holder: str, epoch: int, now: datetime, members: Sequence[str] | None) -> bool:
        row = self.row
        if row is None or (row.holder, row.epoch) != (holder, epoch):
            return False
        kept = (row.members, row.is_open) if members is None else (tuple(members), True)
        self.row = LeaseView(holder, row.address, epoch, now, *kept)
        return True


class Machine:
    """One dispatcher, leading or about to; its lease thread is a task here."""

    def __init__(self, name: str, folder: Path, cell: Cell, store: Store) -> None:
        (folder / name).mkdir()
        self.name, self.cell, self.store, self.unfit = name, cell, store, False
        self.folder = folder / name
        self.server: DispatcherServer | None = None
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self, port: int = 0) -> None:
        """Listen first, so that the row can name the port."""
        probe = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        self.address = Address(host="127.0.0.1", port=probe.sockets[0].getsockname()[1])
        probe.close()
        self.leadership = Leadership(
            machine=self.name,
            name="d",
            address=self.address,
            lock=BrainLock(self.folder / "lock"),
            seen_path=self.folder / "seen",
            clock=SystemClock(),
        )
        self.tasks.append(asyncio.create_task(self.look()))

    async def look(self) -> None:
        while True:
            self.ask(self.leadership._round)
            await asyncio.sleep(0.1)

    def ask(self, call: Callable[[], Any]) -> Any:
        self.store.asking = self.name
        return call()

    async def lead(self, within_s: float = 4.0, *, gone: Sequence[Sequence[str]] = ()) -> None:
        assert self.leadership.lock.take()
        async with asyncio.timeout(within_s):
            while (epoch := self.ask(lambda: self.leadership.take(gone=gone))) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        self.host = BrainHost(self.cell.state, SystemClock())
        self.server = DispatcherServer(
            self.host,
            epoch=epoch,
            name=self.name,
            secret=SECRET,
            claim=self.leadership.claim,
            on_unfit=self.lost,
            on_newer_epoch=lambda _: self.lost(),
        )
        self.leadership.on_lost = self.lost
        self.cell.servers.append(self.server)
        self.server.begin(())
        await self.server.listen_tcp("127.0.0.1", self.address.port)

    def lost(self) -> None:
        self.unfit = True
        assert self.server is not None
        self.server.close()

    @property
    def decides(self) -> bool:
        return self.server is not None and not self.unfit and not self.host.is_holding

    def die(self) -> None:
        """Its lock is free, its sockets are closed, the row names it still."""
        for task in self.tasks:
            task.cancel()
        self.unfit = True
        if self.server is not None:
            for connection in list(self.server._connections):
                connection.abandon()
            self.server.close()
        self.leadership.lock.give_back()


class World:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cell, self.store = Cell(folder, slots=100), Store(monkeypatch)
        self.a, self.b = Machine("a", folder, self.cell, self.store), Machine("b", folder, self.cell, self.store)
        self.gateways: dict[str, Gateway] = {}

    async def gateway(self, name: str, to: Machine) -> Gateway:
        made = Gateway(name, self.cell.state, lambda: to.address, wait_s=0.2)
        self.cell.gateways.append(made)
        self.gateways[name] = made
        self.store.gateways.add(name)
        made.link.start()
        return made

    def goes(self, name: str, to: Machine) -> None:
        link = self.gateways[name].link
        link._locate = lambda: to.address
        if link._connection is not None:
            link._connection.abandon()

    def host_b(self) -> BrainHost:
        return self.b.host

    async def close(self) -> None:
        for machine in (self.a, self.b):
            for task in machine.tasks:
                task.cancel()
            await asyncio.gather(*machine.tasks, return_exceptions=True)
        await self.cell.close()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World(tmp_path, monkeypatch)
    for machine in (made.a, made.b):
        await machine.open()
    yield made
    await made.close()


async def leads_with(world: World, *names: str) -> None:
    """Machine a leads; these gateways are attached to it, and are in the row."""
    await world.a.lead()
    for name in names:
        await world.gateway(name, world.a)
    await until(lambda: all(gateway.link.is_open for gateway in world.gateways.values()))
    await until(lambda: world.store.row is not None and set(world.store.row.members) == set(names))
    assert world.a.leadership.claim is not None
    mandate = world.a.leadership.claim.mandate
    await until(lambda: mandate.has_majority(world.a.host.now_s()))


async def grants(gateway: Gateway, cell: Cell, name: str) -> bool:
    try:
        grant: Grant = await gateway.dispatcher.submit(cell.ask(name))
    except HeadwayError:
        return False
    gateway.dispatcher.settle(grant.decision.id, Ending.WELL, Usage())
    return True


async def test_without_the_row_it_goes_on_granting_while_most_gateways_stay(world: World) -> None:
    await leads_with(world, "g1", "g2", "g3")
    world.store.cut_off = {"a", "b"}
    await asyncio.sleep(1.5)  # longer than the row counts
    assert await grants(world.gateways["g1"], world.cell, "r1")
    world.gateways["g3"].die()
    await asyncio.sleep(0.3)
    assert world.a.decides and await grants(world.gateways["g1"], world.cell, "r2")
    world.gateways["g2"].die()
    await until(lambda: world.a.unfit)
    assert not await grants(world.gateways["g1"], world.cell, "r3")


async def test_cut_off_with_the_smaller_part_it_stops_before_the_other_machine_decides(world: World) -> None:
    await leads_with(world, "g1", "g2", "g3")
    both: list[bool] = []

    async def watch() -> None:
        while True:
            both.append(world.a.decides and world.b.decides)
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    world.store.cut_off = {"a"}
    taking = asyncio.create_task(world.b.lead())
    await taking
    assert world.a.decides and not world.b.decides, "the row alone is not enough: a has all gateways"
    world.goes("g1", world.b)
    await asyncio.sleep(1.6)
    assert world.a.decides and not world.b.decides
    world.goes("g2", world.b)
    await until(lambda: world.b.decides)
    assert world.a.unfit
    assert await grants(world.gateways["g1"], world.cell, "r1")
    watching.cancel()
    assert not any(both) and len(both) > 100
    await until(lambda: world.store.row is not None and world.store.row.is_open)


async def test_a_machine_that_is_lost_is_followed_with_half_of_the_gateways(world: World) -> None:
    await leads_with(world, "g1", "g2")
    world.a.die()
    world.gateways["g1"].die()  # it was on that machine
    await world.b.lead()
    assert world.store.row is not None
    assert (world.store.row.is_open, set(world.store.row.members)) == (False, {"g1", "g2"})
    world.goes("g2", world.b)
    await until(lambda: world.b.decides)
    assert await grants(world.gateways["g2"], world.cell, "r1")


async def test_with_less_than_half_it_waits_until_the_others_are_known_to_be_dead(world: World) -> None:
    await leads_with(world, "g1", "g2", "g3")
    world.a.die()
    for name in ("g1", "g2"):
        world.gateways[name].die()
    await world.b.lead()
    world.goes("g3", world.b)
    await until(lambda: "g3" in (world.b.server.gateways if world.b.server else {}))
    await asyncio.sleep(1.6)
    assert not world.b.decides
    world.store.gateways -= {"g1"}  # forget_gateways
    await until(lambda: world.b.decides)


async def test_what_was_not_opened_is_no_proof_for_the_next(world: World) -> None:
    await leads_with(world, "g1", "g2", "g3")
    world.store.cut_off = {"a"}
    await world.b.lead()
    world.b.leadership.give_back()
    assert world.store.row is not None and not world.store.row.is_open
    world.b.unfit = True
    assert world.b.server is not None
    world.b.server.close()
    await world.b.lead()
    assert world.b.leadership.claim is not None and world.b.leadership.claim.contest is not None
    assert world.a.decides and not world.b.decides


async def test_started_anew_without_the_row_it_decides_when_most_are_back(world: World) -> None:
    await leads_with(world, "g1", "g2")
    world.store.cut_off = {"a", "b"}
    world.a.die()
    again = Machine("a2", world.a.folder, world.cell, world.store)
    again.name, again.folder, again.address = "a", world.a.folder, world.a.address
    again.leadership = Leadership(
        machine="a",
        name="d2",
        address=world.a.address,
        lock=BrainLock(world.a.folder / "lock"),
        seen_path=world.a.folder / "seen",
        clock=SystemClock(),
    )
    await again.lead()
    assert not again.decides
    await until(lambda: again.decides)
    assert await grants(world.gateways["g1"], world.cell, "r1")
    again.die()


async def test_a_gateway_that_sees_a_newer_row_leaves_the_one_it_had(world: World) -> None:
    await leads_with(world, "g1")
    link = world.gateways["g1"].link
    link._newest_epoch = world.b.leadership.newest_epoch
    world.store.cut_off = {"a"}
    await world.b.lead()
    link._locate = lambda: world.b.address
    await until(lambda: world.b.decides)
    assert world.a.unfit and link.highest_epoch == 2


# A takeover by another machine with the row out of reach


async def stands_by(world: World) -> "asyncio.Task[list[list[str]] | None]":
    """Machine b, connected to a; the gateways know where it is."""
    address, own = world.a.address, str(world.b.address)
    task = asyncio.create_task(members_at_end_of(address, own_address=own, secret=SECRET))
    await until(lambda: all(gateway.link._standbys == [world.b.address] for gateway in world.gateways.values()))
    return task


async def test_a_standby_of_another_machine_takes_over_with_most_gateways_and_they_find_it(world: World) -> None:
    await leads_with(world, "g1", "g2", "g3")
    ending = await stands_by(world)
    grant = await world.gateways["g1"].dispatcher.submit(world.cell.ask("r1"))
    world.store.cut_off = {"a", "b"}
    assert world.b.leadership.lock.take()
    assert world.b.ask(world.b.leadership.take) is None, "a lives"
    world.b.leadership.lock.give_back()
    world.a.die()
    gone = await ending
    assert gone and set(gone[-1]) == {"g1", "g2", "g3"}
    await world.b.lead(gone=gone)
    assert not world.b.decides
    await until(lambda: world.b.decides)
    assert world.host_b().snapshot().in_flight == 1, "what runs is known there"
    assert grant.decision.id in world.gateways["g1"].dispatcher.running
    assert await grants(world.gateways["g2"], world.cell, "r2")


async def test_with_the_smaller_part_nobody_takes_over(world: World) -> None:
    await leads_with(world, "g1", "g2")
    ending = await stands_by(world)
    world.store.cut_off = {"a", "b"}
    world.gateways["g2"].die()
    world.a.die()
    gone = await ending
    assert gone
    await world.b.lead(gone=gone)
    await until(lambda: world.b.server is not None and "g1" in world.b.server.gateways)
    await asyncio.sleep(1.6)
    assert not world.b.decides
    assert not await grants(world.gateways["g1"], world.cell, "r1")


async def test_a_connection_that_ends_is_no_proof_while_somebody_listens_there(world: World) -> None:
    await leads_with(world, "g1")
    ending = await stands_by(world)
    assert world.a.server is not None
    for connection in list(world.a.server._standbys):
        connection.abandon()
    assert await ending is None


async def test_standbys_hear_of_a_gateway_before_the_row_names_it(world: World) -> None:
    await leads_with(world, "g1")
    visit = await _visit(world.a.address, Role.STANDBY, SECRET, 2.0, "")
    assert visit is not None
    await until(lambda: bool(visit.members) and set(visit.members[-1]) == {"g1"})
    await world.gateway("g2", world.a)
    await until(lambda: "g2" in visit.members[-1])
    assert world.store.row is not None and "g2" not in world.store.row.members
    await until(lambda: world.store.row is not None and "g2" in world.store.row.members)
    visit.close()


async def test_one_that_may_not_decide_keeps_nobody_waiting_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.dispatch.server.HELD_AT_MOST_S", 0.2)
    world.store.row = LeaseView("x/d", str(world.b.address), 1, datetime.now(UTC), ("dead",), False)
    world.store.gateways.add("dead")
    await asyncio.sleep(1.5)
    await world.a.lead()
    told: list[Any] = []
    session = world.a.host.open(told.extend)
    session.submit(world.cell.ask("r1"))
    await until(lambda: told)
    assert (told[0].id, told[0].reason, world.a.host.snapshot().limits.open) == ("r1", Reason.NO_REPLICA, 0)

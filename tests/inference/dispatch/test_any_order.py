"""Requests that do anything, and dispatchers that die at any moment: what a new one knows is what the old one knew."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from headway.errors import HeadwayError
from inference.dispatch.dispatcher import Grant
from inference.policy.decisions import PICOS_A_MICRO, Ending, Tier, TokenPrice, Usage
from tests.inference.dispatch.cell import Cell, Gateway, terms, until

LIMITS = {
    "requests_per_minute": 400,
    "output_tokens_per_minute": 6000,
    "concurrent_requests": 9,
    "monthly_budget": 50_000,
}
PRICE = TokenPrice(output_picos=1_000_000)


class Clients:
    """Of one gateway: each request is a task that waits for its grant, then holds it until it is told otherwise."""

    def __init__(self, cell: Cell, gateway: Gateway, rng: Random) -> None:
        self.cell, self.gateway, self.rng = cell, gateway, rng
        self.tasks: dict[str, asyncio.Task[Grant]] = {}
        self.grants: dict[str, Grant] = {}
        self.num_made = self.num_refused = 0

    def ask(self) -> None:
        self.num_made += 1
        name = f"{self.gateway.link.gateway}-{self.num_made}"
        self._submit(name, max_tokens=self.rng.randrange(1, 200))

    def _submit(self, name: str, *, max_tokens: int) -> None:
        tier = self.rng.choice(list(Tier))
        ask = self.cell.ask(name, tier=tier, price=PRICE, may_shorten=self.rng.random() < 0.2, max_tokens=max_tokens)
        self.tasks[name] = asyncio.create_task(self.gateway.dispatcher.submit(ask))

    async def step(self) -> None:
        """Gather what was decided, then one of them does something."""
        await asyncio.sleep(0)
        for name, task in list(self.tasks.items()):
            if task.done():
                del self.tasks[name]
                try:
                    self.grants[name] = task.result()
                except HeadwayError:
                    self.num_refused += 1
        act = self.rng.choice([self.ask, self.ask, self.ask, self._settle, self._fail, self._leave, self._report])
        act()

    def _settle(self) -> None:
        if self.grants:
            name = self.rng.choice(sorted(self.grants))
            grant = self.grants.pop(name)
            made = self.rng.randrange(grant.decision.max_tokens + 1)
            self.gateway.dispatcher.settle(name, Ending.WELL, Usage(10, 0, made, made * PICOS_A_MICRO))

    def _fail(self) -> None:
        """An attempt ends, and it asks again, now or never."""
        if self.grants:
            name = self.rng.choice(sorted(self.grants))
            grant = self.grants.pop(name)
            grant.give_back(Ending.NEUTRAL)
            if self.rng.random() < 0.7:
                self._submit(name, max_tokens=grant.decision.max_tokens)
            else:
                self.gateway.dispatcher.settle(name, Ending.NEUTRAL, Usage(10, 0, 0, 0))

    def _leave(self) -> None:
        if self.tasks:
            name = self.rng.choice(sorted(self.tasks))
            task = self.tasks.pop(name)
            task.cancel()
            task.add_done_callback(lambda _: self.gateway.dispatcher.settle(name, Ending.NEUTRAL, Usage()))

    def _report(self) -> None:
        for grant in self.grants.values():
            grant.num_tokens = lambda: 1
        self.gateway.dispatcher.report_progress()

    async def end(self) -> None:
        for name in list(self.tasks):
            task = self.tasks.pop(name)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, HeadwayError):
                await task
            self.gateway.dispatcher.settle(name, Ending.NEUTRAL, Usage())
        for name in list(self.grants):
            self.grants.pop(name)
            self.gateway.dispatcher.settle(name, Ending.WELL, Usage(10, 0, 1, 1 * PICOS_A_MICRO))


def agrees(cell: Cell, gateways: list[Gateway]) -> bool:
    """The dispatcher has heard all, and the gateways too."""
    told = {name: line.stage.value for gateway in gateways for name, line in gateway.link.book.lines.items()}
    known = {name: entry.stage.value for name, entry in cell.host.brain._entries.items()}
    return told == known and all(gateway.link.is_open for gateway in gateways)


async def attached(cell: Cell, gateways: list[Gateway], times: int) -> None:
    await until(lambda: all(gateway.link.num_attached == times and gateway.link.is_open for gateway in gateways))
    await until(lambda: agrees(cell, gateways))


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    made = Cell(tmp_path, terms(**LIMITS), slots=4, replicas=2, max_queued=12)
    yield made
    await made.close()


@pytest.mark.parametrize("seed", range(6))
async def test_a_new_dispatcher_knows_what_the_old_one_knew(cell: Cell, seed: int) -> None:
    rng = Random(seed)
    await cell.serve(1)
    gateways = [await cell.gateway(name) for name in ("a", "b", "c")]
    clients = [Clients(cell, gateway, rng) for gateway in gateways]
    for epoch in range(2, 6):
        for _ in range(rng.randrange(20, 80)):
            await rng.choice(clients).step()
        await until(lambda: agrees(cell, gateways))
        before = cell.counters()
        cell.kill()
        await cell.serve(epoch, known=("a", "b", "c"), grace_s=60.0)
        await attached(cell, gateways, epoch)
        assert cell.counters() == before
    for _ in range(60):  # and now without a pause to agree in
        await rng.choice(clients).step()
    cell.kill()
    for client in clients:
        await client.step()
    await cell.serve(6, known=("a", "b", "c"), grace_s=60.0)
    await attached(cell, gateways, 6)
    uses = {use.limit.kind.value: use for use in cell.host.snapshot().limits.limits}
    assert all(use.used + use.reserved <= use.limit.value for use in uses.values())
    assert uses["concurrent_requests"].used <= 9
    for client in clients:
        await client.end()
    await until(lambda: not cell.host.brain._entries)
    ended = cell.counters()
    assert (ended["in_flight"], ended["queued"], ended["limits.open"], ended["leaked_slots"]) == (0, 0, 0, 0)
    assert sum(client.num_made for client in clients) > 60

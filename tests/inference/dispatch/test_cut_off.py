"""Over TCP, with a network that goes silent: slots are freed after the freeze, and by then their streams are cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from inference.dispatch.address import Address
from inference.dispatch.heartbeat import HeartbeatTunables
from inference.dispatch.mandate import Claim, Mandate
from inference.policy.decisions import Ending, Usage
from tests.inference.dispatch.cell import Cell, Gateway, until

BEATS = HeartbeatTunables(every_s=0.05, silent_s=0.25)
FREEZE_S = 0.6


class Network:
    """A way to the dispatcher that can go silent: nothing passes, and nobody is told."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.is_silent, self.port = cell, False, 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.writers: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self.server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.cell.address.port)
        self.writers += [writer, far_writer]
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self.tasks.add(asyncio.create_task(self.carry(source, sink)))

    async def carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                while self.is_silent:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                sink.write(data)
        while self.is_silent:  # noqa: ASYNC110  an end is not told either
            await asyncio.sleep(0.01)
        sink.close()

    async def close(self) -> None:
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for writer in self.writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    made = Cell(tmp_path, slots=1)
    yield made
    await made.close()


@pytest.fixture
async def network(cell: Cell) -> AsyncIterator[Network]:
    await cell.serve(1, tcp=True, freeze_s=FREEZE_S, heartbeat=BEATS)
    made = Network(cell)
    await made.open()
    yield made
    await made.close()


async def far_gateway(cell: Cell, network: Network) -> Gateway:
    locate = lambda: Address(host="127.0.0.1", port=network.port)  # noqa: E731
    gateway = Gateway("far", cell.state, locate, freeze_s=FREEZE_S, heartbeat=BEATS, connect_s=0.1)
    cell.gateways.append(gateway)
    gateway.link.start()
    await until(lambda: gateway.link.is_open)
    return gateway


async def runs(cell: Cell, gateway: Gateway) -> list[float]:
    """One stream; when it was cut."""
    cut_s: list[float] = []
    grant = await gateway.dispatcher.submit(cell.ask("r1"))

    def cut() -> None:
        cut_s.append(asyncio.get_running_loop().time())
        gateway.dispatcher.settle("r1", Ending.NEUTRAL, Usage())

    grant.on_cut = cut
    return cut_s


async def test_a_stream_is_cut_before_its_slot_is_another_s(cell: Cell, network: Network) -> None:
    far = await far_gateway(cell, network)
    cut_s = await runs(cell, far)
    near = Gateway("near", cell.state, lambda: cell.address)
    cell.gateways.append(near)
    waiting = asyncio.create_task(near.dispatcher.submit(cell.ask("r2")))
    await until(lambda: cell.host.snapshot().queued == 1)
    network.is_silent = True
    assert (await waiting).decision.id == "r2"
    granted_s = asyncio.get_running_loop().time()
    assert len(cut_s) == 1 and cut_s[0] <= granted_s
    network.is_silent = False
    await until(lambda: far.link.is_open)
    counters = cell.counters()
    assert (counters["in_flight"], counters["overcommitted"], counters["leaked_slots"]) == (1, 0, 0)


async def test_a_silence_that_is_shorter_cuts_nothing_and_loses_nothing(cell: Cell, network: Network) -> None:
    far = await far_gateway(cell, network)
    cut_s = await runs(cell, far)
    network.is_silent = True
    await until(lambda: not far.link.is_open)
    network.is_silent = False
    await until(lambda: far.link.is_open)
    await asyncio.sleep(FREEZE_S * 1.5)
    assert not cut_s
    assert cell.counters()["in_flight"] == 1


async def test_where_nobody_listens_any_more_nobody_gives_slots_away_and_streams_run_on(cell: Cell) -> None:
    await cell.serve(1, tcp=True, heartbeat=BEATS)
    gateway = await cell.gateway("a", freeze_s=0.2, heartbeat=BEATS)
    cut_s = await runs(cell, gateway)
    cell.kill()
    await until(lambda: not gateway.link.is_open)
    await asyncio.sleep(0.6)
    assert not cut_s


async def test_on_one_machine_no_stream_is_ever_cut_for_that(cell: Cell) -> None:
    await cell.serve(1)
    gateway = await cell.gateway("a", freeze_s=0.05)
    cut_s = await runs(cell, gateway)
    cell.kill()
    await until(lambda: not gateway.link.is_open)
    await asyncio.sleep(0.3)
    assert not cut_s


async def test_a_silent_gateway_is_frozen_though_its_connection_never_ended(cell: Cell, network: Network) -> None:
    far = await far_gateway(cell, network)
    assert cell.server.gateways["far"].connection is not None
    network.is_silent = True
    await until(lambda: cell.server.gateways["far"].connection is None)
    assert far.link.num_attached == 1


async def test_on_one_machine_a_gateway_that_is_silent_keeps_its_slots(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be paused; its end would be told."""
    claim = Claim(Mandate([["a"]]))
    claim.mandate.is_own("a")
    claim.mandate.row_holds(1e12)
    await cell.serve(1, claim=claim, heartbeat=BEATS)
    gateway = await cell.gateway("a")
    await runs(cell, gateway)
    said: list[Any] = []
    assert gateway.link._connection is not None
    monkeypatch.setattr(gateway.link._connection, "say", said.append)
    await until(lambda: len(said) >= 2 * BEATS.silent_s / BEATS.every_s)
    assert gateway.link.num_attached == 1 and cell.host.snapshot().in_flight == 1

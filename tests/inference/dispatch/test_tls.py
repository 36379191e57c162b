"""The link between machines, encrypted: who is believed, and what an eavesdropper hears."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.certificates import Certificates, KeyPair, serial_of
from headway.clock import SystemClock
from headway.errors import ConfigurationError
from headway.home import Home
from inference.dispatch.address import Address, Tls
from inference.dispatch.visitor import look_at
from inference.errors import NoReplicaReady
from inference.wiring_dispatcher import DispatcherSettings, make_leadership
from tests.inference.dispatch.cell import SECRET, Cell, Gateway, until


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path)
    made.ensure_dispatcher()
    return made


@pytest.fixture
async def cell(tmp_path: Path, certificates: Certificates) -> AsyncIterator[Cell]:
    made = Cell(tmp_path)
    await made.serve(1, certificates=certificates)
    yield made
    await made.close()


def revoke(certificates: Certificates, pair: KeyPair) -> None:
    serial = serial_of(pair)
    assert serial is not None
    certificates.revocations.accept(certificates.revocations.sign({serial}, number=1))


async def is_refused(cell: Cell, address: Address) -> bool:
    stranger = Gateway("stranger", cell.state, lambda: address, wait_s=0.2)
    cell.gateways.append(stranger)
    with pytest.raises(NoReplicaReady):
        await stranger.dispatcher.submit(cell.ask("r1"))
    return cell.server.gateways == {} and cell.host.snapshot().in_flight == 0


async def test_over_tls_a_gateway_is_granted_slots_and_an_observer_sees_them(cell: Cell) -> None:
    gateway = await cell.gateway("a")
    assert str(cell.address).startswith("tls://")
    await gateway.dispatcher.submit(cell.ask("r1"))
    assert cell.host.snapshot().in_flight == 1
    seen = await look_at(cell.address, secret=SECRET)
    assert seen is not None and (seen["in_flight"], seen["gateways"]) == (1, ["a"])
    gateway.die()
    await until(lambda: cell.server.gateways["a"].connection is None)


async def test_who_listens_on_the_way_reads_neither_names_nor_what_is_asked(cell: Cell) -> None:
    heard = bytearray()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", cell.address.port)

        async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                heard.extend(data)
                sink.write(data)
            sink.close()

        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))

    async with await asyncio.start_server(pass_on, "127.0.0.1", 0) as between:
        port = between.sockets[0].getsockname()[1]
        gateway = Gateway("a-gateway-with-a-name", cell.state, lambda: replace(cell.address, port=port))
        cell.gateways.append(gateway)
        await gateway.dispatcher.submit(cell.ask("a-request-with-a-name"))
        assert len(heard) > 1000
        assert b"with-a-name" not in heard
        await gateway.link.close()
        await until(lambda: cell.server.gateways["a-gateway-with-a-name"].connection is None)


async def test_the_secret_is_asked_for_all_the_same(cell: Cell) -> None:
    assert await look_at(cell.address, secret="another secret of some length") is None


async def test_a_dispatcher_of_another_authority_or_under_another_name_is_believed_by_nobody(
    cell: Cell, tmp_path: Path, certificates: Certificates
) -> None:
    other = Certificates(tmp_path / "other")
    other.folder.mkdir()
    other.ensure_gateway()
    assert await is_refused(cell, replace(cell.address, tls=other.to_dispatcher_tls().get))
    pair, node = certificates.dispatcher(), certificates.ensure_node("n")
    pair.certificate.write_bytes(node.certificate.read_bytes())
    pair.key.write_bytes(node.key.read_bytes())
    await cell.serve(2, certificates=certificates)
    assert await is_refused(cell, cell.address)


async def test_nor_is_one_whose_certificate_was_revoked(cell: Cell, certificates: Certificates) -> None:
    revoke(certificates, certificates.dispatcher())
    assert await is_refused(cell, replace(cell.address, tls=certificates.to_dispatcher_tls().get))


@pytest.mark.parametrize("tls", [None, "empty"])
async def test_who_has_no_authority_or_speaks_plainly_gets_nothing(cell: Cell, tmp_path: Path, tls: str | None) -> None:
    nobody: Tls | None = None if tls is None else Certificates(tmp_path / "empty").to_dispatcher_tls().get
    assert await is_refused(cell, replace(cell.address, tls=nobody))
    assert await is_refused(cell, Address(host="127.0.0.1", port=cell.address.port))


def chosen(monkeypatch: pytest.MonkeyPatch, **told: str) -> DispatcherSettings:
    monkeypatch.setenv("HEADWAY_DISPATCHER_SECRET", SECRET)
    for name, value in told.items():
        monkeypatch.setenv(f"HEADWAY_DISPATCHER_{name}", value)
    return DispatcherSettings.from_env()


def test_one_that_listens_encrypted_tells_so_and_makes_its_certificate_where_the_authority_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.HOME = Home(tmp_path)
    found = chosen(monkeypatch, LISTEN="tls://0.0.0.0:9102", ADDRESS="brain.internal:9102")
    assert (str(found.listen), str(found.address)) == ("tls://0.0.0.0:9102", "tls://brain.internal:9102")
    with pytest.raises(ConfigurationError, match=r"dispatcher\.pem.*manage\.py node_certificate"):
        make_leadership(SystemClock(), found, "d")
    Certificates(settings.HOME.tls).ensure_gateway()
    make_leadership(SystemClock(), found, "d")
    assert serial_of(Certificates(settings.HOME.tls).dispatcher())
    plain = chosen(monkeypatch, LISTEN="0.0.0.0:9102", ADDRESS="brain.internal:9102")
    assert str(plain.address) == "tcp://brain.internal:9102"

"""A node's door for gateways of other machines: who gets in, and to which engine."""

import asyncio
import ssl
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headway.certificates import Certificates, KeyPair, node_domain, serial_of
from headway.errors import ConfigurationError
from inference.gateway.state import reachable
from inference.gateway.upstream import UpstreamPool, UpstreamTunables
from inference.gateway.upstream_connection import UpstreamError
from inference.node.front import Front, listening_context
from inference.node.front_door import FrontDoor
from inference.node.node_files import RunFile
from inference.node.remote_address import Wanted, remote_url, wanted_of
from tests.fakes.gateway import until
from tests.fakes.replica import ScriptedReplica, answered, streamed

NODE = "Node_1.rack"
TUNABLES = UpstreamTunables(connect_s=2.0, headers_s=5.0)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The name of a Unix socket has room for 107 characters."""
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        yield Path(folder)


@dataclass
class Node:
    """A front before one scripted engine."""

    engine: ScriptedReplica
    front: Front
    certificates: Certificates
    port: int
    runs: dict[str, RunFile]
    pools: list[UpstreamPool] = field(default_factory=list)

    def url(self, *, epoch: int = 3, replica: str = "rep-1", node: str = NODE) -> str:
        return remote_url(f"127.0.0.1:{self.port}", node=node, replica=replica, epoch=epoch)

    def gateway(self, context: Callable[[], ssl.SSLContext] | None = None) -> UpstreamPool:
        self.pools.append(UpstreamPool(TUNABLES, node_tls=context or self.certificates.client_tls().get))
        return self.pools[-1]

    async def answer(self, pool: UpstreamPool, url: str) -> bytes:
        response = await pool.request(url, "POST", "/v1/completions", [], b"{}")
        return await response.read_all(5.0, 10**6)

    async def is_refused(self, pool: UpstreamPool, url: str) -> bool:
        """And nothing of it reached the engine."""
        try:
            await self.answer(pool, url)
        except UpstreamError:
            return not self.engine.requests
        return False


def run_file(socket: Path, epoch: int) -> RunFile:
    return RunFile("rep-1", epoch, 1, 1, 1, str(socket), "e", (), 0)


@pytest.fixture
async def node(short_folder: Path, tmp_path: Path) -> AsyncIterator[Node]:
    certificates = Certificates(tmp_path)
    certificates.ensure_gateway()
    certificates.ensure_node(NODE)
    runs: dict[str, RunFile] = {}
    async with ScriptedReplica(uds=short_folder / "e.sock") as engine:
        runs["rep-1"] = run_file(short_folder / "e.sock", 3)
        front = Front(runs.get)
        context = listening_context(certificates.server_context(NODE), NODE)
        async with await front.serve("127.0.0.1", 0, context) as server:
            port = server.sockets[0].getsockname()[1]
            made = Node(engine, front, certificates, port, runs)
            yield made
            for pool in made.pools:
                pool.close()
            await until(lambda: sum(pool.num_open() for pool in made.pools) == 0)


async def test_a_gateway_of_ours_streams_through_it_on_a_kept_connection(node: Node) -> None:
    pool, go = node.gateway(), asyncio.Event()
    node.engine.script(streamed([b"one", go, b"two"]), answered(b'{"a":1}'))
    response = await pool.request(node.url(), "POST", "/v1/completions", [("x-test", "1")], b'{"b":2}')
    first = await response.read(5.0)
    assert b"one" in first  # before the rest was made
    assert b"two" not in first
    go.set()
    assert b"two" in await response.read_all(5.0, 10**6)
    assert await node.answer(pool, node.url()) == b'{"a":1}'
    seen = node.engine.requests[0]
    assert (seen.path, seen.headers["host"], seen.headers["x-test"], seen.body) == (
        "/v1/completions",
        "localhost",
        "1",
        b'{"b":2}',
    )
    assert node.engine.num_connections == 1


async def test_a_gateway_that_leaves_reaches_the_engine_at_once(node: Node) -> None:
    never = asyncio.Event()
    node.engine.script(streamed([b"one", never]))
    response = await node.gateway().request(node.url(), "POST", "/v1/completions", [], b"{}")
    await response.read(5.0)
    response.abort()
    async with asyncio.timeout(5):
        await node.engine.requests[0].peer_closed.wait()


async def test_without_a_certificate_nobody_gets_in(node: Node) -> None:
    def bare() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(node.certificates.authority.certificate)
        return context

    assert await node.is_refused(node.gateway(bare), node.url())


async def test_nor_with_one_of_another_authority(node: Node, tmp_path: Path) -> None:
    other = Certificates(tmp_path / "other")
    other.folder.mkdir()
    pair = other.ensure_gateway()

    def foreign() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(node.certificates.authority.certificate)
        context.load_cert_chain(pair.certificate, pair.key)
        return context

    assert await node.is_refused(node.gateway(foreign), node.url())
    assert await node.is_refused(node.gateway(other.client_context), node.url())  # which does not trust the node, either


async def test_nor_with_a_nodes_own_which_is_good_for_servers_alone(node: Node) -> None:
    pair = node.certificates.ensure_node("node-2")

    def from_node() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(node.certificates.authority.certificate)
        context.load_cert_chain(pair.certificate, pair.key)
        return context

    assert await node.is_refused(node.gateway(from_node), node.url())


async def test_another_node_cannot_answer_for_it(node: Node) -> None:
    assert await node.is_refused(node.gateway(), node.url(node="node-2"))


async def test_an_engine_of_an_earlier_start_than_the_registry_knows_is_never_reached(node: Node) -> None:
    pool = node.gateway()
    assert await node.is_refused(pool, node.url(epoch=4))
    assert node.front.num_refused == 1
    assert await node.is_refused(pool, node.url(replica="rep-2"))
    # Restarted by its agent while nobody could be told: gateways that know the start before find it.
    node.runs["rep-1"] = run_file(Path(node.runs["rep-1"].socket), 5)
    node.engine.script(answered(b"{}"))
    assert await node.answer(pool, node.url(epoch=4)) == b"{}"


async def test_a_process_without_certificates_says_where_they_come_from(node: Node, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UpstreamError, match=r"manage\.py node_certificate"):
        await node.answer(node.gateway(Certificates(tmp_path / "empty").client_context), node.url())


class TestRevoked:
    """Files change while both ends run."""

    async def door(self, node: Node) -> FrontDoor:
        made = FrontDoor(node.front, node.certificates, NODE)
        made._tls._look_every_s = 0.0
        await made.open("127.0.0.1", 0)
        node.port = made.port
        return made

    def revoke(self, node: Node, pair: KeyPair) -> None:
        serial, revocations = serial_of(pair), node.certificates.revocations
        assert serial is not None and revocations.accept(revocations.sign({serial}, number=1))

    async def test_a_gateway_whose_certificate_is_revoked_is_cut_and_refused_and_gets_in_with_a_new_one(
        self, node: Node
    ) -> None:
        door, pool, never = await self.door(node), node.gateway(), asyncio.Event()
        node.engine.script(streamed([b"one", never]), answered(b"{}"))
        running = await pool.request(node.url(), "POST", "/v1/completions", [], b"{}")
        assert b"one" in await running.read(5.0)
        other = node.gateway()
        assert await node.answer(other, node.url()) == b"{}"  # and its connection is kept
        await door.look()
        self.revoke(node, node.certificates.gateway())
        await door.look()
        with pytest.raises(UpstreamError):
            await running.read_all(5.0, 10**6)
        await until(lambda: other.num_open() == 0)
        node.engine.requests.clear()
        assert await node.is_refused(other, node.url())
        node.certificates.ensure_gateway()
        node.engine.script(answered(b"{}"))
        assert await node.answer(node.gateway(), node.url()) == b"{}"
        door.close()

    async def test_a_node_whose_certificate_is_revoked_answers_nobody_until_it_has_a_new_one(self, node: Node) -> None:
        door, fresh = await self.door(node), node.certificates.client_tls()
        fresh._look_every_s = 0.0
        pool = node.gateway(fresh.get)
        node.engine.script(answered(b"{}"), answered(b"{}"))
        assert await node.answer(pool, node.url()) == b"{}"
        assert pool.num_idle(node.url()) == 1
        self.revoke(node, node.certificates.node(NODE))
        pool.close_idle()  # once a second
        await until(lambda: pool.num_idle(node.url()) == 0)
        node.engine.requests.clear()
        assert await node.is_refused(pool, node.url())
        node.certificates.ensure_node(NODE)
        await door.look()
        assert await node.answer(pool, node.url()) == b"{}"
        door.close()

    async def test_a_renewed_certificate_is_shown_to_who_comes_next_and_cuts_nobody(self, node: Node) -> None:
        door, pool, go = await self.door(node), node.gateway(), asyncio.Event()
        node.engine.script(streamed([b"one", go, b"two"]), answered(b"{}"))
        running = await pool.request(node.url(), "POST", "/v1/completions", [], b"{}")
        assert b"one" in await running.read(5.0)
        before, pair = serial_of(node.certificates.node(NODE)), node.certificates.node(NODE)
        pair.certificate.unlink()
        node.certificates.ensure_node(NODE)
        assert serial_of(pair) != before
        await door.look()
        assert await node.answer(node.gateway(), node.url()) == b"{}"
        go.set()
        assert b"two" in await running.read_all(5.0, 10**6)
        door.close()


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "rep-1-3",
        "rep-1-3.node-2",
        f"rep.{node_domain(NODE)}",
        f"-3.{node_domain(NODE)}",
        f"r-x.{node_domain(NODE)}",
    ],
)
def test_a_name_that_means_no_engine_of_the_node_means_none(name: str | None) -> None:
    assert wanted_of(name, node=NODE) is None


def test_the_name_says_which_engine_and_which_start() -> None:
    url = remote_url("10.0.0.2:9443", node=NODE, replica="rep-0a", epoch=12)
    assert url == f"tls://10.0.0.2:9443/rep-0a-12.{node_domain(NODE)}"
    assert wanted_of(url.rpartition("/")[2], node=NODE) == Wanted("rep-0a", 12)


def test_a_gateway_uses_the_socket_where_it_finds_it(tmp_path: Path) -> None:
    socket = tmp_path / "rep-1.sock"
    assert reachable("tls://h:1/n", f"unix:{socket}") == "tls://h:1/n"
    assert reachable("", f"unix:{socket}") == f"unix:{socket}"
    socket.touch()
    assert reachable("tls://h:1/n", f"unix:{socket}") == f"unix:{socket}"


def test_keys_are_their_owners_and_good_certificates_are_kept(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    pair = certificates.ensure_node("n")
    before = pair.certificate.read_bytes()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    assert certificates.ensure_node("n").certificate.read_bytes() == before
    (tmp_path / "ca.pem").unlink()
    certificates.ensure_node("n")  # of a new authority: the old one would be trusted by nobody
    assert pair.certificate.read_bytes() != before


def test_without_the_authoritys_key_nothing_is_made(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificates.ensure_gateway()
    certificates.authority.key.unlink()
    with pytest.raises(ConfigurationError, match="the authority's key is not here"):
        certificates.ensure_node("n")
    assert not certificates.node("n").certificate.exists()

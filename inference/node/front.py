"""A node's door for gateways of other machines: TLS with a client certificate of ours, and behind it the engine's socket.

It knows no HTTP. The name in the handshake says which replica is meant and which start of its engine the registry knows
(remote_address.py). An engine of an *earlier* start than that is never reached: the registry has moved on, and the agent
here has not heard of it. One of a later start is: the agent has restarted it while the database was away.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import structlog

from inference.node.node_files import RunFile
from inference.node.remote_address import Wanted, wanted_of

log = structlog.get_logger(__name__)
HANDSHAKE_S = 10.0
CONNECT_S = 5.0
CHUNK_BYTES = 64 * 1024
NAME_ATTRIBUTE = "headway_wanted"

FindRun = Callable[[str], RunFile | None]


def listening_context(context: ssl.SSLContext, node: str) -> ssl.SSLContext:
    """Keeps what a client asked for on its connection; refuses a handshake for what is not this node's."""

    def keep(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
        wanted = wanted_of(name, node=node)
        if wanted is None:
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        setattr(connection, NAME_ATTRIBUTE, wanted)
        return None

    context.sni_callback = keep
    return context


class Front:
    """`serve` it in a loop; `find_run` reads what the agent has started last of a replica."""

    def __init__(self, find_run: FindRun) -> None:
        self._find_run = find_run
        self._open: dict[asyncio.StreamWriter, int] = {}  # by the serial number of the gateway's certificate
        self.num_refused = 0

    async def serve(self, host: str, port: int, context: ssl.SSLContext) -> asyncio.Server:
        return await asyncio.start_server(
            self._take, host, port, ssl=context, ssl_handshake_timeout=HANDSHAKE_S, limit=CHUNK_BYTES
        )

    async def serve_on(self, sock: socket.socket, context: ssl.SSLContext) -> asyncio.Server:
        """One that listens already."""
        return await asyncio.start_server(
            self._take, sock=sock, ssl=context, ssl_handshake_timeout=HANDSHAKE_S, limit=CHUNK_BYTES
        )

    def cut(self, serials: frozenset[int]) -> int:
        """Gateways whose certificates are good no more, whatever they are at. How many connections that were."""
        found = [writer for writer, serial in self._open.items() if serial in serials]
        for writer in found:
            writer.transport.abort()
        return len(found)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown = writer.get_extra_info("ssl_object").getpeercert()
        self._open[writer] = int(shown["serialNumber"], 16)
        try:
            await self._serve_one(reader, writer)
        finally:
            del self._open[writer]

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wanted: Wanted | None = getattr(writer.get_extra_info("ssl_object"), NAME_ATTRIBUTE, None)
        path = self._socket_of(wanted) if wanted is not None else None
        if path is None:
            self.num_refused += 1
            writer.transport.abort()
            return
        try:
            async with asyncio.timeout(CONNECT_S):
                engine_reader, engine_writer = await asyncio.open_unix_connection(str(path), limit=CHUNK_BYTES)
        except (OSError, TimeoutError):
            writer.transport.abort()
            return
        await _join(reader, writer, engine_reader, engine_writer)

    def _socket_of(self, wanted: Wanted) -> Path | None:
        run = self._find_run(wanted.replica)
        if run is None:
            return None
        if run.epoch < wanted.epoch:
            log.warning("old_engine_refused", replica=wanted.replica, runs=run.epoch, asked_for=wanted.epoch)
            return None
        return Path(run.socket)


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    engine_reader: asyncio.StreamReader,
    engine_writer: asyncio.StreamWriter,
) -> None:
    """Until either end closes: a gateway that leaves must reach the engine at once, or it goes on computing."""
    ways = [asyncio.create_task(_copy(reader, engine_writer)), asyncio.create_task(_copy(engine_reader, writer))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        if ways[1].done():  # the engine's last bytes are on their way
            with contextlib.suppress(OSError):
                await writer.drain()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        engine_writer.close()
        writer.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            target.write(data)
            await target.drain()

"""Where a front listens, with the certificates of now: who comes after they were changed meets the new ones.

Every second the files are looked at. On a change a second listener takes over the same socket, so that nobody is turned away
in between; what runs goes on, but for gateways whose certificates were revoked.
"""

import asyncio
import ssl

import structlog

from headway.certificates import Certificates
from headway.fresh_context import FreshContext
from inference.node.front import Front, listening_context

log = structlog.get_logger(__name__)
LOOK_EVERY_S = 1.0


class FrontDoor:
    def __init__(self, front: Front, certificates: Certificates, node: str) -> None:
        self._front, self._certificates, self._node = front, certificates, node
        self._tls: FreshContext = certificates.server_tls(node)
        self._context: ssl.SSLContext | None = None
        self._servers: list[asyncio.Server] = []
        self._revoked: frozenset[int] = frozenset()

    @property
    def port(self) -> int:
        return int(self._servers[0].sockets[0].getsockname()[1])

    async def open(self, host: str, port: int) -> None:
        """Raises ConfigurationError without certificates."""
        self._context = self._tls.get()
        self._servers = [await self._front.serve(host, port, listening_context(self._context, self._node))]

    async def look(self) -> None:
        """Once a second: are there other certificates?"""
        context = self._tls.get()
        if context is not self._context:
            self._context = context
            await self._listen_anew(listening_context(context, self._node))
            listed = self._certificates.revocations.current()
            self._revoked = frozenset() if listed is None else listed.serials
            log.info("front_has_other_certificates", revoked=len(self._revoked))
        self._front.cut(self._revoked)  # also those that were in their handshake then

    async def _listen_anew(self, context: ssl.SSLContext) -> None:
        before = self._servers
        sockets = [sock.dup() for server in before for sock in server.sockets]
        self._servers = [await self._front.serve_on(sock, context) for sock in sockets]
        for server in before:
            server.close()

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await stop.wait()
            except TimeoutError:
                await self.look()
        self.close()

    def close(self) -> None:
        for server in self._servers:
            server.close()

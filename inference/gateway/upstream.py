"""A lean HTTP/1.1 client for engines: kept-alive connections over TCP, TLS and Unix sockets, read as the bytes arrive.

A connection serves one request at a time and goes back to the pool only when its response was whole. `abort()` closes
the socket at once, which is how an engine learns that nobody waits for the answer any more. One timer handle a
connection is moved lazily, so a token costs no timer.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from headway import env
from headway.errors import ConfigurationError
from inference.gateway.upstream_connection import ConnectFailed, Connection, UpstreamClosed, UpstreamResponse

DEAD_AFTER_S = 10.0
"""How long another machine may acknowledge nothing."""


@dataclass(frozen=True)
class UpstreamTunables:
    connect_s: float = 5.0
    """How long making a connection to an engine may take."""
    headers_s: float = 120.0
    """How long an engine may take until the headers of a streamed answer."""
    inter_event_s: float = 60.0
    """How long a running stream may stay silent before its engine is taken for hung."""
    whole_answer_s: float = 600.0
    """How long an engine may take for an answer that it does not stream (tools, n > 1, logprobs, echo)."""
    idle_s: float = 4.0
    """How long an idle connection is kept for the next request; vLLM itself closes after 5 s."""
    max_idle: int = 128
    """How many idle connections are kept per replica."""
    buffer_bytes: int = 256 * 1024
    """How much of an answer is buffered for a slow client before reading from the engine stops."""
    max_answer_bytes: int = 64 * 1024 * 1024
    """The largest answer taken that is not streamed."""
    tail_s: float = 1.0
    """How long to wait for the rest of a stream (usage, [DONE], end of body) after its finish reason."""

    @classmethod
    def from_env(cls) -> "UpstreamTunables":
        default = cls()
        return cls(
            connect_s=env.seconds("HEADWAY_UPSTREAM_CONNECT_S", default.connect_s, at_least=0.1),
            headers_s=env.seconds("HEADWAY_UPSTREAM_HEADERS_S", default.headers_s, at_least=0.1),
            inter_event_s=env.seconds("HEADWAY_UPSTREAM_INTER_EVENT_S", default.inter_event_s, at_least=0.1),
            whole_answer_s=env.seconds("HEADWAY_UPSTREAM_WHOLE_ANSWER_S", default.whole_answer_s, at_least=0.1),
            idle_s=env.seconds("HEADWAY_UPSTREAM_IDLE_S", default.idle_s),
            max_idle=env.whole("HEADWAY_UPSTREAM_MAX_IDLE", default.max_idle),
            buffer_bytes=env.whole("HEADWAY_UPSTREAM_BUFFER_BYTES", default.buffer_bytes, at_least=1024),
            max_answer_bytes=env.whole("HEADWAY_UPSTREAM_MAX_ANSWER_BYTES", default.max_answer_bytes, at_least=1024),
            tail_s=env.seconds("HEADWAY_UPSTREAM_TAIL_S", default.tail_s, at_least=0.01),
        )


class UpstreamPool:
    """Connections to all engines of a process. Belongs to one event loop."""

    def __init__(self, tunables: UpstreamTunables, *, node_tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """`node_tls`: the context of our certificates as they are now, for engines at tls:// (node/remote_address.py);
        raises ConfigurationError.
        """
        self.tunables = tunables
        self._node_tls_now = node_tls
        self._node_tls: ssl.SSLContext | None = None
        self._idle: dict[str, deque[Connection]] = {}
        self._open: set[Connection] = set()
        self._tls: ssl.SSLContext | None = None

    async def request(
        self, url: str, method: str, path: str, headers: list[tuple[str, str]], body: bytes, *, headers_s: float | None = None
    ) -> UpstreamResponse:
        """Send a request to the engine at `url` (http://, https://, unix:/path); returns when its headers are here.

        A kept connection that turns out to be closed (no byte came back) is replaced by a fresh one, once.
        Raises ConnectFailed, UpstreamClosed, UpstreamTimeout.
        """
        limit_s = self.tunables.headers_s if headers_s is None else headers_s
        message = _request_bytes(url, method, path, headers, body)
        kept = self._take_idle(url)
        if kept is not None:
            try:
                return await kept.send(message, limit_s)
            except UpstreamClosed as error:
                if not error.before_any_byte:
                    raise
        return await (await self._connect(url)).send(message, limit_s)

    @property
    def buffer_bytes(self) -> int:
        return self.tunables.buffer_bytes

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()

    def close_idle(self) -> None:
        """Close what has been idle for too long; called once a second. The longest idle stand first."""
        if self._node_tls is not None and self._node_tls_now is not None:
            self._look_at_certificates(self._node_tls_now)  # which had some once, and keeps those it has
        oldest_s = asyncio.get_running_loop().time() - self.tunables.idle_s
        for url, idle in list(self._idle.items()):
            while idle and idle[0].idle_since_s < oldest_s:
                idle.popleft().abort()
            if not idle:
                del self._idle[url]

    def num_open(self) -> int:
        return len(self._open)

    def num_idle(self, url: str) -> int:
        return len(self._idle.get(url, ()))

    def _take_idle(self, url: str) -> Connection | None:
        idle = self._idle.get(url)
        oldest_s = asyncio.get_running_loop().time() - self.tunables.idle_s
        while idle:
            connection = idle.pop()
            if not connection.is_lost and connection.idle_since_s >= oldest_s:
                return connection
            connection.abort()
        return None

    def keep(self, url: str, connection: Connection) -> None:
        idle = self._idle.setdefault(url, deque())
        connection.idle_since_s = connection.loop.time()
        idle.append(connection)
        if len(idle) > self.tunables.max_idle:
            idle.popleft().abort()

    def forget(self, url: str, connection: Connection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(url)
        if idle is not None and connection in idle:
            idle.remove(connection)
            if not idle:
                del self._idle[url]

    async def _connect(self, url: str) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(self, url, loop)
        parts = urlsplit(url)
        try:
            async with asyncio.timeout(self.tunables.connect_s):
                if parts.scheme == "unix":
                    await loop.create_unix_connection(lambda: connection, parts.path)
                elif parts.scheme == "tls":
                    await self._connect_node(connection, parts)
                else:
                    tls = self._tls_context() if parts.scheme == "https" else None
                    port = parts.port or (443 if tls else 80)
                    await loop.create_connection(lambda: connection, parts.hostname or "", port, ssl=tls)
        except TimeoutError:
            raise ConnectFailed(f"no connection within {self.tunables.connect_s:g} s") from None
        except (OSError, ConfigurationError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.message
            raise ConnectFailed(reason or type(error).__name__) from error
        self._open.add(connection)
        return connection

    async def _connect_node(self, connection: Connection, parts: SplitResult) -> None:
        """The name in the handshake says which engine is meant; the node's certificate must be good for it."""
        if self._node_tls_now is None:
            raise ConfigurationError("this process has no certificates for engines of other machines")
        context = self._look_at_certificates(self._node_tls_now)
        transport, _ = await connection.loop.create_connection(
            lambda: connection, parts.hostname or "", parts.port or 443, ssl=context, server_hostname=parts.path[1:]
        )
        _notice_death(transport.get_extra_info("socket"))

    def _look_at_certificates(self, now: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        """Were they changed, no connection of before serves another request. Raises ConfigurationError."""
        context = now()
        if self._node_tls is not None and self._node_tls is not context:
            for url in [url for url in self._idle if url.startswith("tls:")]:
                for connection in list(self._idle.get(url, ())):
                    connection.abort()
                self._idle.pop(url, None)
        self._node_tls = context
        return context

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _notice_death(sock: socket.socket) -> None:
    """A machine that is gone sends no end of file: ask it, and take silence for its end after about DEAD_AFTER_S."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 4), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(DEAD_AFTER_S * 1000))


def _request_bytes(url: str, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> list[bytes]:
    parts = urlsplit(url)
    is_engine = parts.scheme in ("unix", "tls")
    host = "localhost" if is_engine else parts.netloc
    prefix = "" if is_engine else parts.path.rstrip("/")
    lines = [f"{method} {prefix}{path} HTTP/1.1", f"host: {host}", *(f"{name}: {value}" for name, value in headers)]
    if body or method == "POST":
        lines.append(f"content-length: {len(body)}")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return [head, body] if body else [head]

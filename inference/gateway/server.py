"""Serve the gateway's application with uvicorn: bind, listen, say so, and on SIGTERM drain before ending."""

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import structlog
from uvicorn import Config, Server

from headway.errors import ConfigurationError
from inference.gateway.app import build_app
from inference.gateway.edge import EdgeTunables
from inference.gateway.exchange import Cut
from inference.gateway.parts import GatewayParts
from inference.gateway.protocol import EdgeProtocol, EdgeSocketProtocol

log = structlog.get_logger(__name__)

# After the requests that did not end in time were cut: for their error events to leave.
CUT_GRACE_S = 5
SAMPLE_METRICS_EVERY_S = 1.0
BACKLOG = 2048


class GatewayServer(Server):
    def __init__(self, config: Config, parts: GatewayParts, on_listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._parts, self._on_listening = parts, on_listening
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the signal is not raised again at the end: what comes after must still run."""
        original = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in original.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listening in sockets or []:
            set_connection_options(listening, self._parts.edge)
        await super().startup(sockets)
        self._sample()
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let running requests end, cut those that take longer than drain_s."""
        drain_s = self._parts.tunables.drain_s
        log.info("gateway_draining", running=len(self._parts.running), drain_s=drain_s)
        self._parts.begin_drain()
        cut = asyncio.get_running_loop().call_later(drain_s, self._cut_all)
        await super().shutdown(sockets)
        cut.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._parts.upstream.close()

    def _cut_all(self) -> None:
        for exchange in list(self._parts.running):
            exchange.cut(Cut.DRAIN)

    def _sample(self) -> None:
        self._parts.sample_metrics()
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_METRICS_EVERY_S, self._sample)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigurationError in one line."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        why = "the port is taken" if error.errno in (98, 48) else error.strerror
        raise ConfigurationError(f"cannot listen on {host}:{port}: {why}") from error
    bound.setblocking(False)
    return bound


def set_connection_options(listening: socket.socket, edge: EdgeTunables) -> None:
    """What accepted connections inherit: a send buffer of a stated size, and peers that are gone without a word are noticed."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, edge.client_buffer_bytes // 2)  # Linux doubles it
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": int(edge.client_stall_s * 2000)}
    for name, value in options.items():
        if listening.family != socket.AF_UNIX and hasattr(socket, name):  # macOS has not all of them
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def serve(parts: GatewayParts, bound: socket.socket) -> None:
    """Blocks until a signal has ended it and the drain is over."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def on_listening() -> None:
        log.info("gateway_listening", host=host, port=port, gateway=parts.name)
        print(f"gateway: listening on http://{shown}", file=sys.stderr, flush=True)  # noqa: T201

    build_server(parts, on_listening).run(sockets=[bound])


def build_server(parts: GatewayParts, on_listening: Callable[[], None]) -> GatewayServer:
    return GatewayServer(_config(parts), parts, on_listening)


def _config(parts: GatewayParts) -> Config:
    return Config(
        build_app(parts),
        loop="uvloop",
        http=cast(Any, partial(EdgeProtocol, edge=parts.edge)),
        ws=cast(Any, partial(EdgeSocketProtocol, edge=parts.edge)),
        ws_max_size=parts.tunables.max_message_bytes,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        # uvicorn logs the URLs of WebSockets at INFO, and a URL may carry a key.
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(parts.tunables.drain_s) + CUT_GRACE_S,
    )

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

from inference.gateway.app import build_app
from inference.gateway.ends import Cut
from inference.gateway.listening import set_connection_options, shown_address
from inference.gateway.parts import GatewayParts
from inference.gateway.protocol import EdgeProtocol
from inference.gateway.socket_protocol import EdgeSocketProtocol
from inference.gateway.worker_link import WorkerLink

log = structlog.get_logger(__name__)

# After the requests that did not end in time were cut: for their error events to leave.
CUT_GRACE_S = 5
SAMPLE_METRICS_EVERY_S = 1.0
PROGRESS_EVERY_S = 0.25
BACKLOG = 2048
LISTEN_WITHIN_S = 5.0
"""A worker of several that is not ready by then listens all the same, and says why it is not."""


class GatewayServer(Server):
    def __init__(
        self, config: Config, parts: GatewayParts, on_listening: Callable[[], None], link: WorkerLink | None = None
    ) -> None:
        super().__init__(config)
        self._parts, self._on_listening, self._link = parts, on_listening, link
        self._timer: asyncio.TimerHandle | None = None
        self._comments: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but the signal is not raised again at the end: what comes after must still run."""
        ends = [signal.SIGTERM, signal.SIGINT]
        if self._link is None:
            ends.append(signal.SIGHUP)  # no parent, no rolling restart: drain and end, and be started again
        original = {number: signal.signal(number, self.handle_exit) for number in ends}
        try:
            yield
        finally:
            for number, handler in original.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listening in sockets or []:
            set_connection_options(listening, self._parts.edge)
        await self._parts.brain.open(self._brain_is_lost)
        if self._link is not None:
            await self._until_ready()
        await super().startup(sockets)
        if self._link is not None:
            await self._link.open(self._parent_is_gone)
        self._sample()
        self._comments = asyncio.create_task(self._look_after_requests())
        self._on_listening()

    async def _until_ready(self) -> None:
        """What comes meanwhile is taken by the worker before, or waits in the socket that is the place's."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTEN_WITHIN_S):
                while self._parts.why_not_ready() and not self.should_exit:  # noqa: ASYNC110  a look at two threads' work
                    await asyncio.sleep(0.01)

    def _parent_is_gone(self) -> None:
        log.warning("gateway_parent_gone")
        self.should_exit = True

    def _brain_is_lost(self) -> None:
        """Started again, this process is attached to whoever has it now."""
        self.should_exit = True

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
        if self._comments is not None:
            self._comments.cancel()
        self._parts.upstream.close()
        await self._parts.brain.close()
        if self._link is not None:
            await self._link.close()

    def _cut_all(self) -> None:
        for exchange in list(self._parts.running):
            exchange.cut(Cut.DRAIN)

    async def _look_after_requests(self) -> None:
        """Progress to the brain; comments to silent streams and to those who wait.

        One task for all: a timer for each would cost every request something.
        """
        parts = self._parts
        every_s = min(PROGRESS_EVERY_S, parts.edge.comment_s / 4)
        while True:
            await asyncio.sleep(every_s)
            parts.dispatcher.report_progress()
            now_s = parts.clock.monotonic_s()
            for exchange in list(parts.running):
                exchange.times.settle()
                await exchange.tell_position()
                if exchange.is_due_comment(now_s):
                    await exchange.keep_alive()

    def _sample(self) -> None:
        self._parts.sample_metrics()
        self._parts.upstream.close_idle()
        if self._link is not None:
            self._link.push_metrics()
            if not self._parts.why_not_ready():
                self._link.ready()
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_METRICS_EVERY_S, self._sample)


def serve(parts: GatewayParts, bound: socket.socket, link: WorkerLink | None = None) -> None:
    """Blocks until a signal (or, for a worker, its parent's end) has ended it and the drain is over."""

    def on_listening() -> None:
        log.info("gateway_listening", address=shown_address(bound), gateway=parts.name)
        if link is None:
            print(f"gateway: listening on http://{shown_address(bound)}", file=sys.stderr, flush=True)  # noqa: T201

    build_server(parts, on_listening, link).run(sockets=[bound])


def build_server(parts: GatewayParts, on_listening: Callable[[], None], link: WorkerLink | None = None) -> GatewayServer:
    return GatewayServer(_config(parts), parts, on_listening, link)


def _config(parts: GatewayParts) -> Config:
    return Config(
        build_app(parts),
        loop="uvloop",
        http=cast(Any, partial(EdgeProtocol, parts=parts)),
        ws=cast(Any, partial(EdgeSocketProtocol, parts=parts)),
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

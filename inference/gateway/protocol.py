"""The HTTP edge below the application: uvicorn's httptools protocol with limits, true framing and a drain without losses.

What is refused here never becomes a request: it gets an error object and the connection ends. Answers come in the order
of their requests, also where a later one is refused. While an answer runs, what the client sends ahead is held unparsed.
"""

import asyncio
import fcntl
import struct
import termios
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headway.logs import new_request_id
from inference.gateway.cycle import EdgeCycle
from inference.gateway.edge import (
    BAD_EXPECTATION,
    BAD_FRAMING,
    BAD_HTTP,
    BAD_VERSION,
    HEAD_TOO_SLOW,
    HEADERS_TOO_LARGE,
    NO_TUNNEL,
    TOO_MANY_CONNECTIONS,
    TOO_MANY_PIPELINED,
    URL_TOO_LONG,
)
from inference.gateway.openai_errors import Refusal

if TYPE_CHECKING:
    from inference.gateway.parts import GatewayParts

HELD_BYTES = 64 * 1024
IDLE_LOOK_S = 0.05


class _Refused(Exception):
    """Out of a callback of the parser, which turns it into an error of its own."""


class EdgeProtocol(HttpToolsProtocol):
    def __init__(self, *args: Any, parts: "GatewayParts", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parts, self.edge = parts, parts.edge
        self.is_draining = False
        self._running: EdgeCycle | None = None  # the one whose answer is next; `cycle` is the newest
        self._is_in_head, self._has_begun = True, False
        self._head_bytes = self._parsed_bytes = self._num_heads = 0
        self._refusal: Refusal | None = None
        self._last_words: Refusal | None = None  # said when the answers before it are out
        self._held = b""
        self._is_ending = False
        self._dropped_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._end_timer: asyncio.TimerHandle | None = None

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self.edge.client_buffer_bytes)
        if len(self.connections) > self.parts.max_connections:
            self._refuse(TOO_MANY_CONNECTIONS)
            return
        self._watch_head()
        if self.parts.is_draining:  # accepted just before the listening socket was closed
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in [self._running, *(cycle for cycle, _ in self.pipeline)]:
            if isinstance(cycle, EdgeCycle) and not cycle.response_complete:
                cycle.lose()
        self._stop_timers()
        super().connection_lost(exc)
        self.pipeline.clear()
        self.cycle = self._running = None  # type: ignore[assignment]  # they refer to us

    def shutdown(self) -> None:
        """The gateway drains. The next answer on this connection is its last; one that stays idle is closed a little later:
        a request that crosses a close would be lost, and clients that are busy send one before long."""
        self.is_draining = True
        if not self._is_busy():
            self.loop.call_later(self.edge.drain_idle_s, self._close_idle)

    def _is_busy(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _close_idle(self) -> None:
        """Not before what has arrived was answered."""
        if self._is_busy() or self._is_ending or self.transport.is_closing():
            return
        if self._has_begun or _has_unread(self.transport):
            self.loop.call_later(IDLE_LOOK_S, self._close_idle)
        else:
            self.end(is_unread=False)

    def end(self, *, is_unread: bool) -> None:
        """Close when what was written has left. With a request that is not whole, go on dropping what comes until nothing has
        come for a moment: closing over unread bytes resets the connection, which can take the answer from its client."""
        self._is_ending = True
        self._stop_timers()
        if is_unread and self.edge.linger_s and self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            until_s = self.loop.time() + self.edge.linger_s + self.edge.body_grace_s
            self._end_timer = self.loop.call_later(self.edge.linger_s, self._linger, self._dropped_bytes, until_s)
        else:
            self._close()

    def _linger(self, dropped_bytes: int, until_s: float) -> None:
        self._end_timer = None
        if self._dropped_bytes > dropped_bytes and self.loop.time() < until_s:
            self._end_timer = self.loop.call_later(self.edge.linger_s, self._linger, self._dropped_bytes, until_s)
        else:
            self._close()

    def _close(self) -> None:
        self.transport.close()
        self._watch_flush()

    def _watch_flush(self, left_bytes: int | None = None) -> None:
        """Closing, or idle: what was written must get off in time, or the connection is cut."""
        now_bytes = self.transport.get_write_buffer_size()
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None
        if not now_bytes:
            return
        if left_bytes is not None and now_bytes >= left_bytes:
            self.transport.abort()
            return
        self._end_timer = self.loop.call_later(self.edge.client_stall_s, self._watch_flush, now_bytes)

    def _stop_timers(self) -> None:
        self._unset_keepalive_if_required()
        for timer in (self._head_timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._end_timer = None

    # -- what the client sends

    def data_received(self, data: bytes) -> None:
        if self._is_ending or self._last_words is not None:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > self.parts.tunables.max_body_bytes:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        if self._is_in_head and self._is_busy():
            self._held += data
            if len(self._held) > HELD_BYTES:
                self.flow.pause_reading()
            return
        self._feed(data)
        self._watch_head()

    def _feed(self, data: bytes) -> None:
        heads_before = self._num_heads
        try:
            self.parser.feed_data(data)
            if self._has_begun and self._num_heads == heads_before:
                self._head_bytes += len(data)  # also of a header that does not end: the parser tells of whole ones only
                self._check_size(self._head_bytes)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except (httptools.HttpParserError, _Refused):
            self._refuse(self._refusal or BAD_HTTP)

    def _upgrade(self, rest: bytes) -> None:
        if self._should_upgrade() and self._can_be_websocket():
            if self._is_busy():
                self._refuse(BAD_HTTP)
            else:
                self._stop_timers()
                self._is_ending = True  # of this protocol: the connection is another's from here on
                self.handle_websocket_upgrade()
            return
        # An offer (h2c, a websocket by POST) that need not be taken: the parser has stopped, and reads it again without.
        kept = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"http2-settings")]
        lines = [name + b": " + value + b"\r\n" for name, value in kept]
        version = self.parser.get_http_version().encode()
        head = self.scope["method"].encode() + b" " + self.url + b" HTTP/" + version + b"\r\n" + b"".join(lines) + b"\r\n"
        self.parser = httptools.HttpRequestParser(self)
        self._feed(head + rest)

    def _can_be_websocket(self) -> bool:
        """The library behind fails an assertion on others, and the connection is never let go."""
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        return self.scope["method"] == "GET" and self.parser.get_http_version() == "1.1" and not has_body

    def _refuse(self, refusal: Refusal) -> None:
        """The connection cannot go on: say why, after the answers that are due before."""
        self._last_words = refusal
        self._has_begun = False
        cycle = self.cycle
        if isinstance(cycle, EdgeCycle) and not self._is_in_head and cycle.more_body:  # its body is broken
            cycle.lose()
            if cycle.response_started:
                self.end(is_unread=True)
                return
            if cycle is self._running:
                self._running = None
        if not self._is_busy():
            self._say_last_words()

    def _say_last_words(self) -> None:
        assert self._last_words is not None
        self.parts.metrics.refused_by_edge(str(self._last_words.code))
        body = self._last_words.body()
        named = [*self._last_words.all_headers(), ("x-request-id", new_request_id())]
        headers = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in named)
        headers += b"".join(name + b": " + value + b"\r\n" for name, value in self.parts.cors.headers(self.headers or []))
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
        self.transport.write(STATUS_LINE[self._last_words.status] + head + headers + b"\r\n" + body)
        self.end(is_unread=True)

    # -- the head of a request, in time and within limits

    def _watch_head(self) -> None:
        """A head that is due must come in time; none is due while an answer runs."""
        if self._head_timer is None and self._is_in_head and not self._is_busy() and not self._is_ending:
            self._head_timer = self.loop.call_later(self.edge.head_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_ending or self._is_busy() or self.transport.is_closing():
            return
        if self._has_begun:
            self._refuse(HEAD_TOO_SLOW)
        else:
            self.end(is_unread=False)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self.edge.max_header_bytes + len(self.url):
            self._raise(URL_TOO_LONG if len(self.url) > self.edge.max_url_bytes else HEADERS_TOO_LARGE)

    def _raise(self, refusal: Refusal) -> None:
        self._refusal = refusal
        raise _Refused

    # -- callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_begun, self._num_heads, self._head_bytes, self._parsed_bytes = True, self._num_heads + 1, 0, 0
        if len(self.pipeline) >= self.edge.max_pipelined:
            self._raise(TOO_MANY_PIPELINED)

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > self.edge.max_url_bytes:
            self._raise(URL_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # a trailer: it must not become a header
        super().on_header(name, value)
        self._parsed_bytes += len(name) + len(value) + 4
        self._check_size(self._parsed_bytes)
        if len(self.headers) > self.edge.max_headers:
            self._raise(HEADERS_TOO_LARGE)

    def on_headers_complete(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        method, version = self.parser.get_method().decode("ascii"), self.parser.get_http_version()
        self.scope["method"] = method
        self._check_head(method, version)
        if self.parser.should_upgrade():
            return  # what it becomes is decided where the parser stops
        self._is_in_head = self._has_begun = False
        self.scope["http_version"] = version
        url = httptools.parse_url(self.url)
        raw_path = url.path or b"/"
        path = raw_path.decode("ascii")
        self.scope["path"] = unquote(path) if "%" in path else path
        self.scope["raw_path"], self.scope["query_string"] = raw_path, url.query or b""
        self._begin_cycle(version)

    def _check_head(self, method: str, version: str) -> None:
        if version not in ("1.1", "1.0"):
            self._raise(BAD_VERSION)
        if method == "CONNECT":
            self._raise(NO_TUNNEL)
        for name, value in self.headers:
            if name == b"transfer-encoding" and (value.strip().lower() != b"chunked" or version == "1.0"):
                self._raise(BAD_FRAMING)
            if name == b"expect" and value.lower() != b"100-continue":
                self._raise(BAD_EXPECTATION)

    def _begin_cycle(self, version: str) -> None:
        cycle = EdgeCycle(
            self,
            is_http_1_0=version == "1.0",
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=self.parser.should_keep_alive(),
        )
        self.cycle = cycle
        if self._is_busy():
            self.pipeline.appendleft((cycle, self.app))
        else:
            self._start(cycle)

    def on_body(self, body: bytes) -> None:
        if not self.parser.should_upgrade():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._is_in_head = True
        super().on_message_complete()

    # -- answers

    def _start(self, cycle: EdgeCycle) -> None:
        self._running = cycle
        if self._end_timer is not None:  # from here on `send` sees whether the client reads
            self._end_timer.cancel()
            self._end_timer = None
        self._start_asgi_task(cycle, self.app)

    def on_response_complete(self) -> None:
        """The running answer is out: the next request, the last words, or idleness."""
        self.server_state.total_requests += 1
        cycle = self._running
        if cycle is None or self._is_ending or self.transport.is_closing():
            return
        if not cycle.keep_alive:
            self.end(is_unread=cycle.more_body or bool(self._held) or self._has_begun)
        elif self.pipeline:
            self._start(self.pipeline.pop()[0])  # type: ignore[arg-type]  # all cycles are ours
        elif self._last_words is not None:
            self._say_last_words()
        else:
            self._become_idle()

    def _become_idle(self) -> None:
        self._watch_flush()
        self.flow.resume_reading()
        if self._held:
            held, self._held = self._held, b""
            self._feed(held)
        if self._is_busy() or self._is_ending:
            return
        if self._has_begun:
            self._watch_head()
        elif self.is_draining:
            self.loop.call_later(self.edge.drain_idle_s, self._close_idle)
        else:
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(self.edge.idle_connection_s, self.timeout_keep_alive_handler)


def _has_unread(transport: asyncio.Transport) -> bool:
    """Has the kernel bytes for us that were not read yet?"""
    bound = transport.get_extra_info("socket")
    if bound is None or bound.fileno() < 0:
        return False
    return bool(struct.unpack("i", fcntl.ioctl(bound.fileno(), termios.FIONREAD, b"\0\0\0\0"))[0])

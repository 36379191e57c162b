"""One kept-alive connection to an engine, and the response that is read from it."""

import asyncio
import math
from collections.abc import Callable
from itertools import count
from typing import Protocol, cast

import httptools


class UpstreamError(Exception):
    """The engine could not be talked to; the subclass says how far it came."""


class ConnectFailed(UpstreamError):
    """No connection; nothing was sent."""


class UpstreamClosed(UpstreamError):
    """The connection ended, or broke the protocol, before the response was whole."""

    def __init__(self, reason: str, *, before_headers: bool, before_any_byte: bool = False) -> None:
        super().__init__(reason)
        self.before_headers = before_headers
        self.before_any_byte = before_any_byte


class UpstreamTimeout(UpstreamError):
    """The engine stayed silent for too long; `phase` is "headers" or "body"."""

    def __init__(self, phase: str, limit_s: float) -> None:
        super().__init__(f"no {phase} within {limit_s:g} s")
        self.phase = phase


class UpstreamResponse:
    """A response whose headers have arrived. `headers` has lower-case names."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._taker: Taker | None = None
        self._error: UpstreamError | None = None
        self._discards = False
        self.is_complete = False
        self.status = 0
        self.headers: dict[str, str] = {}

    async def read(self, limit_s: float, taker: "Taker | None" = None) -> bytes:
        """Whatever has arrived since the last call, waiting at most `limit_s` for the first byte; b"" at the end.

        `taker` sees what arrives while this waits, before anything else runs, and returns what it leaves: as long as that is
        nothing, the wait goes on, with a new `limit_s` each time. Raises UpstreamClosed, UpstreamTimeout (after which a
        further read may wait again).
        """
        while not self._chunks:
            if self.is_complete:
                return b""
            if self._error is not None:
                raise self._error
            self._set_taker(taker)
            try:
                await self._wait(limit_s, "body")
            finally:
                self._forget_taker()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered_bytes = 0
        self._connection.resume()
        return data

    async def read_all(self, limit_s: float, max_bytes: int) -> bytes:
        """The whole body. Raises UpstreamClosed (also when it is larger than `max_bytes`), UpstreamTimeout."""
        parts, size = [], 0
        while data := await self.read(limit_s):
            parts.append(data)
            size += len(data)
            if size > max_bytes:
                self.abort()
                raise UpstreamClosed(f"the answer is larger than {max_bytes} bytes", before_headers=False)
        return b"".join(parts)

    def abort(self) -> None:
        """Close the socket at once, unless the response is whole already."""
        if not self.is_complete:
            self._connection.abort()

    def finish(self, within_s: float) -> None:
        """Nothing more is wanted: keep the connection if the response ends within `within_s`, else close it."""
        if not self.is_complete and self._error is None:
            self._discards = True
            self._chunks.clear()
            self._connection.resume()
            self._connection.arm(within_s)

    def _set_taker(self, taker: "Taker | None") -> None:
        self._taker = taker
        self._connection.pass_framed = taker.pass_framed if taker is not None and taker.is_ready else None

    def _forget_taker(self) -> None:
        if self._taker is not None:
            self._taker = self._connection.pass_framed = None

    async def _wait(self, limit_s: float, phase: str) -> None:
        self._waiter = self._connection.loop.create_future()
        self._connection.arm(limit_s)
        try:
            await self._waiter
        except TimeoutError:
            raise UpstreamTimeout(phase, limit_s) from None
        finally:
            self._waiter = None
            self._connection.disarm()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _add(self, data: bytes) -> int:
        """Returns how many bytes wait to be read."""
        if self._discards:
            return 0
        if self._taker is not None and not self._chunks:
            data = self._taker.take(data)
            if not data:
                self._connection.rearm()
                return 0
            self._forget_taker()  # what comes after this must not overtake it
        self._chunks.append(data)
        self._buffered_bytes += len(data)
        self._wake()
        return self._buffered_bytes

    def _fail(self, error: UpstreamError) -> None:
        self._error = error
        self._forget_taker()
        self._wake()

    def _complete(self) -> None:
        self.is_complete = True
        self._forget_taker()  # the connection may be another request's next
        self._wake()

    def _time_out(self) -> bool:
        """The deadline has passed: tell who waits. False when nobody does."""
        if self._waiter is None or self._waiter.done():
            return False
        self._waiter.set_exception(TimeoutError())
        return True


class Taker(Protocol):
    """Takes what it can of a body while nobody awaits it (short_way.py)."""

    @property
    def is_ready(self) -> bool:
        """May `pass_framed` be asked? It changes only when somebody reads."""

    def pass_framed(self, data: bytes) -> bool:
        """Take all of this, as the socket brought it: one whole HTTP chunk. False: nothing was taken."""

    def take(self, data: bytes) -> bytes:
        """The same of a body's bytes; returns the rest."""


class Owner(Protocol):
    """Who keeps the connection between requests."""

    @property
    def buffer_bytes(self) -> int:
        """How much may wait to be read before reading from the engine stops."""

    def keep(self, url: str, connection: "Connection") -> None: ...

    def forget(self, url: str, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """One socket. `response` is the one being read, None while idle."""

    def __init__(self, owner: Owner, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self._owner, self._url, self.loop = owner, url, loop
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._is_paused = False
        self._has_headers = self._has_bytes = self._ends_with_eof = False
        self._deadline_s = math.inf
        self._limit_s = 0.0
        self.pass_framed: Callable[[bytes], bool] | None = None
        """Asked first of what arrives between two chunks of a body."""
        self._is_between_chunks = False
        self._body: list[bytes] = []  # of one read
        self.on_body: Callable[[bytes], None] = self._body.append
        self.on_chunk_header: Callable[[], int] = count().__next__
        self.on_chunk_complete: Callable[[], int] = count().__next__
        self._timer: asyncio.TimerHandle | None = None
        self.response: UpstreamResponse | None = None
        self.idle_since_s = 0.0
        self.is_lost = False

    # -- towards the pool and the response

    async def send(self, request: list[bytes], limit_s: float) -> UpstreamResponse:
        """Send a request; returns when the response's headers have arrived."""
        assert self._transport is not None and self.response is None, "one request at a time"
        # The parser takes these at its making, and calls them without a step of Python.
        self.on_chunk_header, self.on_chunk_complete = count().__next__, count().__next__
        self._body.clear()
        self._parser = httptools.HttpResponseParser(self)
        self._is_between_chunks = False
        self._has_headers = self._has_bytes = self._ends_with_eof = False
        self.response = response = UpstreamResponse(self)
        self._transport.writelines(request)
        try:
            while not response.status:
                if response._error is not None:
                    raise response._error
                await response._wait(limit_s, "headers")
        except BaseException:
            self.abort()
            raise
        return response

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def arm(self, limit_s: float) -> None:
        """Set the deadline. The handle is made anew only when the deadline came nearer."""
        self._limit_s = limit_s
        self._deadline_s = deadline_s = self.loop.time() + limit_s
        if self._timer is not None and self._timer.when() > deadline_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(deadline_s, self._on_timer)

    def rearm(self) -> None:
        """The same limit again, from now: the timer finds the later deadline when it fires."""
        self._deadline_s = self.loop.time() + self._limit_s

    def disarm(self) -> None:
        self._deadline_s = math.inf

    def _on_timer(self) -> None:
        self._timer = None
        if self._deadline_s == math.inf:
            return
        if self.loop.time() < self._deadline_s:
            self._timer = self.loop.call_at(self._deadline_s, self._on_timer)
        elif self.response is None or not self.response._time_out():
            self.abort()  # a response that was given up has not ended in time

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.response is None or self._parser is None:
            self.abort()  # an engine that speaks unasked
            return
        if self._is_between_chunks and self.pass_framed is not None and self.pass_framed(data):
            self._deadline_s = self.loop.time() + self._limit_s
            return
        self._has_bytes = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._hand_on_body()
            self._fail("the engine's answer is not HTTP")
            self.abort()
            return
        if self.response is not None:
            self._hand_on_body()
            # The line end rules out that the next chunk's size has begun. Asking counts, of both alike.
            self._is_between_chunks = self.on_chunk_header() == self.on_chunk_complete() and data.endswith(b"\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._owner.forget(self._url, self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.response is not None and self._ends_with_eof and exc is None:
            self.response._complete()
        else:
            self._fail("the engine closed the connection")
        self.response = self._parser = None

    def _hand_on_body(self) -> None:
        if not self._body or self.response is None:
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        assert self._transport is not None
        waiting_bytes = self.response._add(body)
        if waiting_bytes > self._owner.buffer_bytes and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _fail(self, reason: str) -> None:
        if self.response is not None and self.response._error is None:
            error = UpstreamClosed(reason, before_headers=not self._has_headers, before_any_byte=not self._has_bytes)
            self.response._fail(error)

    # -- httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self.response is not None
        self.response.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self.response is not None and self._parser is not None
        status = self._parser.get_status_code()
        if status < 200:
            return  # an interim response; its headers are overwritten
        headers = self.response.headers
        self._ends_with_eof = "content-length" not in headers and "transfer-encoding" not in headers
        self._has_headers = True
        self.response.status = status
        self.response._wake()

    def on_message_complete(self) -> None:
        response = self.response
        if response is None or not self._has_headers or self._parser is None:
            return
        self._hand_on_body()
        keeps_alive = self._parser.should_keep_alive() and not self._ends_with_eof
        self.response = None
        self.disarm()
        response._complete()
        self.resume()
        if keeps_alive:
            self._owner.keep(self._url, self)
        elif self._transport is not None:
            self._transport.close()

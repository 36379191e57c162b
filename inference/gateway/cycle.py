"""One request and its answer on a connection: uvicorn's cycle with our framing and back-pressure."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from inference.gateway.openai_errors import INTERNAL

if TYPE_CHECKING:
    from inference.gateway.protocol import EdgeProtocol

log = structlog.get_logger(__name__)

NO_BODY = frozenset({204, 304})
COMMENT = "headway.comment"
"""The type of a message that is sent only while an answer's body is open and its client reads; else it is dropped."""


EXTENSION = "headway.edge"
"""The name under which a scope's extensions have its EdgeCycle."""


class EdgeCycle(RequestResponseCycle):
    """`send` and `receive` are ASGI's; `whole_body`, `on_gone` and `write_now` are what ASGI has no words for, and cheap.

    Nothing here runs per token but `write_now`, or `send` and `_send_body`.
    """

    def __init__(self, protocol: "EdgeProtocol", *, is_http_1_0: bool, **kwargs: Any) -> None:
        super().__init__(on_response=protocol.on_response_complete, **kwargs)
        self._protocol = protocol
        self._is_http_1_0 = is_http_1_0
        self._when_gone: Callable[[], None] | None = None
        self._head = b""  # of the answer, until its body begins: both leave in one write
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]  # ASGI has dicts only

    def lose(self) -> None:
        """The client has gone, or can be served no more."""
        self.disconnected = True
        self.message_event.set()
        if self._when_gone is not None:
            # Not at once: this may run inside the very task that is to be cancelled.
            asyncio.get_running_loop().call_soon(self._when_gone)
            self._when_gone = None

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call it once, soon after the client has left, unless the answer is out before."""
        if self.disconnected:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._when_gone = callback

    def whole_body(self) -> bytes | None:
        """The request's body, if all of it is here and none was taken; then nothing is to be waited for."""
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        self.waiting_for_100_continue = False
        self.flow.resume_reading()
        return body

    def write_now(self, body: bytes) -> bool:
        """Write a piece of an answer's body at once. False, and nothing is done, where `send` would wait or drop it."""
        if self.flow.write_paused or self.disconnected or not self.response_started or self.response_complete:
            return False
        try:
            if self.chunked_encoding and body and not self._head:
                self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
            else:
                self._send_body(body, is_last=False)
        except (OSError, RuntimeError) as error:
            self._lost_while_writing(error)
        return True

    async def receive(self) -> Any:
        """As uvicorn's: `100 Continue` leaves when the application asks for a body that has not come by itself."""
        if self.body or not self.more_body or self._is_http_1_0:
            self.waiting_for_100_continue = False
        return await super().receive()

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            if message["type"] == COMMENT:
                return
            await self._wait_until_read()
        if self.disconnected:
            return
        try:
            self._send(message)
        except (OSError, RuntimeError) as error:
            self._lost_while_writing(error)

    def _lost_while_writing(self, error: Exception) -> None:
        """uvloop raises of a connection that was reset (RuntimeError: the handle is closed) before it says so."""
        log.debug("client_gone_while_writing", reason=type(error).__name__)
        self.lose()
        self.transport.abort()

    def _send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self._send_body(message["body"], is_last=not message.get("more_body", False))
        elif message["type"] == "http.response.start":
            self._send_start(message["status"], message["headers"])
        elif self.response_started and not self.response_complete:
            self._send_body(message["body"], is_last=False)

    async def send_500_response(self) -> None:
        """uvicorn's, when the application was cancelled or failed without an answer: an error object here as well."""
        body = INTERNAL.body()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        self.keep_alive = False
        await self.send({"type": "http.response.start", "status": INTERNAL.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    async def _wait_until_read(self) -> None:
        """Back-pressure: the client has not taken what waits for it. One that takes nothing for too long is cut."""
        stall_s = self._protocol.edge.client_stall_s
        try:
            async with asyncio.timeout(stall_s):
                await self.flow.drain()
        except TimeoutError:
            log.warning("client_cut_for_not_reading", after_s=stall_s)
            self._protocol.parts.metrics.client_cut()
            self.transport.abort()
            self.lose()

    def _send_start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert not self.response_started, "started twice"
        self.response_started = True
        self.waiting_for_100_continue = False
        # The rest of a body that was not read must not be taken for the next request.
        if self.more_body or self._protocol.is_draining:
            self.keep_alive = False
        lines = [STATUS_LINE[status]]
        for name, value in [*self.default_headers, *headers]:
            lines.append(name + b": " + value + b"\r\n")
            if name == b"content-length":
                self.expected_content_length = int(value)
                self.chunked_encoding = False
        has_body = self.scope["method"] != "HEAD" and status not in NO_BODY
        if self.chunked_encoding is None and has_body:
            if self._is_http_1_0:
                self.chunked_encoding = self.keep_alive = False  # the body ends with the connection
            else:
                self.chunked_encoding = True
                lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        elif self._is_http_1_0:
            lines.append(b"connection: keep-alive\r\n")
        head = b"".join(lines)
        assert head.count(b"\n") == len(lines), "a header of ours holds a line break"
        self._head = head + b"\r\n"

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        assert not self.response_complete, "sent after the end"
        if self.scope["method"] == "HEAD":
            body = b""
        elif self.chunked_encoding:
            if body:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            if is_last:
                body += b"0\r\n\r\n"
        if self._head:
            body, self._head = self._head + body, b""
        self.transport.write(body)
        if is_last:
            self.response_complete = True
            self._when_gone = None
            self.message_event.set()
            self.on_response()

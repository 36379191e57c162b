"""The WebSocket edge below the application: uvicorn's protocol, counted while messages arrive, and drained without losses."""

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from inference.gateway.edge import BodiesInFlight

if TYPE_CHECKING:
    from inference.gateway.parts import GatewayParts

CLOSE_TRY_AGAIN = 1013


class EdgeSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn closes open WebSockets when a shutdown begins; ours close themselves, after the answer that runs.

    A client that does not read is cut as on HTTP.
    """

    def __init__(self, *args: Any, parts: "GatewayParts", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parts = parts
        self._arriving, self._arriving_bytes = parts.bodies.open(), 0

    def data_received(self, data: bytes) -> None:
        """A message counts while it arrives, like a body; the application counts it from there on."""
        self._arriving_bytes += len(data)
        try:
            self._arriving.grow_to(self._arriving_bytes)
        except BodiesInFlight:
            self._parts.metrics.refused_by_edge(BodiesInFlight.code)
            self.queue.put_nowait({"type": "websocket.disconnect", "code": CLOSE_TRY_AGAIN})
            self.conn.fail(CLOSE_TRY_AGAIN)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()
            return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arriving.close()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    async def send(self, message: Any) -> None:
        """Raises ClientDisconnected, also for what uvloop and uvicorn raise of a connection that is gone or closing."""
        if not self.writable.is_set():
            try:
                async with asyncio.timeout(self._parts.edge.client_stall_s):
                    await self.writable.wait()
            except TimeoutError:
                self._parts.metrics.client_cut()
                self.transport.abort()
        if self.transport.is_closing():
            raise ClientDisconnected
        try:
            await super().send(message)
        except (OSError, RuntimeError):
            if not (self.close_sent or self.disconnected or self.transport.is_closing()):
                self.transport.abort()
            raise ClientDisconnected from None
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # refused, and said so: uvicorn logs an error otherwise

    def handle_parser_exception(self) -> None:
        """Also of a handshake that cannot be read, after which there is no close frame."""
        if self.conn.close_sent is None:
            self.transport.close()
        else:
            super().handle_parser_exception()

    def send_receive_event_to_app(self) -> None:
        """A message is whole. uvicorn logs a traceback for a text that is not UTF-8."""
        self._arriving.close()
        self._arriving_bytes = 0
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(1007)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

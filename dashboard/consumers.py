"""The sockets of pages: frames with a number each, so that a page knows when it missed one and asks for the whole.

Server: {"type": "whole" | "change", "sequence": n, "state": {...}}; a change's `state` is whole too, its number one more.
        {"type": "beat", "sequence": n} when nothing has changed for a while: the last number again, so that a page knows
        that it is told of everything, and takes a connection that says nothing for lost.
Page:   {"type": "resync"} -> a "whole". Close code 4403: the person does not belong here, or no longer.
"""

import asyncio
import json
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer

from dashboard.live import State, Watch
from dashboard.seats import Seat, seat_of

NO_SEAT = 4403
SEAT_CHECKED_EVERY_S = 5.0
BEAT_S = 5.0
MAX_MESSAGE_BYTES = 1024
watch = Watch()
"""Of this process; it looks only while somebody watches."""


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    watch = watch
    seat: Seat

    async def connect(self) -> None:
        self._state: State | None = None
        self._joined = self.watch
        self._sequence, self._checked_s = 0, asyncio.get_running_loop().time()
        self._sent_s = self._checked_s
        seat = await self._seat_now()
        await self.accept()
        if seat is None:
            await self.close(NO_SEAT)
            return
        self.seat = seat
        self._joined.join(self)

    async def disconnect(self, code: int) -> None:
        self._joined.leave(self)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Anything but a request for the whole is no business of ours."""
        try:
            sent = json.loads(text_data or "") if len(text_data or "") <= MAX_MESSAGE_BYTES else None
        except ValueError:
            sent = None
        if isinstance(sent, dict) and sent.get("type") == "resync" and self._state is not None:
            await self._send("whole", self._state)

    async def tell(self, state: State) -> None:
        """A beat is all that is sent when nothing has changed. Who has logged out is put out here."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._checked_s >= SEAT_CHECKED_EVERY_S:
            self._checked_s = now_s
            seat = await self._seat_now()
            if seat is None:
                await self.put_out()
                return
        if state == self._state:
            if now_s - self._sent_s >= BEAT_S:
                self._sent_s = now_s
                await self.send(json.dumps({"type": "beat", "sequence": self._sequence}))
            return
        kind = "whole" if self._state is None else "change"
        self._state = state
        await self._send(kind, state)

    async def put_out(self) -> None:
        self._joined.leave(self)
        await self.close(NO_SEAT)

    async def _send(self, kind: str, state: dict[str, Any]) -> None:
        self._sequence += 1
        self._sent_s = asyncio.get_running_loop().time()
        await self.send(json.dumps({"type": kind, "sequence": self._sequence, "state": state}))

    async def _seat_now(self) -> Seat | None:
        """Log-in is asked again too: a session that ended has no user left."""
        user, tenant = self.scope["user"], self.scope["url_route"]["kwargs"]["tenant"]
        seat: Seat | None = await database_sync_to_async(_seat_of_session)(self.scope.get("session"), user, tenant)
        return seat


def _seat_of_session(session: Any, user: Any, tenant: str) -> Seat | None:
    if session is not None and session.session_key and not session.exists(session.session_key):
        return None
    if not user.is_authenticated:
        return None
    user.refresh_from_db(fields=["is_active"])
    return seat_of(user, tenant)


class UnknownSocket(AsyncWebsocketConsumer):  # type: ignore[misc]  # Channels has no types
    """There is no socket at this path."""

    async def connect(self) -> None:
        await self.close()

"""What a worker process and its parent say to each other, over a socket pair: msgpack messages behind their length.

The worker says `listening`, `ready` and, once a second, its metrics; the parent says nothing. Either side learns from the
other's end of the socket that it is gone: a worker whose parent is gone drains and ends.
"""

import asyncio
import socket
import struct
from collections.abc import Callable

import msgspec
from prometheus_client import CollectorRegistry

from inference.gateway.worker_metrics import Family, dump

_LENGTH = struct.Struct(">I")
FLUSH_S = 1.0


class Said(msgspec.Struct, frozen=True):
    is_listening: bool = False
    is_ready: bool = False
    metrics: list[Family] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Said).decode


class WorkerLink(asyncio.Protocol):
    """The worker's end; `on_orphaned` is called when the parent has gone."""

    def __init__(self, channel: socket.socket, registry: CollectorRegistry) -> None:
        self._channel, self._registry = channel, registry
        self._transport: asyncio.Transport | None = None
        self._on_orphaned: Callable[[], None] = lambda: None
        self._has_said_ready = False

    async def open(self, on_orphaned: Callable[[], None]) -> None:
        self._on_orphaned = on_orphaned
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_unix_connection(lambda: self, sock=self._channel)
        self._say(Said(is_listening=True))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_orphaned()

    def ready(self) -> None:
        if not self._has_said_ready:
            self._has_said_ready = True
            self._say(Said(is_ready=True))

    def push_metrics(self) -> None:
        """Skipped while the parent has not taken what was said before."""
        if self._transport is not None and not self._transport.get_write_buffer_size():
            self._say(Said(metrics=dump(self._registry)))

    async def close(self) -> None:
        """The last values leave first; the socket stays open until the process ends, which tells the parent the rest."""
        self._on_orphaned = lambda: None
        self._say(Said(metrics=dump(self._registry)))
        deadline_s = asyncio.get_running_loop().time() + FLUSH_S
        while self._transport is not None and self._transport.get_write_buffer_size():
            if asyncio.get_running_loop().time() > deadline_s:
                return
            await asyncio.sleep(0.01)

    def _say(self, said: Said) -> None:
        if self._transport is not None and not self._transport.is_closing():
            data = _encode(said)
            self._transport.write(_LENGTH.pack(len(data)) + data)


class ParentEnd:
    """The parent's end; `read` never blocks."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.channel = channel
        self._data = bytearray()

    def read(self) -> list[Said] | None:
        """What has come since the last time; None when the worker's end is closed and everything was read."""
        is_closed = False
        try:
            while data := self.channel.recv(262_144):
                self._data += data
            is_closed = True
        except BlockingIOError:
            pass
        except ConnectionError:
            is_closed = True
        said = list(self._messages())
        return None if is_closed and not said else said

    def _messages(self) -> "list[Said]":
        messages = []
        while len(self._data) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
            if len(self._data) < end:
                break
            messages.append(_decode(self._data[_LENGTH.size : end]))
            del self._data[:end]
        return messages

    def close(self) -> None:
        self.channel.close()

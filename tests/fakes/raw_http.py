"""A client of one socket that shows the bytes: what SDKs and HTTP libraries hide."""

import asyncio
import json
from typing import Any


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> "RawClient":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(
        self, method: str, path: str, headers: dict[str, str] | list[tuple[str, str]] | None = None, body: bytes = b""
    ) -> None:
        pairs = list(headers.items()) if isinstance(headers, dict) else list(headers or [])
        lines = [f"{method} {path} HTTP/1.1", "host: test", *(f"{name}: {value}" for name, value in pairs)]
        if body:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        self.writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        await self.writer.drain()

    async def head(self, timeout_s: float = 5.0) -> tuple[int, dict[str, str]]:
        """Status and headers of the next response."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), timeout_s)
        status_line, *lines = head.decode("latin-1").split("\r\n")[:-2]
        return int(status_line.split(" ")[1]), {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        """A whole response with a JSON body."""
        status, headers = await self.head()
        body = await asyncio.wait_for(self.reader.readexactly(int(headers["content-length"])), 5.0)
        return status, headers, json.loads(body)

    async def read_until(self, mark: bytes, timeout_s: float = 5.0) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(mark), timeout_s)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    def drop(self) -> None:
        """Leave without a word."""
        self.writer.transport.abort()

"""Closed-loop load: keep-alive connections that each ask again as soon as they have their answer.

    python -m bench.load PORT CONNECTIONS SECONDS PATH BODY_FILE [AUTHORIZATION]

Prints one JSON object: requests, errors, events, TTFT p50 / p99 (ms).
"""

import asyncio
import json
import sys
import time
from pathlib import Path

# Connections begin one after another: an engine's steps would keep streams that began together together for good, and
# TTFT would then be the time to get through all of them.
STAGGER_S = 1.0


# The end of a token's text. An event before it only names the role: some gateways hold it until there is a text, for until
# then another replica can still take over, and nobody reads anything sooner for getting it.
TOKEN = b' token"'


class Load:
    def __init__(self, request: bytes, until_s: float) -> None:
        self.request, self.until_s = request, until_s
        self.requests = self.errors = self.events = 0
        self.ttft_s: list[float] = []

    async def connection(self, port: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < self.until_s:
            started_s = time.monotonic()
            writer.write(self.request)
            head = await reader.readuntil(b"\r\n\r\n")
            self.errors += not head.startswith(b"HTTP/1.1 200")
            first, tail = True, b""
            while not tail.endswith(b"0\r\n\r\n"):
                data = await reader.read(65536)
                if not data:
                    self.errors += 1
                    return
                count = data.count(b"data: {")
                if first and TOKEN in data:
                    self.ttft_s.append(time.monotonic() - started_s)
                    first = False
                self.events += count
                tail = (tail + data)[-5:]
            self.requests += 1
        writer.close()


async def main(port: int, connections: int, duration_s: float, path: str, body: bytes, authorization: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    extra = f"authorization: Bearer {authorization}\r\n" if authorization else ""
    load = Load((head + extra + "\r\n").encode() + body, time.monotonic() + duration_s)
    starts_s = (STAGGER_S * number / connections for number in range(connections))
    await asyncio.gather(*(load.connection(port, after_s) for after_s in starts_s))
    times = sorted(load.ttft_s) or [0.0]
    result = {
        "requests": load.requests,
        "errors": load.errors,
        "events": load.events,
        "ttft_p50_ms": round(times[len(times) // 2] * 1000, 2),
        "ttft_p99_ms": round(times[int(len(times) * 0.99)] * 1000, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    import uvloop

    port, connections, duration_s, path, body_file, *rest = sys.argv[1:]
    uvloop.run(
        main(int(port), int(connections), float(duration_s), path, Path(body_file).read_bytes(), rest[0] if rest else "")
    )

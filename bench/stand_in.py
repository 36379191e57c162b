"""A stand-in for `vllm serve` that costs little: every live stream gets one event a step, as from an engine's batch.

    python -m bench.stand_in PORT EVENTS STEP_MS

GET answers a small JSON; POST streams EVENTS chunks (if the body asks to stream) or answers in one piece.
"""

import asyncio
import json
import sys

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
BASE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "mock"}
PROMPT_TOKENS = 12


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def event(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, "token_ids": None}
    return chunk(b"data: " + json.dumps({**BASE, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n")


def usage(events: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + events, "completion_tokens": events}


class Engine:
    def __init__(self, events: int, step_s: float) -> None:
        self.events, self.step_s = events, step_s
        self.live: dict[Connection, int] = {}
        self.token = event({"content": " token"})
        last = {**BASE, "choices": [], "usage": usage(events)}
        self.end = event({}, "stop") + chunk(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"
        message = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
        self.whole = json.dumps({**BASE, "object": "chat.completion", "choices": [message], "usage": usage(events)}).encode()

    async def run(self) -> None:
        next_s = asyncio.get_running_loop().time()
        while True:
            next_s += self.step_s
            await asyncio.sleep(max(0, next_s - asyncio.get_running_loop().time()))
            for connection, left in list(self.live.items()):
                if left:
                    self.live[connection] = left - 1
                    connection.transport.write(self.token)
                else:
                    del self.live[connection]
                    connection.transport.write(self.end)


class Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, engine: Engine) -> None:
        self.engine, self.buffer = engine, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is no subclass of asyncio.Transport

    def connection_lost(self, _error: Exception | None) -> None:
        self.engine.live.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"post") and json.loads(body).get("stream"):
            self.transport.write(HEAD + event({"role": "assistant", "content": ""}))
            if self.engine.step_s:
                self.engine.live[self] = self.engine.events
            else:
                self.transport.write(self.engine.token * self.engine.events + self.engine.end)
            return
        answer = self.engine.whole if head.startswith(b"post") else b'{"status":"ok"}'
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer)
        )


async def main(port: int, events: int, step_ms: float) -> None:
    engine = Engine(events, step_ms / 1000)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=4096)
    async with server:
        await (engine.run() if step_ms else server.serve_forever())


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))

"""A stand-in for `vllm serve` that costs little: every live stream gets one event a step, as from an engine's batch.

    python -m bench.stand_in PORT [STEP_MS]

GET answers a small JSON (and /v1/models the model `mock`). POST streams `max_tokens` events, or answers in one piece when
the body does not ask to stream. `"seed": 0` in the body asks for all events at once (burst); otherwise one a step. Token
ids are sent when asked (`return_token_ids`), as vLLM does.
"""

import asyncio
import json
import sys
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
BASE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "mock"}
MODELS = {"object": "list", "data": [{"id": "mock", "object": "model", "owned_by": "vllm", "max_model_len": 131072}]}
PROMPT_TOKENS = 12
BURST_SEED = 0


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def event(delta: dict[str, str], finish_reason: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason, **more}
    return chunk(b"data: " + json.dumps({**BASE, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n")


def usage(events: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS + events, "completion_tokens": events}


def end(events: int) -> bytes:
    last = {**BASE, "choices": [], "usage": usage(events)}
    tail = b"data: " + json.dumps(last, separators=(",", ":")).encode() + b"\n\ndata: [DONE]\n\n"
    return event({}, "stop", stop_reason=None) + chunk(tail) + b"0\r\n\r\n"


def whole(events: int) -> bytes:
    message = {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
    answer = {**BASE, "object": "chat.completion", "choices": [message], "usage": usage(events)}
    return json.dumps(answer).encode()


FIRST = event({"role": "assistant", "content": ""})
TOKEN = event({"content": " token"}, token_ids=None)
TOKEN_WITH_ID = event({"content": " token"}, token_ids=[1234])


class Engine:
    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.live: dict[Connection, int] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while True:
            next_s += self.step_s
            await asyncio.sleep(max(0, next_s - loop.time()))
            for connection, left in list(self.live.items()):
                if left:
                    self.live[connection] = left - 1
                    connection.transport.write(connection.token)
                else:
                    del self.live[connection]
                    connection.transport.write(connection.end)


class Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, engine: Engine) -> None:
        self.engine, self.buffer = engine, b""
        self.token = self.end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is no subclass of asyncio.Transport

    def connection_lost(self, _error: Exception | None) -> None:
        self.engine.live.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (head_end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head, start = self.buffer[:head_end].lower(), head_end + 4
            if b"transfer-encoding: chunked" in head:
                body_end = self.buffer.find(b"0\r\n\r\n", start)
                if body_end < 0:
                    return
                body, size = _unchunk(self.buffer[start:body_end]), body_end + 5
            else:
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
                if len(self.buffer) < start + length:
                    return
                body, size = self.buffer[start : start + length], start + length
            self.buffer = self.buffer[size:]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"post"):
            self.send_json(json.dumps(MODELS).encode() if b"/models" in head[:40] else b'{"status":"ok"}')
            return
        asked = json.loads(body)
        events = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
        if not asked.get("stream"):
            self.send_json(whole(events))
            return
        self.token = TOKEN_WITH_ID if asked.get("return_token_ids") else TOKEN
        self.end = end(events)
        if asked.get("seed") == BURST_SEED:
            self.transport.write(HEAD + FIRST + self.token * events + self.end)
        else:
            self.transport.write(HEAD + FIRST)
            self.engine.live[self] = events

    def send_json(self, answer: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
        self.transport.write(head + answer)


def _unchunk(data: bytes) -> bytes:
    parts = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        data = rest[int(size, 16) + 2 :]
    return b"".join(parts)


async def main(port: int, step_ms: float) -> None:
    engine = Engine(step_ms / 1000)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=4096)
    async with server:
        await engine.run()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 20.0))

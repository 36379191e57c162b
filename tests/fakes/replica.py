"""A scripted stand-in for an engine: exact bytes, delays, resets, usage figures, and when its peers closed.

    async with ScriptedReplica() as replica:
        replica.script(streamed(chat_chunks(["Hel", "lo"])))      # used for the next request, then the default again
        ... requests to replica.url ...
        replica.requests[0].body, replica.requests[0].peer_closed.is_set()

A script is a list of steps: bytes are written as they are (each step in a write of its own), a float is a pause in
seconds, an asyncio.Event is waited for, CLOSE closes the connection in order, RESET closes it at once, KEEP leaves it
open for the next request. After the last step the connection is kept.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any


class After(Enum):
    CLOSE = "close"
    RESET = "reset"
    KEEP = "keep"


CLOSE, RESET, KEEP = After.CLOSE, After.RESET, After.KEEP
Step = bytes | float | asyncio.Event | After
Script = Sequence[Step]
Usage = dict[str, Any]


@dataclass
class SeenRequest:
    """What one request looked like, and what became of its connection."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    peer_closed: asyncio.Event = field(default_factory=asyncio.Event)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


# -- what to put into a script


def sse(data: bytes | str | dict[str, Any]) -> bytes:
    """One event with this data."""
    if isinstance(data, dict):
        data = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    if isinstance(data, str):
        data = data.encode()
    return b"data: " + data + b"\n\n"


DONE = b"data: [DONE]\n\n"
USAGE: Usage = {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}


def chat_chunk(delta: dict[str, Any], finish_reason: str | None = None, *, index: int = 0, usage: Usage | None = None) -> bytes:
    chunk: dict[str, Any] = {
        "id": "chatcmpl-upstream",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "upstream-name",
        "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}],
    }
    return sse(chunk if usage is None else {**chunk, "usage": usage})


def text_chunk(text: str, finish_reason: str | None = None, *, index: int = 0, usage: Usage | None = None) -> bytes:
    chunk: dict[str, Any] = {
        "id": "cmpl-upstream",
        "object": "text_completion",
        "created": 1700000000,
        "model": "upstream-name",
        "choices": [{"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}],
    }
    return sse(chunk if usage is None else {**chunk, "usage": usage})


def usage_chunk(usage: Usage = USAGE, *, is_chat: bool = True) -> bytes:
    return sse(
        {
            "id": "chatcmpl-upstream" if is_chat else "cmpl-upstream",
            "object": "chat.completion.chunk" if is_chat else "text_completion",
            "created": 1700000000,
            "model": "upstream-name",
            "choices": [],
            "usage": usage,
        }
    )


def running_usage(completion_tokens: int, prompt_tokens: int = 7) -> Usage:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def chat_events(
    pieces: Sequence[str] = ("Hel", "lo", "!"), *, usage: Usage | None = USAGE, done: Sequence[bytes] = (DONE,)
) -> list[bytes]:
    """As vLLM streams a chat: a role, the pieces (the last with the finish reason), usage, [DONE]."""
    events = [chat_chunk({"role": "assistant", "content": ""}, usage=running_usage(0))]
    for number, piece in enumerate(pieces, start=1):
        reason = "stop" if number == len(pieces) else None
        events.append(chat_chunk({"content": piece}, reason, usage=running_usage(number)))
    return [*events, *([usage_chunk(usage)] if usage else []), *done]


def text_events(pieces: Sequence[str] = ("Hel", "lo", "!"), *, usage: Usage | None = USAGE) -> list[bytes]:
    events = [
        text_chunk(piece, "stop" if number == len(pieces) else None, usage=running_usage(number))
        for number, piece in enumerate(pieces, start=1)
    ]
    return [*events, *([usage_chunk(usage, is_chat=False)] if usage else []), DONE]


EVENT_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_PIECE = b"0\r\n\r\n"


def piece(data: bytes) -> bytes:
    """One chunk of chunked framing."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def streamed(steps: Iterable[Step], *, after: Iterable[Step] = (LAST_PIECE,)) -> list[Step]:
    """An event stream: bytes among the steps are framed, each in a write of its own."""
    return [EVENT_STREAM_HEAD, *(piece(step) if isinstance(step, bytes) else step for step in steps), *after]


def answered(body: bytes | dict[str, Any], status: int = 200, headers: Sequence[str] = ()) -> list[Step]:
    """A JSON answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Scripted", "content-type: application/json", f"content-length: {len(data)}", *headers]
    return ["\r\n".join(lines).encode() + b"\r\n\r\n" + data]


def refused(status: int, message: str = "no", *, kind: str = "BadRequestError", param: str | None = None) -> list[Step]:
    return answered({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


def chat_answer(text: str = "Hello!", usage: Usage = USAGE, **choice: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "tool_calls": []}
    return {
        "id": "chatcmpl-upstream",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "upstream-name",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", **choice}],
        "usage": usage,
    }


# -- the server


class ScriptedReplica:
    """Listens on a free TCP port, or on a Unix socket. `default` answers what has no script of its own."""

    def __init__(self, *, uds: Path | None = None, default: Callable[[SeenRequest], Script] | None = None) -> None:
        self._uds = uds
        self._default = default or default_script
        self._scripts: deque[Script] = deque()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._arrived = asyncio.Condition()
        self._port = 0
        self.requests: list[SeenRequest] = []
        self.num_connections = 0

    @property
    def url(self) -> str:
        return f"unix:{self._uds}" if self._uds else f"http://127.0.0.1:{self._port}"

    def script(self, *scripts: Script) -> None:
        """Scripts for the requests to come, in order."""
        self._scripts.extend(scripts)

    async def wait_for_request(self, count: int = 1, timeout_s: float = 5.0) -> SeenRequest:
        """The `count`-th request, once it has come."""
        async with asyncio.timeout(timeout_s), self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)
        return self.requests[count - 1]

    async def __aenter__(self) -> "ScriptedReplica":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        if self._uds:
            self._server = await asyncio.start_unix_server(self._accept, self._uds)
        else:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut every connection; `start` listens on the same port again."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._server.wait_closed(), 1.0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer, self.num_connections)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        first = b""
        while True:
            seen = await _read_request(first, reader, connection)
            self.requests.append(seen)
            async with self._arrived:
                self._arrived.notify_all()
            script = self._scripts.popleft() if self._scripts else self._default(seen)
            play = asyncio.ensure_future(_play(script, writer))
            # One byte of the next request, or b"" when the peer has closed.
            following = asyncio.ensure_future(reader.read(1))
            try:
                await asyncio.wait({play, following}, return_when=asyncio.FIRST_COMPLETED)
                if not play.done() and following.result() == b"":
                    seen.peer_closed.set()
                    return
                after = await play
                seen.answered.set()
                if after is not After.KEEP:
                    if after is After.RESET:
                        _reset(writer)
                    return
                first = await following
            except ConnectionError:
                seen.peer_closed.set()
                raise
            finally:
                play.cancel()
                following.cancel()
                await asyncio.gather(play, following, return_exceptions=True)
            if not first:
                seen.peer_closed.set()
                return


async def _play(script: Script, writer: asyncio.StreamWriter) -> After:
    for step in script:
        if isinstance(step, After):
            return step
        if isinstance(step, bytes):
            if writer.is_closing():
                raise ConnectionResetError
            writer.write(step)
            await writer.drain()
            await asyncio.sleep(0)
        elif isinstance(step, asyncio.Event):
            await step.wait()
        else:
            await asyncio.sleep(step)
    return After.KEEP


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, not in order."""
    raw: socket.socket = writer.get_extra_info("socket")
    if raw.family != socket.AF_UNIX:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read_request(first: bytes, reader: asyncio.StreamReader, connection: int) -> SeenRequest:
    head = first + await reader.readuntil(b"\r\n\r\n")
    request_line, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = request_line.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return SeenRequest(method=method, path=path, headers=headers, body=body, connection=connection)


def default_script(seen: SeenRequest) -> Script:
    """What a healthy engine says: "Hello!" in three pieces, streamed if asked."""
    if seen.method != "POST":
        return answered({"object": "list", "data": [{"id": "upstream-name", "object": "model"}]})
    is_chat = seen.path.endswith("/chat/completions")
    if seen.json.get("stream"):
        return streamed([b"".join(chat_events() if is_chat else text_events())])
    if is_chat:
        return answered(chat_answer())
    choice = {"index": 0, "text": "Hello!", "logprobs": None, "finish_reason": "stop"}
    head = {"id": "cmpl-upstream", "object": "text_completion", "created": 1700000000, "model": "upstream-name"}
    return answered({**head, "choices": [choice], "usage": USAGE})

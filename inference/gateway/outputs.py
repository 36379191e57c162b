"""The two outputs of a POST: an event stream, or one JSON answer (folded from a stream, or taken whole)."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from inference.gateway.answer import AnswerReader
from inference.gateway.chunks import BadEvent, Chunk, Piece
from inference.gateway.cycle import COMMENT
from inference.gateway.fold import Folder
from inference.gateway.openai_errors import Refusal
from inference.gateway.rate_headers import Headers, rate_headers, rates_of
from inference.policy.decisions import RateView

Send = Callable[[dict[str, Any]], Awaitable[None]]
EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
LAST_EVENT = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
_encode = msgspec.json.Encoder().encode


def encode(answer: Chunk) -> bytes:
    """Raises BadEvent for what an engine can write and JSON cannot hold."""
    try:
        return _encode(answer)
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise BadEvent(f"cannot be written as JSON: {type(error).__name__}") from None


class HttpResponder:
    """Sends one ASGI response, with the request id in its headers."""

    def __init__(
        self,
        send: Send,
        request_id: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
        write_now: Callable[[bytes], bool] = lambda _data: False,
    ) -> None:
        """`headers` are in every answer; `more_headers` is asked when the answer starts. `write_now` as EdgeCycle's."""
        self._send, self._request_id, self._headers, self.write_now = send, request_id, headers, write_now
        self.more_headers: Callable[[], list[tuple[bytes, bytes]]] = list
        self.ask_rates: Callable[[], Awaitable[RateView | None]] | None = None
        """Of whoever has authenticated: asked for an answer in one piece that no decision has told of its limits."""
        self.has_started = False
        self.has_ended = False
        self.status = 0

    def let_go(self) -> None:
        """The request is over: nobody is asked any more."""
        self.more_headers, self.ask_rates = list, None

    async def start(self, status: int, headers: list[tuple[bytes, bytes]], more: Headers | None = None) -> None:
        """`more`: what `more_headers` has said already."""
        self.has_started, self.status = True, status
        more = self.more_headers() if more is None else more
        headers = [*headers, (b"x-request-id", self._request_id.encode()), *self._headers, *more]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, data: bytes, *, more: bool) -> None:
        self.has_ended = not more
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def json(self, status: int, body: bytes, headers: list[tuple[str, str]] | None = None) -> None:
        named = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers or []]
        framing = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        more = self.more_headers()
        if self.ask_rates is not None and not rates_of(more):
            rates = await self.ask_rates()
            more = [*more, *(rate_headers(rates) if rates is not None else ())]
        await self.start(status, [*framing, *named], more)
        await self.body(body, more=False)

    async def comment(self, data: bytes) -> None:
        """Sent unless the answer is over or its client does not read at the moment."""
        await self._send({"type": COMMENT, "body": data})

    async def refuse(self, refusal: Refusal) -> None:
        await self.json(refusal.status, refusal.body(), refusal.all_headers())


class EventStreamOutput:
    takes_whole = False

    def __init__(self, responder: HttpResponder) -> None:
        self._responder = responder
        self.has_started = False

    @property
    def keeps(self) -> bool:
        return self.has_started

    async def keep_alive(self) -> None:
        """The status is settled by this; another replica can still take over, since nothing of an answer was sent."""
        if not self._responder.has_started:
            await self._responder.start(200, EVENT_STREAM_HEADERS)
        await self._responder.comment(KEEP_ALIVE)

    async def show_position(self, position: int, wait_s: float) -> None:
        if not self._responder.has_started:
            await self._responder.start(200, EVENT_STREAM_HEADERS)
        await self._responder.comment(b": queued position=%d estimated_wait_s=%.1f\n\n" % (position, wait_s))

    def restart(self) -> None:
        pass

    def show(self, chunk: Chunk) -> bytes:
        return b"data: " + encode(chunk) + b"\n\n"

    @property
    def write_now(self) -> Callable[[bytes], bool]:
        return self._responder.write_now

    async def send_chunks(self, chunks: list[Piece]) -> None:
        await self._send(b"".join(self._shown(chunks)), more=True)

    def last(self, chunks: list[Piece], reader: AnswerReader) -> list[bytes]:
        usage_chunk = reader.usage_chunk()
        return [*self._shown([*chunks, usage_chunk] if usage_chunk else chunks), LAST_EVENT]

    def _shown(self, chunks: list[Piece]) -> list[bytes]:
        return [chunk if isinstance(chunk, bytes) else self.show(chunk) for chunk in chunks]

    def whole(self, answer: Chunk) -> list[bytes]:
        raise AssertionError("an event stream takes no whole answer")

    async def send_last(self, data: list[bytes]) -> None:
        await self._send(b"".join(data), more=False)

    async def send_error(self, refusal: Refusal) -> None:
        if self._responder.has_started:
            await self._send(b"data: " + refusal.body() + b"\n\n", more=False)
        else:
            await self._responder.refuse(refusal)

    async def _send(self, data: bytes, *, more: bool) -> None:
        self.has_started = True
        if not self._responder.has_started:
            await self._responder.start(200, EVENT_STREAM_HEADERS)
        await self._responder.body(data, more=more)


class JsonOutput:
    """Collects; nothing is sent before the answer is whole, so an attempt can always be made again."""

    takes_whole = True
    keeps = True

    def __init__(self, responder: HttpResponder) -> None:
        self._responder = responder
        self._folder = Folder()

    @property
    def has_started(self) -> bool:
        return self._responder.has_started

    def restart(self) -> None:
        self._folder = Folder()

    write_now = None

    async def show_position(self, position: int, wait_s: float) -> None:
        pass

    def show(self, chunk: Chunk) -> bytes:
        raise AssertionError("what is folded is not shown")

    async def send_chunks(self, chunks: list[Piece]) -> None:
        self._fold(chunks)

    def last(self, chunks: list[Piece], reader: AnswerReader) -> list[bytes]:
        self._fold(chunks)
        return [encode(self._folder.answer(reader.final_usage()))]

    def whole(self, answer: Chunk) -> list[bytes]:
        return [encode(answer)]

    async def send_last(self, data: list[bytes]) -> None:
        await self._responder.json(200, b"".join(data))

    async def send_error(self, refusal: Refusal) -> None:
        await self._responder.refuse(refusal)

    def _fold(self, chunks: list[Piece]) -> None:
        for chunk in chunks:
            assert not isinstance(chunk, bytes), "only what can write now is given bytes"
            self._folder.add(chunk)

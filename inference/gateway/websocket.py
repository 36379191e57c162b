"""WS /v1/generate: requests and answers as messages.

Client: the key in the Authorization header of the handshake, or in its first message:
    {"api_key": "...", "request": {the body of POST /v1/generate}}   later ones: {"request": {...}}
    {...}                     the bare body, where the socket is authenticated already
    {"type": "cancel"}        end the answer that runs
Pages of the site come with a ticket in place of a key, one for each request (ticket_door.py).
Server: the data of each event as one text message, the last of an answer is `[DONE]`; `{"type": "cancelled"}` after a
cancel, also when there was nothing left to cancel; `{"type": "queued", "position": n, "estimated_wait_s": s}` now and then
while the request waits for a replica; `{"type": "limits", "x-ratelimit-limit-requests": "60", ...}` before the first message
of an answer, where there are limits; an error object, followed by a close.

One answer runs at a time; requests may follow one another; the key is checked again for each. Answers are always
streamed. Close codes: 4000 + the HTTP status of the error (4401 for a bad key), 4408 when no request came in time, 1009
for a message that is too large, 1012 when the gateway shuts down. A client that leaves cancels; so does one that sends
anything but a cancel into a running answer, and its socket is closed (4400). What is sent with a good key and is no
request leaves a record (`refused`), as a POST does.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog
from channels.consumer import AsyncConsumer

from headway.errors import HeadwayError
from headway.logs import REQUEST_ID, access, new_request_id
from inference.gateway.answer import AnswerReader
from inference.gateway.chunks import Chunk, Piece
from inference.gateway.consumer import Receive, Send
from inference.gateway.credentials import check_key, find_key, refuse_key_in_url
from inference.gateway.ends import Cut
from inference.gateway.exchange import Exchange
from inference.gateway.fields import SOCKET_MESSAGE
from inference.gateway.json_body import read_object
from inference.gateway.openai_errors import INTERNAL, BadRequest, CredentialRefused, Refusal, UnknownPath, refusal_of
from inference.gateway.outputs import encode
from inference.gateway.parts import GatewayParts
from inference.gateway.rate_headers import Headers, rates_of
from inference.gateway.requests import GenerationRequest, build_request
from inference.gateway.state import Principal
from inference.gateway.ticket_door import TicketDoor
from tenants.access import Action

log = structlog.get_logger(__name__)

ROUTE = "WS /v1/generate"
CLOSE_NORMAL = 1000
CLOSE_RESTARTING = 1012
CLOSE_NO_REQUEST = 4408
CREDENTIAL_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key"})


class SocketOutput:
    takes_whole = False

    def __init__(self, send_text: Callable[[bytes], Any]) -> None:
        self._send_text = send_text
        self.has_started = False
        self.answer_headers: Callable[[], Headers] = list
        """As an HTTP answer would have them; asked once, when the answer starts."""
        self.refusal: Refusal | None = None
        """What the answer ended with, if it was an error."""

    @property
    def keeps(self) -> bool:
        return self.has_started

    def restart(self) -> None:
        pass

    write_now = None

    async def show_position(self, position: int, wait_s: float) -> None:
        said = {"type": "queued", "position": position, "estimated_wait_s": round(wait_s, 1)}
        await self._send_text(msgspec.json.encode(said))

    def show(self, chunk: Chunk) -> bytes:
        raise AssertionError("a socket cannot write at once")

    async def send_chunks(self, chunks: list[Piece]) -> None:
        await self._send_answer(_encoded(chunks))

    def last(self, chunks: list[Piece], reader: AnswerReader) -> list[bytes]:
        usage_chunk = reader.usage_chunk()
        return [*_encoded([*chunks, usage_chunk] if usage_chunk else chunks), b"[DONE]"]

    def whole(self, answer: Chunk) -> list[bytes]:
        raise AssertionError("a socket takes no whole answer")

    async def send_last(self, data: list[bytes]) -> None:
        await self._send_answer(data)

    async def send_error(self, refusal: Refusal) -> None:
        self.refusal = refusal
        await self._send_limits()
        await self._send_text(refusal.body())

    async def _send_answer(self, messages: list[bytes]) -> None:
        await self._send_limits()
        self.has_started = True
        for message in messages:
            await self._send_text(message)

    async def _send_limits(self) -> None:
        if self.has_started:
            return
        limits = {name.decode(): value.decode() for name, value in rates_of(self.answer_headers())}
        if limits:
            await self._send_text(msgspec.json.encode({"type": "limits", **limits}))


def _encoded(chunks: list[Piece]) -> list[bytes]:
    """Chunks only: an output that cannot write at once is given no others."""
    return [chunk if isinstance(chunk, bytes) else encode(chunk) for chunk in chunks]


class _Closed(Exception):
    """The client has left."""


class GenerateSocket(AsyncConsumer):  # type: ignore[misc]  # Channels has no types
    """One socket. A reader task would race with answers, so `_next` is the only place that receives."""

    def __init__(self, *, parts: GatewayParts) -> None:
        self.parts = parts
        # In memory only: checked anew for each request, as a key may be revoked or expire while the socket is open.
        self._key = ""
        self._has_ticket = False
        self._incoming: asyncio.Task[dict[str, Any]] | None = None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.scope, self._receive, self.base_send = scope, receive, send
        self._door = TicketDoor(self.parts.ticket_secret, scope["headers"])
        await receive()  # websocket.connect
        try:
            self._take_key_of_handshake()
        except HeadwayError as error:
            self.parts.metrics.unauthenticated(ROUTE)
            await _deny(send, ROUTE, refusal_of(self.parts.bad_key_error(scope) or error))
            return
        await send({"type": "websocket.accept"})
        drained = asyncio.Event()
        self.parts.on_draining.append(drained.set)
        if self.parts.is_draining:
            drained.set()
        try:
            await self._serve(drained)
        except _Closed:
            pass
        except HeadwayError as error:
            await self._end_with(refusal_of(error))
        except Exception:
            log.exception("request_failed_in_socket")
            await self._end_with(INTERNAL)
        finally:
            self.parts.on_draining.remove(drained.set)
            if self._incoming is not None:
                self._incoming.cancel()

    async def _serve(self, drained: asyncio.Event) -> None:
        while True:
            message = await self._next_or_drain(drained)
            if message is None:
                return
            sent = self._object_of(message)
            if isinstance(sent, dict) and sent.get("type") == "cancel":
                await self._send_text(b'{"type":"cancelled"}')
                continue
            if isinstance(sent, dict) and sent.get("type") == "challenge":
                await self._send_text(self._door.challenge())
                continue
            principal = self._authenticate(sent)
            self.parts.check_journal()
            refusal = await self._answer(principal, sent, len(message))
            if refusal is not None:
                await self._close(4000 + refusal.status)
                return

    async def _next_or_drain(self, drained: asyncio.Event) -> bytes | None:
        """The next message; None when the socket was closed by us."""
        incoming = self._incoming_task()
        draining = asyncio.create_task(drained.wait())
        try:
            await asyncio.wait(
                {incoming, draining}, timeout=self.parts.tunables.socket_idle_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            draining.cancel()
        if incoming.done():
            return self._taken()
        await self._close(CLOSE_RESTARTING if drained.is_set() else CLOSE_NO_REQUEST)
        return None

    async def _answer(self, principal: Principal, sent: dict[str, Any] | HeadwayError, size_bytes: int) -> Refusal | None:
        request_id = new_request_id()
        REQUEST_ID.set(request_id)
        output = SocketOutput(self._send_text)
        trace = self.parts.tracer.request(ROUTE, request_id, self.scope["headers"])
        exchange = Exchange(
            self.parts,
            principal=principal,
            request_id=request_id,
            route=ROUTE,
            output=output,
            trace=trace,
            headers=self.scope["headers"],
        )
        output.answer_headers = exchange.answer_headers
        account = self.parts.bodies.open()

        def read() -> GenerationRequest:
            account.grow_to(size_bytes)
            return self._read(sent, size_bytes, principal)

        if self._has_ticket:  # a page shows the receipt; others find the id in their records
            await self._send_text(msgspec.json.encode({"type": "accepted", "request_id": request_id}))
        work = asyncio.create_task(exchange.run(read))
        try:
            await self._watch(work, exchange)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            account.close()
            output.answer_headers = list  # what refers to itself would be kept until the collector comes by
        return output.refusal

    async def _watch(self, work: "asyncio.Task[None]", exchange: Exchange) -> None:
        """Wait for the answer's end, and for a cancel or a client that leaves before it."""
        await asyncio.wait({work, self._incoming_task()}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return
        # Whatever it was, nobody waits for the rest: the engine is let go first.
        exchange.cut(Cut.CLIENT_GONE)
        await asyncio.wait({work})
        sent = self._object_of(self._taken())
        if isinstance(sent, HeadwayError):
            raise sent
        if sent.get("type") != "cancel":
            raise BadRequest("Another answer was still running on this socket; it was ended. Send one request at a time.")
        await self._send_text(b'{"type":"cancelled"}')

    def _take_key_of_handshake(self) -> None:
        """Raises CredentialRefused, KeyRefused, NotReady."""
        refuse_key_in_url(self.scope["query_string"])
        headers = self.scope["headers"]
        if any(name in CREDENTIAL_HEADERS for name, _ in headers):
            self._key = find_key(headers, b"")
            self._principal_of(self._key)

    def _authenticate(self, sent: dict[str, Any] | HeadwayError) -> Principal:
        """Who asks. A key in a message counts for all that follows on this socket. Raises also what `sent` is, without one."""
        key = sent.get("api_key") if isinstance(sent, dict) else None
        if isinstance(sent, HeadwayError) and not self._key:
            raise sent
        ticket = sent.pop("ticket", None) if isinstance(sent, dict) else None
        try:
            self._has_ticket = ticket is not None
            if ticket is not None:
                return self._principal_of_ticket(ticket)
            if isinstance(key, str):
                self._key = check_key(key.strip().encode("utf-8", "replace"))
            elif not self._key:
                raise CredentialRefused('Send your API key first: {"api_key": "...", "request": {...}}')
            principal = self._principal_of(self._key)
        except HeadwayError:
            self.parts.metrics.unauthenticated(ROUTE)
            self.parts.count_bad_key(self.scope)
            raise
        self.parts.check_key(principal, Action.RUN_INFERENCE, self.scope)
        return principal

    def _object_of(self, message: bytes) -> dict[str, Any] | HeadwayError:
        """The message, or why it cannot be read: who sent it is to be known first."""
        try:
            return read_object(message)
        except HeadwayError as error:
            return error

    def _read(self, sent: dict[str, Any] | HeadwayError, size_bytes: int, principal: Principal) -> GenerationRequest:
        """Raises BadRequest."""
        if isinstance(sent, HeadwayError):
            raise sent
        is_bare = sent.get("api_key") is None and "request" not in sent
        body = sent if is_bare else SOCKET_MESSAGE.take(sent, "")["request"]
        if not isinstance(body, dict):
            raise BadRequest('`request` must be an object: {"request": {"model": ..., "messages": [...]}}', param="request")
        tunables = self.parts.tunables
        default = self.parts.state.facts(principal.tenant_id).default_max_tokens or tunables.default_max_tokens
        return build_request(
            body,
            "/v1/generate",
            size_bytes,
            default_max_tokens=default,
            max_choices=tunables.max_choices,
            always_streams=True,
        )

    def _principal_of(self, key: str) -> Principal:
        self.parts.check_ready()
        return self.parts.state.authenticate(key, now_s=self.parts.clock.now().timestamp())

    def _principal_of_ticket(self, text: object) -> Principal:
        self.parts.check_ready()
        ticket = self._door.take(text, now_s=self.parts.clock.now().timestamp())
        return self.parts.state.member(ticket.tenant_id, ticket.member_id)

    def _incoming_task(self) -> "asyncio.Task[dict[str, Any]]":
        if self._incoming is None:
            self._incoming = asyncio.ensure_future(self._receive())
        return self._incoming

    def _taken(self) -> bytes:
        """The message that has come. Raises _Closed."""
        assert self._incoming is not None
        message, self._incoming = self._incoming.result(), None
        if message["type"] == "websocket.disconnect":
            raise _Closed
        text = message.get("text")
        return text.encode() if text is not None else message.get("bytes") or b""

    async def _send_text(self, data: bytes) -> None:
        try:
            await self.base_send({"type": "websocket.send", "text": data.decode()})
        except OSError:  # uvicorn's ClientDisconnected: the disconnect message follows
            return

    async def _end_with(self, refusal: Refusal) -> None:
        await self._send_text(refusal.body())
        await self._close(4000 + refusal.status)

    async def _close(self, code: int) -> None:
        try:
            await self.base_send({"type": "websocket.close", "code": code})
        except OSError:
            return


class UnknownSocketPath:
    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        await receive()
        await _deny(send, "WS unknown", refusal_of(UnknownPath("There is no WebSocket at this path; it is at /v1/generate.")))


async def _deny(send: Send, route: str, refusal: Refusal) -> None:
    """Answer the handshake with a status and an error object, and leave a line in the access log."""
    REQUEST_ID.set(new_request_id())
    access(__name__, "request_ended", route=route, status=refusal.status)
    body = refusal.body()
    named = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in refusal.all_headers()]
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *named]
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})

"""The base of the gateway's HTTP consumers, over `receive` itself.

Channels' AsyncHttpConsumer collects the body before `handle` runs and does not see a disconnect while it runs: both are
wrong for a gateway that authenticates before it reads and must notice at once when a client leaves.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import structlog
from channels.consumer import AsyncConsumer

from headway.errors import HeadwayError
from headway.logs import REQUEST_ID, access, new_request_id
from inference.gateway.credentials import find_key
from inference.gateway.cycle import EXTENSION, EdgeCycle
from inference.gateway.edge import BodyTooSlow, EncodingRefused, GatewayStopping
from inference.gateway.openai_errors import INTERNAL, BodyTooLarge, refusal_of
from inference.gateway.outputs import HttpResponder
from inference.gateway.parts import GatewayParts
from inference.gateway.state import Principal
from tenants.access import Action

log = structlog.get_logger(__name__)

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
# Probes: several a second.
QUIET_ROUTES = frozenset({"/healthz", "/readyz"})


class ClientLeft(Exception):
    """The client closed its connection."""


class GatewayConsumer(AsyncConsumer):  # type: ignore[misc]  # Channels has no types
    """A subclass answers in `handle`; HeadwayErrors it raises become error objects, anything else a logged 500."""

    def __init__(self, *, parts: GatewayParts, route: str = "", **kwargs: Any) -> None:
        self.parts, self.route, self.kwargs = parts, route, kwargs
        # Then its end is logged where the record is settled.
        self.has_record = False

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.scope, self.receive, self.base_send = scope, receive, send
        self.request_id = new_request_id()
        REQUEST_ID.set(self.request_id)
        self.edge: EdgeCycle = scope["extensions"][EXTENSION]
        cors = self.parts.cors.headers(scope["headers"])
        self.responder = HttpResponder(send, self.request_id, cors, self.edge.write_now)
        self.body_account = self.parts.bodies.open()
        try:
            await self.handle()
        except ClientLeft:
            pass
        except HeadwayError as error:
            await self.responder.refuse(refusal_of(error))
        except Exception:
            log.exception("request_failed_in_consumer", route=self.route)
            if not self.responder.has_started:
                await self.responder.refuse(INTERNAL)
            elif not self.responder.has_ended:
                await self.responder.body(b"data: " + INTERNAL.body() + b"\n\n", more=False)
        finally:
            self.body_account.close()
            if not self.has_record and self.route not in QUIET_ROUTES:
                access(__name__, "request_ended", route=self.route, status=self.responder.status)
            # What refers to itself would be kept until the collector comes by: some 20 KB a request.
            self.responder.let_go()
            scope["extensions"].clear()

    async def handle(self) -> None:
        raise NotImplementedError

    def authenticate(self, action: Action = Action.RUN_INFERENCE) -> Principal:
        """Raises CredentialRefused, KeyRefused, NotReady (no key can be known yet); KeyNotAllowed."""
        self.parts.check_ready()
        try:
            key = find_key(self.scope["headers"], self.scope["query_string"])
            principal = self.parts.state.authenticate(key, now_s=self.parts.clock.now().timestamp())
        except HeadwayError:
            self.parts.metrics.unauthenticated(self.route)
            self.parts.count_bad_key(self.scope)
            raise
        self.responder.ask_rates = lambda: self.parts.dispatcher.rates(principal.tenant_id, principal.key_id, self.model())
        self.parts.check_key(principal, action, self.scope)
        return principal

    def model(self) -> str:
        """That was asked for, as far as that is known."""
        return ""

    def header(self, name: bytes) -> bytes:
        return next((value for header, value in self.scope["headers"] if header == name), b"")

    async def read_body(self) -> bytes:
        """Raises EncodingRefused, BodyTooLarge and BodiesInFlight as soon as it is known; BodyTooSlow, GatewayStopping,
        ClientLeft."""
        encoding = self.header(b"content-encoding").strip().lower()
        if encoding not in (b"", b"identity"):
            raise EncodingRefused("Send the body as it is, without a Content-Encoding.")
        declared = self.header(b"content-length")
        if declared.isdigit():
            self._check_size(int(declared))
        body = self.edge.whole_body()
        if body is not None:
            self._check_size(len(body))
            return body
        try:
            async with asyncio.timeout(self.parts.edge.body_grace_s) as limit:
                with self._hurried_by_drain(limit):
                    return await self._read_pieces(limit)
        except TimeoutError:
            if self.parts.is_draining:
                raise GatewayStopping("This gateway is shutting down. Retry.", retry_after_s=1.0) from None
            raise BodyTooSlow("The body came too slowly. Send it faster.") from None

    @contextlib.contextmanager
    def _hurried_by_drain(self, limit: asyncio.Timeout) -> Iterator[None]:
        """From the start of a drain, a body has `drain_idle_s` to be whole."""

        def hurry() -> None:
            end_s, now_s = limit.when(), asyncio.get_running_loop().time()
            if not limit.expired() and end_s is not None:
                limit.reschedule(min(end_s, now_s + self.parts.edge.drain_idle_s))

        if self.parts.is_draining:
            hurry()
        self.parts.on_draining.append(hurry)
        try:
            yield
        finally:
            self.parts.on_draining.remove(hurry)

    async def _read_pieces(self, limit: asyncio.Timeout) -> bytes:
        edge = self.parts.edge
        end_s = limit.when()
        assert end_s is not None, "a body has a time limit"
        pieces, size = [], 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            pieces.append(message.get("body", b""))
            size += len(pieces[-1])
            self._check_size(size)
            if not message.get("more_body", False):
                return b"".join(pieces)
            if not self.parts.is_draining:
                limit.reschedule(end_s + size / edge.min_body_bytes_per_s)

    def _check_size(self, size_bytes: int) -> None:
        max_bytes = self.parts.tunables.max_body_bytes
        if size_bytes > max_bytes:
            raise BodyTooLarge(f"The body is larger than {max_bytes} bytes.")
        self.body_account.grow_to(size_bytes)

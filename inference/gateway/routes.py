"""The consumers behind the paths of the data plane (which path leads where: app.py)."""

import contextlib
import re
from collections.abc import Iterator

import msgspec

from headway.errors import HeadwayError
from inference.gateway.consumer import ClientLeft, GatewayConsumer
from inference.gateway.ends import Cut
from inference.gateway.exchange import Exchange
from inference.gateway.openai_errors import BadRequest, MethodNotAllowed, UnknownPath, unknown_model
from inference.gateway.openapi import document_bytes
from inference.gateway.outputs import EventStreamOutput, JsonOutput
from inference.gateway.requests import GenerationRequest, read_request
from inference.gateway.state import ModelEntry
from tenants.access import Action

# The last is what `curl -d` says of any body unless told otherwise: taken, if the body is JSON.
JSON_MEDIA_TYPE = re.compile(rb"application/(([\w.-]+\+)?json|x-www-form-urlencoded)", re.IGNORECASE)


class GenerateConsumer(GatewayConsumer):
    """POST /v1/generate, /v1/chat/completions, /v1/completions."""

    _exchange: Exchange | None = None

    async def handle(self) -> None:
        principal = self.authenticate()
        self.parts.check_journal()
        exchange = self._exchange = Exchange(
            self.parts,
            principal=principal,
            request_id=self.request_id,
            route=self.route,
            output=JsonOutput(self.responder),
            trace=self.parts.tracer.request(self.route, self.request_id, self.scope["headers"]),
            headers=self.scope["headers"],
        )
        self.has_record, self.responder.more_headers = True, exchange.answer_headers
        try:
            with self._idempotent(exchange):
                self._body = await self.read_body()
                await self._run(exchange)
        except HeadwayError as error:
            await exchange.refuse(error)
        except ClientLeft:
            exchange.client_left_early()

    def model(self) -> str:
        return self._exchange.record.model if self._exchange is not None else ""

    @contextlib.contextmanager
    def _idempotent(self, exchange: Exchange) -> Iterator[None]:
        """Raises IdempotencyKeyUsed, BadRequest."""
        keys, clock, tenant_id = self.parts.idempotency, self.parts.clock, exchange.principal.tenant_id
        sent = [value for name, value in self.scope["headers"] if name == b"idempotency-key"]
        if not sent:
            yield
            return
        name = keys.take(tenant_id, b"\n".join(sent), self.request_id, now_s=clock.monotonic_s())
        exchange.asking.repeat_key = name
        try:
            yield
        finally:
            keys.settle(tenant_id, name, made_tokens=exchange.record.made_tokens, now_s=clock.monotonic_s())

    async def _run(self, exchange: Exchange) -> None:
        self.edge.on_gone(lambda: exchange.cut(Cut.CLIENT_GONE))
        await exchange.run(lambda: self._read(exchange))

    def _read(self, exchange: Exchange) -> GenerationRequest:
        body, self._body = self._body, b""  # the request may run for minutes: its text need not be held twice
        media_type = self.header(b"content-type").partition(b";")[0].strip()
        if media_type and not JSON_MEDIA_TYPE.fullmatch(media_type):
            raise BadRequest("Send the body as JSON, with the header `content-type: application/json`.")
        tunables = self.parts.tunables
        default = self.parts.state.facts(exchange.principal.tenant_id).default_max_tokens or tunables.default_max_tokens
        request = read_request(body, self.route, default_max_tokens=default, max_choices=tunables.max_choices)
        if request.is_streamed:
            exchange.output = EventStreamOutput(self.responder)
        return request


class ModelsConsumer(GatewayConsumer):
    """GET /v1/models and, with `public_id`, GET /v1/models/{id}."""

    async def handle(self) -> None:
        may_use = self.authenticate().key.allows_model
        public_id: str = self.kwargs.get("public_id", "")
        if not public_id:
            listed = [_model_object(model) for model in self.parts.state.models() if may_use(model.public_id)]
            await self.responder.json(200, msgspec.json.encode({"object": "list", "data": listed}))
            return
        model = self.parts.state.model(public_id)
        if model is None or not may_use(public_id):
            raise unknown_model(public_id)
        await self.responder.json(200, msgspec.json.encode(_model_object(model)))


class ReceiptConsumer(GatewayConsumer):
    """GET /v1/requests/{id}: what became of a request of this tenant."""

    async def handle(self) -> None:
        principal = self.authenticate(Action.VIEW_REQUESTS)
        receipt = await self.parts.receipts.of(principal.tenant_id, self.kwargs["request_id"])
        await self.responder.json(200, msgspec.json.encode(receipt))


def _model_object(model: ModelEntry) -> dict[str, object]:
    return {"id": model.public_id, "object": "model", "created": model.created_s, "owned_by": "headway"}


class OpenApiConsumer(GatewayConsumer):
    """GET /v1/openapi.json: the description of /v1; no key is needed."""

    async def handle(self) -> None:
        await self.responder.json(200, document_bytes(self.parts.tunables.max_choices))


class PreflightConsumer(GatewayConsumer):
    """OPTIONS from a browser, where CORS is on: no key is needed, as browsers send none."""

    async def handle(self) -> None:
        await self.responder.start(204, self.parts.cors.preflight_headers(self.scope["headers"]))
        await self.responder.body(b"", more=False)


class HealthConsumer(GatewayConsumer):
    """GET /healthz: the process answers. GET /readyz: it can serve requests."""

    async def handle(self) -> None:
        reason = "" if self.route == "/healthz" else self._why_not_ready()
        if reason:
            await self.responder.json(503, msgspec.json.encode({"status": "unavailable", "reason": reason}))
        else:
            await self.responder.json(200, b'{"status":"ok"}')

    def _why_not_ready(self) -> str:
        if self.parts.is_draining:
            return "shutting down"
        if not self.parts.journal.is_healthy:
            return "the journal cannot be written"
        return self.parts.why_not_ready()


class WrongMethodConsumer(GatewayConsumer):
    """`allow` names what the path takes."""

    async def handle(self) -> None:
        allow: str = self.kwargs["allow"]
        raise MethodNotAllowed(f"Use {allow} for {self.route}, not {self.scope['method']}.", allow=allow)


class UnknownPathConsumer(GatewayConsumer):
    async def handle(self) -> None:
        raise UnknownPath("There is nothing at this path. The API lives below /v1: see the documentation.")

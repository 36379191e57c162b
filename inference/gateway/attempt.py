"""One dispatch of a request to one replica: ask the engine, relay what it answers, or say how it failed."""

from typing import TYPE_CHECKING

from inference.dispatch.dispatcher import Grant
from inference.gateway.answer import AnswerReader
from inference.gateway.chunks import BadEvent, EngineReported, decode_object, reported_error
from inference.gateway.openai_errors import Refusal, engine_error_kind, engine_refusal, error_status
from inference.gateway.record import DEADLINE, ENGINE_DIED, ENGINE_ERROR
from inference.gateway.relay import relay
from inference.gateway.requests import GenerationRequest, upstream_body
from inference.gateway.resume import Resumed
from inference.gateway.state import ReplicaEntry
from inference.gateway.upstream_connection import (
    ConnectFailed,
    UpstreamClosed,
    UpstreamError,
    UpstreamResponse,
    UpstreamTimeout,
)

if TYPE_CHECKING:
    from inference.gateway.exchange import Exchange

# An engine's 4xx that are about the request; the others (401, 404, ...) say that the replica is not set up right.
CLIENT_FAULTS = frozenset({400, 409, 413, 415, 422})
BUSY = frozenset({429, 503})
MAX_ERROR_BODY_BYTES = 1024 * 1024


class AttemptFailed(Exception):
    """The replica did not answer; another one may, or may go on (resume.py) where something was sent to the client."""

    def __init__(
        self, end_state: str, reason: str, refusal: Refusal, *, blames_replica: bool = False, is_gone: bool = False
    ) -> None:
        """`is_gone`: nobody answers there any more, as after a crash; it may be started again."""
        super().__init__(reason)
        self.end_state, self.reason, self.refusal = end_state, reason, refusal
        self.blames_replica, self.is_gone = blames_replica, is_gone


class EngineRefused(Exception):
    """The engine refused the request: another one would as well."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__("the engine refused the request")
        self.refusal = refusal


async def run_attempt(
    exchange: "Exchange", request: GenerationRequest, grant: Grant, number: int, resumed: Resumed | None = None
) -> None:
    """Returns when the answer was handed over whole and the request is settled. Raises AttemptFailed, EngineRefused.

    `resumed`: what the replica is asked instead, to go on from an attempt that has failed.
    """
    replica = grant.replica
    asked = resumed.request if resumed else request
    reader = exchange.reader = new_reader(exchange, request, resumed, version=replica.version)
    exchange.notes.asks(asked, reader)
    try:
        response = await _ask(exchange, asked, grant, number)
        if response.status != 200:
            await _read_refusal(exchange, response, replica, request.model)
        if "text/event-stream" in response.headers.get("content-type", ""):
            await _take_stream(exchange, response, reader)
        else:
            await _take_whole(exchange, response, reader)
    except EngineReported as error:
        status = error_status(error.error)
        if not exchange.output.has_started and status in CLIENT_FAULTS:
            raise EngineRefused(_refusal(status, error.error, replica, request.model)) from None
        raise _engine_error(status, error.error, replica, request.model) from None
    except BadEvent as error:
        raise AttemptFailed(ENGINE_ERROR, f"bad event: {error}", _failed("The engine's answer could not be read.")) from None
    except UpstreamError as error:
        if isinstance(error, ConnectFailed):
            exchange.notes.untouched()
        raise _connection_failure(error) from None


def new_reader(exchange: "Exchange", request: GenerationRequest, resumed: Resumed | None, *, version: str) -> AnswerReader:
    prefix = "chatcmpl-" if request.api == "chat" else "cmpl-"
    return AnswerReader(
        response_id=prefix + exchange.request_id.removeprefix("req_"),
        public_id=request.model,
        wants_usage=request.wants_usage,
        wants_running_usage=request.wants_running_usage,
        num_choices=request.num_choices,
        max_completion_tokens=request.num_choices * (resumed.request if resumed else request).max_tokens,
        continuation=exchange.continuation,
        splice=resumed.splice if resumed else None,
        before=resumed.before if resumed else None,
        fingerprint=f"fp_{version}" if version else "",
    )


async def _ask(exchange: "Exchange", request: GenerationRequest, grant: Grant, number: int) -> UpstreamResponse:
    pool, replica = exchange.parts.upstream, grant.replica
    body, asks_stream = upstream_body(
        request,
        kind=replica.kind,
        upstream_model=replica.upstream_model,
        cache_salt=exchange.principal.cache_salt,
        engine_priority=grant.decision.engine_priority,
        asks_ids=exchange.continuation is not None,
    )
    headers = [("content-type", "application/json"), ("accept", "text/event-stream" if asks_stream else "application/json")]
    if replica.kind == "vllm":
        headers.append(("x-request-id", f"{exchange.request_id}-{number}"))
        headers += exchange.trace.attempt(number, replica.id)
    exchange.response = None
    exchange.before_dispatch()
    exchange.response = await pool.request(
        replica.url, "POST", request.path, headers, body, headers_s=None if asks_stream else pool.tunables.whole_answer_s
    )
    return exchange.response


async def _take_stream(exchange: "Exchange", response: UpstreamResponse, reader: AnswerReader) -> None:
    tunables = exchange.parts.upstream.tunables
    rest = await relay(
        response, reader, exchange.output, tunables=tunables, on_output=exchange.on_output, on_token=exchange.times.append_now
    )
    last = exchange.output.last(rest, reader)
    exchange.done()
    await exchange.output.send_last(last)


async def _take_whole(exchange: "Exchange", response: UpstreamResponse, reader: AnswerReader) -> None:
    tunables = exchange.parts.upstream.tunables
    body = await response.read_all(tunables.inter_event_s, tunables.max_answer_bytes)
    answer = reader.take_whole(body)
    if not exchange.output.takes_whole:
        raise BadEvent("a stream was asked for and none came")
    exchange.on_output()
    last = exchange.output.whole(answer)
    exchange.done()
    await exchange.output.send_last(last)


async def _read_refusal(exchange: "Exchange", response: UpstreamResponse, replica: ReplicaEntry, public_id: str) -> None:
    """The engine answered with another status than 200. Raises what that means."""
    status = response.status
    if status in CLIENT_FAULTS or status in BUSY:
        exchange.notes.untouched()
    body = await response.read_all(10.0, MAX_ERROR_BODY_BYTES)
    try:
        answer = decode_object(body)
        error = reported_error(answer) or answer
    except BadEvent:
        error = None
    if status in CLIENT_FAULTS:
        raise EngineRefused(_refusal(status, error, replica, public_id))
    raise _engine_error(status, error, replica, public_id)


def _refusal(status: int, error: object, replica: ReplicaEntry, public_id: str) -> Refusal:
    return engine_refusal(status, error, upstream_model=replica.upstream_model, public_id=public_id)


def _engine_error(status: int, error: object, replica: ReplicaEntry, public_id: str) -> AttemptFailed:
    if status in BUSY:
        refusal = Refusal(
            status=503, message="The engine is busy. Retry.", type="server_error", code="engine_busy", retry_after_s=1.0
        )
    else:
        # What it says of its own failure speaks of its insides (paths, memory): no client's business.
        is_about_request = status in CLIENT_FAULTS
        refusal = _failed(_refusal(status, error, replica, public_id).message if is_about_request else "The engine failed.")
    return AttemptFailed(ENGINE_ERROR, f"status {status} {engine_error_kind(error)}".strip(), refusal)


def _connection_failure(error: UpstreamError) -> AttemptFailed:
    match error:
        case ConnectFailed():
            refusal = Refusal(
                status=503,
                message="The engine could not be reached. Retry.",
                type="server_error",
                code="model_unavailable",
                retry_after_s=1.0,
            )
            return AttemptFailed(ENGINE_ERROR, f"connect: {error}", refusal, blames_replica=True, is_gone=True)
        case UpstreamTimeout():
            refusal = Refusal(
                status=504, message="The engine stayed silent for too long.", type="server_error", code="engine_timeout"
            )
            return AttemptFailed(DEADLINE, str(error), refusal, blames_replica=True)
        case UpstreamClosed():
            refusal = _failed("The engine stopped before the answer was whole.", code="engine_died")
            return AttemptFailed(ENGINE_DIED, str(error), refusal, blames_replica=error.before_headers, is_gone=True)
    return AttemptFailed(ENGINE_ERROR, str(error), _failed("The engine failed."))


def _failed(message: str, code: str = "engine_error") -> Refusal:
    return Refusal(status=502, message=message, type="server_error", code=code)

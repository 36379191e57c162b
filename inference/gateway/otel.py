"""OpenTelemetry spans over OTLP/HTTP. Imported only where HEADWAY_OTLP_ENDPOINT is set: the library is heavy."""

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from inference.gateway.tracing import Pairs, RequestTrace, trace_context

_W3C = TraceContextTextMapPropagator()
EXPORT_TIMEOUT_S = 5


class OtelTracer:
    def __init__(self, processor: SpanProcessor, *, gateway: str) -> None:
        resource = Resource.create({"service.name": "headway-gateway", "service.instance.id": gateway})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("headway")

    @classmethod
    def to_endpoint(cls, endpoint: str, *, gateway: str) -> "OtelTracer":
        """`endpoint`: the collector's URL, `/v1/traces` included. Spans leave on a thread; those that cannot are dropped."""
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=EXPORT_TIMEOUT_S)), gateway=gateway)

    def request(self, route: str, request_id: str, headers: Sequence[tuple[bytes, bytes]]) -> RequestTrace:
        parent = _W3C.extract(dict(trace_context(headers)))
        attributes = {"http.route": route, "headway.request_id": request_id}
        return _OtelTrace(self, self._tracer.start_span(route, parent, SpanKind.SERVER, attributes))

    def start_attempt(self, parent: Span, number: int, replica: str) -> Span:
        attributes: dict[str, str | int] = {"headway.attempt": number, "headway.replica": replica}
        return self._tracer.start_span("attempt", set_span_in_context(parent), SpanKind.CLIENT, attributes)

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()


class _OtelTrace:
    def __init__(self, tracer: OtelTracer, span: Span) -> None:
        self._tracer, self._span = tracer, span
        self._attempt: Span | None = None

    def attempt(self, number: int, replica: str) -> Pairs:
        self._attempt = self._tracer.start_attempt(self._span, number, replica)
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(self._attempt))
        return list(carrier.items())

    def attempt_failed(self, reason: str) -> None:
        if self._attempt is not None:
            self._attempt.set_status(StatusCode.ERROR, reason)
            self._attempt.end()
            self._attempt = None

    def end(self, *, end_state: str, status: int, model: str, completion_tokens: int) -> None:
        if self._attempt is not None:
            self._attempt.end()
        self._span.set_attributes(
            {
                "headway.end_state": end_state,
                "http.response.status_code": status,
                "gen_ai.request.model": model,
                "gen_ai.usage.output_tokens": completion_tokens,
            }
        )
        if status >= 500:
            self._span.set_status(StatusCode.ERROR, end_state)
        self._span.end()

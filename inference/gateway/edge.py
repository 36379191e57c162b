"""Limits of the HTTP edge, what is said when one is passed, and the count of all request bodies in memory.

InvalidInput
├── BodyTooSlow           408  send the body faster
└── EncodingRefused       415  send the body as it is
Unavailable
├── BodiesInFlight        503  retry: too much is being uploaded at once
└── GatewayStopping       503  retry: the body was not whole when this gateway shut down
"""

from dataclasses import dataclass

from headway import env
from headway.errors import InvalidInput, Unavailable
from inference.gateway.openai_errors import Refusal

# A connection's read buffer holds as much anyway: bodies up to this size are counted, and never refused for the sum.
SMALL_BODY_BYTES = 64 * 1024


class BodyTooSlow(InvalidInput):
    """Send the body faster; the connection is closed."""

    code = "body_too_slow"
    http_status = 408


class EncodingRefused(InvalidInput):
    """Send the body without a Content-Encoding."""

    code = "unsupported_content_encoding"
    http_status = 415


class BodiesInFlight(Unavailable):
    """Retry after a while; the bodies of all requests together would take too much memory."""

    code = "too_many_bytes_in_flight"


class GatewayStopping(Unavailable):
    """Retry: this gateway shuts down and another one will take the request."""

    code = "gateway_stopping"


@dataclass(frozen=True)
class EdgeTunables:
    max_url_bytes: int = 8192
    """The longest request target taken; longer ones get 414."""
    max_header_bytes: int = 32 * 1024
    """The most that the headers of one request may take together; more gets 431."""
    max_headers: int = 100
    """How many headers one request may have; more gets 431."""
    head_s: float = 10.0
    """How long a client may take to send the head of a request (from connecting, or from its first byte); then 408."""
    body_grace_s: float = 10.0
    """How long a body may take whatever its size; then each `min_body_bytes_per_s` that came buys one second more."""
    min_body_bytes_per_s: int = 16 * 1024
    """The slowest upload taken; slower ones get 408."""
    max_bodies_bytes: int = 64 * 1024 * 1024
    """The most that the bodies of all running requests may take together; beyond it bodies over 64 KiB get 503."""
    max_connections: int = 10_000
    """How many connections one process keeps; a further one is told 503 and closed. Fewer where the process may not open
    twice as many files (a stream takes two)."""
    max_pipelined: int = 16
    """How many requests may wait on one connection behind the one that runs."""
    idle_connection_s: float = 75.0
    """How long an idle connection is kept: longer than load balancers keep theirs (60 s), so that they close first."""
    linger_s: float = 1.0
    """After an answer that came before its request was whole: what still arrives is dropped until for so long nothing has
    (or a body's time and size are over), and then the connection is closed."""
    drain_idle_s: float = 1.0
    """In a drain: how long an idle connection may still bring a request (answered with `connection: close`), and how long a
    body that is not whole may still take; then 503."""
    client_buffer_bytes: int = 256 * 1024
    """How much of an answer waits here for its client before reading from the engine stops; the kernel holds as much."""
    client_stall_s: float = 30.0
    """How long a client may take nothing of what waits for it; then its connection is cut."""
    comment_s: float = 10.0
    """How long a stream may be silent before its client gets a `: keep-alive` comment, and the status is settled."""
    queue_comment_s: float = 1.0
    """How long a stream waits for a replica before its client is told where in the queue it stands, and how often after."""

    @classmethod
    def from_env(cls) -> "EdgeTunables":
        default = cls()
        return cls(
            max_url_bytes=env.whole("HEADWAY_MAX_URL_BYTES", default.max_url_bytes, at_least=256),
            max_header_bytes=env.whole("HEADWAY_MAX_HEADER_BYTES", default.max_header_bytes, at_least=1024),
            max_headers=env.whole("HEADWAY_MAX_HEADERS", default.max_headers, at_least=10),
            head_s=env.seconds("HEADWAY_HEAD_S", default.head_s, at_least=0.1),
            body_grace_s=env.seconds("HEADWAY_BODY_GRACE_S", default.body_grace_s, at_least=0.1),
            min_body_bytes_per_s=env.whole("HEADWAY_MIN_BODY_BYTES_PER_S", default.min_body_bytes_per_s, at_least=1),
            max_bodies_bytes=env.whole("HEADWAY_MAX_BODIES_BYTES", default.max_bodies_bytes, at_least=SMALL_BODY_BYTES),
            max_connections=env.whole("HEADWAY_MAX_CONNECTIONS", default.max_connections, at_least=1),
            max_pipelined=env.whole("HEADWAY_MAX_PIPELINED", default.max_pipelined, at_least=1),
            idle_connection_s=env.seconds("HEADWAY_IDLE_CONNECTION_S", default.idle_connection_s, at_least=0.1),
            linger_s=env.seconds("HEADWAY_LINGER_S", default.linger_s),
            drain_idle_s=env.seconds("HEADWAY_DRAIN_IDLE_S", default.drain_idle_s),
            client_buffer_bytes=env.whole("HEADWAY_CLIENT_BUFFER_BYTES", default.client_buffer_bytes, at_least=4096),
            client_stall_s=env.seconds("HEADWAY_CLIENT_STALL_S", default.client_stall_s, at_least=0.1),
            queue_comment_s=env.seconds("HEADWAY_QUEUE_COMMENT_S", default.queue_comment_s, at_least=0.1),
            comment_s=env.seconds("HEADWAY_STREAM_COMMENT_S", default.comment_s, at_least=0.1),
        )


class BodyBudget:
    """Counts the bytes of all bodies that are held, on the event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.used_bytes = 0

    def open(self) -> "BodyAccount":
        return BodyAccount(self)

    def has_room(self, num_bytes: int) -> bool:
        return self.used_bytes + num_bytes <= self._max_bytes


class BodyAccount:
    """What one request's body takes of the budget, until `close`."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._taken_bytes = 0

    def grow_to(self, size_bytes: int) -> None:
        """Take room for a body of this size. Raises BodiesInFlight, and then takes nothing more."""
        more = size_bytes - self._taken_bytes
        if more <= 0:
            return
        if size_bytes > SMALL_BODY_BYTES and not self._budget.has_room(more):
            raise BodiesInFlight("Too much is being uploaded at the moment. Retry.", retry_after_s=1.0)
        self._budget.used_bytes += more
        self._taken_bytes = size_bytes

    def close(self) -> None:
        self._budget.used_bytes -= self._taken_bytes
        self._taken_bytes = 0


def bad_head(status: int, message: str, code: str) -> Refusal:
    """What a request gets that is refused before there is one."""
    return Refusal(status=status, message=message, type="invalid_request_error", code=code)


BAD_HTTP = bad_head(400, "This is not a valid HTTP request.", "bad_http")
BAD_FRAMING = bad_head(400, "The body's length is not clear: send Content-Length, or `Transfer-Encoding: chunked`.", "bad_http")
BAD_VERSION = bad_head(505, "Speak HTTP/1.1 or HTTP/1.0.", "unsupported_http_version")
BAD_EXPECTATION = bad_head(417, "The only expectation supported is 100-continue.", "unsupported_expectation")
NO_TUNNEL = bad_head(405, "CONNECT is not supported.", "method_not_allowed")
URL_TOO_LONG = bad_head(414, "The URL is too long.", "url_too_long")
HEADERS_TOO_LARGE = bad_head(431, "The headers are too large or too many.", "headers_too_large")
HEAD_TOO_SLOW = bad_head(408, "The request did not come in time.", "request_timeout")
TOO_MANY_CONNECTIONS = Refusal(
    status=503,
    message="This gateway has as many connections as it takes. Retry.",
    type="server_error",
    code="too_many_connections",
    retry_after_s=1.0,
)
TOO_MANY_PIPELINED = bad_head(400, "Too many requests wait on this connection: read answers first.", "too_many_pipelined")

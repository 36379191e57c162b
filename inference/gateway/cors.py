"""Cross-origin requests from browsers, off unless origins are configured."""

import re
from collections.abc import Sequence

from headway.errors import ConfigurationError

Headers = list[tuple[bytes, bytes]]
EXPOSED = (
    b"x-request-id, x-headway-queue-ms, x-headway-overhead-ms, x-headway-version, x-headway-receipt, retry-after, "
    b"x-should-retry, "
    b"x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    b"x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
MAX_AGE_S = b"600"
# Names of headers and commas, as a browser writes them; anything else is not repeated to it.
_REQUESTED = re.compile(rb"[A-Za-z0-9_, -]{1,1024}")
_ORIGIN = re.compile(r"https?://[^/\s?#]+")


class Cors:
    """`origins`: as a browser names them (https://app.example), or "*" for any. Raises ConfigurationError."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigurationError(f"HEADWAY_CORS_ORIGINS: {origin!r} is no origin: write https://app.example")
        self._origins = frozenset(origin.encode("latin-1", "replace") for origin in origins)
        self.is_on = bool(self._origins)

    def headers(self, request: Sequence[tuple[bytes, bytes]]) -> Headers:
        """What every answer to this request carries, errors included."""
        if not self.is_on:
            return []
        if b"*" in self._origins:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", EXPOSED)]
        origin = _value(request, b"origin")
        if origin not in self._origins:
            return [(b"vary", b"origin")]
        allow = [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", EXPOSED)]
        return [*allow, (b"vary", b"origin")]

    def is_preflight(self, method: str, request: Sequence[tuple[bytes, bytes]]) -> bool:
        return self.is_on and method == "OPTIONS" and bool(_value(request, b"access-control-request-method"))

    def preflight_headers(self, request: Sequence[tuple[bytes, bytes]]) -> Headers:
        """Beside `headers`: what the browser may send."""
        asked = _value(request, b"access-control-request-headers")
        allowed = asked if _REQUESTED.fullmatch(asked) else b"authorization, content-type"
        return [
            (b"access-control-allow-methods", b"GET, HEAD, POST, OPTIONS"),
            (b"access-control-allow-headers", allowed),
            (b"access-control-max-age", MAX_AGE_S),
        ]


def _value(headers: Sequence[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")

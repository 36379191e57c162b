"""W3C trace context: taken from the client, passed on to vLLM; spans only where a tracer is configured (otel.py).

A request's spans are one for the request and one for each attempt on a replica. No prompt and no completion text, no key
and no tenant is in them.
"""

import re
from collections.abc import Sequence
from typing import Protocol

Pairs = list[tuple[str, str]]
MAX_STATE_CHARS = 512
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,200})?")


class RequestTrace(Protocol):
    def attempt(self, number: int, replica: str) -> Pairs:
        """A dispatch begins: the headers that tell its engine about the trace."""

    def attempt_failed(self, reason: str) -> None: ...

    def end(self, *, end_state: str, status: int, model: str, completion_tokens: int) -> None: ...


class Tracer(Protocol):
    def request(self, route: str, request_id: str, headers: Sequence[tuple[bytes, bytes]]) -> RequestTrace: ...

    def close(self) -> None:
        """Send what is left; blocks for a few seconds at most."""


class PassedOn:
    """The client's trace context, as it came."""

    def __init__(self, context: Pairs) -> None:
        self._context = context

    def attempt(self, number: int, replica: str) -> Pairs:
        return self._context

    def attempt_failed(self, reason: str) -> None:
        pass

    def end(self, *, end_state: str, status: int, model: str, completion_tokens: int) -> None:
        pass


class NoSpans:
    def request(self, route: str, request_id: str, headers: Sequence[tuple[bytes, bytes]]) -> RequestTrace:
        return PassedOn(trace_context(headers))

    def close(self) -> None:
        pass


def trace_context(headers: Sequence[tuple[bytes, bytes]]) -> Pairs:
    """`traceparent` and `tracestate` where they are well formed; malformed ones count as absent, as W3C has it."""
    parents = [value for name, value in headers if name == b"traceparent"]
    if len(parents) != 1:
        return []
    parent = parents[0].decode("latin-1")
    match = _PARENT.fullmatch(parent)
    if match is None or (match[1] and parent.startswith("00-")):
        return []
    state = ",".join(value.decode("latin-1") for name, value in headers if name == b"tracestate")
    is_good = 0 < len(state) <= MAX_STATE_CHARS and state.isascii() and state.isprintable()
    return [("traceparent", parent), *([("tracestate", state)] if is_good else [])]

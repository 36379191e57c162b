"""Atheris against the reader of requests. Run by tests/fuzz/test_fuzzers.py; by hand: python -m tests.fuzz.fuzz_requests

What must hold for any bytes: BadRequest or a request; a request is small again what it was (reading what is sent to the
engine gives the same fields); nothing that is internal is in it.
"""

import json
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["inference.gateway"]):
    from inference.gateway.fields import CHAT, REFUSED
    from inference.gateway.json_body import read_object
    from inference.gateway.openai_errors import BadRequest
    from inference.gateway.requests import build_request, read_request, upstream_body

from tests.fuzz.values import grown

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/generate")
ADDED = ("priority", "model", "stream", "stream_options", "cache_salt")


NAMES = [
    *(field.name for field in CHAT.fields),
    *[
        "role",
        "content",
        "type",
        "text",
        "name",
        "function",
        "arguments",
        "tool_call_id",
        "parameters",
        "json_schema",
        "schema",
        "include_usage",
        "prompt",
    ],
]
BASES: tuple[dict[str, Any], ...] = (
    {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    {"model": "m", "prompt": "hi"},
)


def body_of(provider: Any) -> bytes:
    """Bytes as they are, or a good request with a few fields that grew."""
    if provider.ConsumeBool():
        rest: bytes = provider.ConsumeBytes(provider.remaining_bytes())
        return rest
    body = dict(BASES[provider.ConsumeIntInRange(0, 1)])
    for _ in range(provider.ConsumeIntInRange(1, 4)):
        body[NAMES[provider.ConsumeIntInRange(0, len(NAMES) - 1)]] = grown(provider, NAMES)
    return json.dumps(body).encode()


def one_input(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    route = ROUTES[provider.ConsumeIntInRange(0, 2)]
    try:
        request = read_request(body_of(provider), route, default_max_tokens=16)
    except BadRequest as error:
        error.message.encode()
        (error.param or "").encode()
        return
    assert 1 <= request.num_choices <= 128
    assert 1 <= request.max_tokens < 2**31
    body, _ = upstream_body(request, kind="vllm", upstream_model="inner", cache_salt="salt", engine_priority=0)
    sent = json.loads(body)
    assert sent["model"] == "inner"
    assert sent.keys() & REFUSED == {"cache_salt", "messages" if request.api == "chat" else "prompt"}
    again = read_object(body)
    for name in ADDED:
        again.pop(name, None)
    same = build_request({**again, "model": request.model}, request.path, len(body), default_max_tokens=16)
    assert same.fields == request.fields, "the engine reads what the gateway has read"


def main() -> None:
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

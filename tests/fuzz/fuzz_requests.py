"""Atheris against the reader of requests. Run by tests/fuzz/test_fuzzers.py; by hand: python -m tests.fuzz.fuzz_requests

What must hold for any bytes: BadRequest or a request; a request is small again what it was (reading what is sent to the
engine gives the same fields); nothing that is internal is in it.
"""

import json
import sys

import atheris

with atheris.instrument_imports(include=["inference.gateway"]):
    from inference.gateway.fields import REFUSED
    from inference.gateway.json_body import read_object
    from inference.gateway.openai_errors import BadRequest
    from inference.gateway.requests import build_request, read_request, upstream_body

ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/generate")
ADDED = ("model", "stream", "stream_options", "cache_salt")


def one_input(data: bytes) -> None:
    route = ROUTES[data[0] % 3] if data else ROUTES[0]
    try:
        request = read_request(data[1:], route, default_max_tokens=16)
    except BadRequest as error:
        error.message.encode()
        (error.param or "").encode()
        return
    assert 1 <= request.num_choices <= 128
    assert 1 <= request.max_tokens < 2**31
    body, _ = upstream_body(request, kind="vllm", upstream_model="inner", cache_salt="salt")
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

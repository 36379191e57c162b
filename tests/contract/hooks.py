"""Hooks of Schemathesis for what a JSON Schema cannot say, or says only of a whole body."""

from typing import Any

import schemathesis

MAX_CHOICES = 16


@schemathesis.hook
def map_headers(_context: schemathesis.HookContext, headers: Any) -> Any:
    """The version that serves, where one is asked for."""
    if not headers or not headers.get("x-headway-version"):
        return headers
    return {**headers, "x-headway-version": "v1"}


@schemathesis.hook
def map_body(_context: schemathesis.HookContext, body: Any) -> Any:
    """The model that is served; prompts times n within its bound; no numbers beyond 64 bits where anything may stand."""
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("model"), str) and 1 <= len(body["model"]) <= 1024:
        body["model"] = "m"
    n, prompt = body.get("n"), body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > MAX_CHOICES and not isinstance(prompt[0], int):
        prompt = body["prompt"] = prompt[:MAX_CHOICES]
    num_prompts = len(prompt) if isinstance(prompt, list) else 1
    if isinstance(n, int | float) and n <= 128 and n * num_prompts > MAX_CHOICES:
        body["n"] = 1
    return {name: _tamed(value) if isinstance(value, dict | list) else value for name, value in body.items()}


def _tamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tamed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_tamed(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(2**63), min(2**63 - 1, value))
    return value

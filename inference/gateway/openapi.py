"""The OpenAPI 3.1 document of /v1, made from fields.py."""

from functools import cache
from typing import Any

import msgspec

from inference.gateway.fields import CHAT, COMPLETIONS, USUAL_MAX_CHOICES

Node = dict[str, Any]

_ERROR: Node = {
    "type": "object",
    "required": ["error"],
    "additionalProperties": False,
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "additionalProperties": False,
            "properties": {
                "message": {"type": "string", "minLength": 1},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "The path of the field at fault: messages[2].content"},
                "code": {"type": ["string", "null"]},
                "detail": {
                    "type": "object",
                    "description": "Of a refusal: reason, limit, kind of retry.",
                },
            },
        }
    },
}
_MODEL: Node = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
    },
}
_MODELS: Node = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}},
}
_RECEIPT: Node = {
    "type": "object",
    "required": ["id", "object", "route", "model", "tier", "end_state", "usage", "timing", "routing", "cost"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "request"},
        "route": {"type": "string"},
        "model": {"type": "string"},
        "version": {"type": "string"},
        "tier": {"type": "string"},
        "end_state": {"type": "string"},
        "finish_reason": {"type": ["string", "null"]},
        "usage": {"type": "object", "description": "prompt_tokens, cached_tokens, completion_tokens, source"},
        "timing": {"type": "object", "description": "queue_ms, ttft_ms, total_ms"},
        "routing": {"type": "object", "description": "replica, reason, attempts, resumes, is_exact, parks"},
        "cost": {"type": "object", "description": "price_version, discount_percent, amount_usd (exact, as text), currency"},
        "started_at": {"type": "string", "format": "date-time"},
        "ended_at": {"type": "string", "format": "date-time"},
    },
}
_ANSWER: Node = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices"],
    "properties": {
        "id": {"type": "string"},
        "object": {"type": "string", "enum": ["chat.completion", "text_completion"]},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "system_fingerprint": {"type": "string", "description": "`fp_` and the version of the model, for versions of ours."},
        "choices": {"type": "array", "minItems": 1, "items": {"type": "object"}},
        "usage": {"type": ["object", "null"]},
    },
}

# Status, what it means and what to do.
ERRORS = {
    400: "The request is at fault: `param` says where.",
    401: "No API key, or not a good one.",
    403: "The key may not be used for that: its scopes, models or addresses do not allow it.",
    404: "No such model, or no such path.",
    405: "This path takes another method: see `allow`.",
    408: "The request came too slowly.",
    409: "The Idempotency-Key was used: the message names the request that holds it.",
    413: "The body is too large.",
    414: "The URL is too long.",
    415: "The body is encoded (`content-encoding`): send it plain.",
    417: "Only the expectation 100-continue is supported.",
    429: "A limit is reached, or too many requests wait: see `retry-after` and `error.detail`.",
    431: "The headers are too large or too many.",
    500: "A fault of ours.",
    502: "The engine failed before the answer began.",
    503: "Nothing serves the model at the moment, or the service is stopping: see `retry-after`.",
    504: "The engine stayed silent for too long.",
}
_ON_GET = (400, 401, 403, 404, 405, 408, 414, 431, 500, 503)

REQUEST_HEADERS = {
    "Idempotency-Key": (
        {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
        "Makes a repeated request a 409 in place of a second answer.",
    ),
    "x-headway-conversation": (
        {"type": "string"},
        "While a model has two versions, one of them serves all requests that say the same here.",
    ),
    "x-headway-version": (
        {"type": "string"},
        "The version that is to serve it: the stable one, or one that your organisation has pinned.",
    ),
    "traceparent": ({"type": "string"}, "W3C trace context: passed on to the engine; one that is malformed is ignored."),
}
RESPONSE_HEADERS = {
    "x-request-id": ("string", "The request's id, as in logs and usage records."),
    "x-headway-queue-ms": ("integer", "How long the request waited for a replica."),
    "x-headway-tier": ("string", "The tier given, where the plan allows no more than that."),
    "x-headway-version": ("string", "The version of the model that serves it, as in `system_fingerprint` and the receipt."),
    "x-ratelimit-limit-requests": ("integer", "Requests a minute of the tightest limit; with -remaining- and -reset-."),
    "x-ratelimit-limit-tokens": ("integer", "Tokens a minute of the tightest limit; with -remaining- and -reset-."),
    "x-headway-overhead-ms": ("number", "Time spent in the gateway before the engine was asked, without the queue."),
}


def _ref(name: str) -> Node:
    return {"$ref": f"#/components/schemas/{name}"}


def _error_responses(*statuses: int) -> Node:
    content = {"application/json": {"schema": _ref("Error")}}
    return {str(status): {"description": ERRORS[status], "content": content, "headers": _headers(1)} for status in statuses}


def _headers(count: int) -> Node:
    return {
        name: {"description": text, "schema": {"type": "string" if kind == "string" else kind}}
        for name, (kind, text) in list(RESPONSE_HEADERS.items())[:count]
    }


def _generation(summary: str, body: str) -> Node:
    parameters = [
        {"name": name, "in": "header", "required": False, "schema": schema, "description": text}
        for name, (schema, text) in REQUEST_HEADERS.items()
    ]
    answer = {
        "description": "The answer: JSON, or with `stream` an event stream that ends with [DONE] or with an error object.",
        "headers": _headers(7),
        "content": {
            "application/json": {"schema": _ref("Answer")},
            "text/event-stream": {},
        },
    }
    return {
        "post": {
            "summary": summary,
            "operationId": body[0].lower() + body[1:],
            "parameters": parameters,
            "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(body)}}},
            "responses": {"200": answer, **_error_responses(*ERRORS)},
        }
    }


def _get(summary: str, operation: str, schema: Node, *, is_public: bool = False, parameters: list[Node] | None = None) -> Node:
    responses = {
        "200": {"description": summary, "headers": _headers(1), "content": {"application/json": {"schema": schema}}},
        **_error_responses(*_ON_GET),
    }
    found: Node = {"summary": summary, "operationId": operation, "responses": responses}
    if parameters:
        found["parameters"] = parameters
    if is_public:
        found["security"] = []
    return {"get": found}


def document(max_choices: int = USUAL_MAX_CHOICES) -> Node:
    """`max_choices`: the most that `n` may be here."""
    model_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    request_id = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headway", "version": "1", "description": "One API for many models. docs/api.md has the prose."},
        "security": [{"key": []}],
        "paths": {
            "/v1/chat/completions": _generation("Complete a chat.", "ChatRequest"),
            "/v1/completions": _generation("Complete a text.", "CompletionRequest"),
            "/v1/generate": _generation("Complete a chat (`messages`) or a text (`prompt`).", "GenerateRequest"),
            "/v1/models": _get("The models.", "listModels", _ref("Models")),
            "/v1/models/{id}": _get("One model.", "getModel", _ref("Model"), parameters=[model_id]),
            "/v1/requests/{id}": _get("What became of a request.", "getRequest", _ref("Receipt"), parameters=[request_id]),
            "/v1/openapi.json": _get("This document.", "getOpenapi", {"type": "object"}, is_public=True),
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "ChatRequest": _bounded(CHAT.schema(), max_choices),
                "CompletionRequest": _bounded(COMPLETIONS.schema(), max_choices),
                "GenerateRequest": {"oneOf": [_ref("ChatRequest"), _ref("CompletionRequest")]},
                "Answer": _ANSWER,
                "Model": _MODEL,
                "Models": _MODELS,
                "Receipt": _RECEIPT,
                "Error": _ERROR,
            },
        },
    }


def _bounded(schema: Node, max_choices: int) -> Node:
    n = {**schema["properties"]["n"], "maximum": max_choices}
    return {**schema, "properties": {**schema["properties"], "n": n}}


@cache
def document_bytes(max_choices: int) -> bytes:
    return msgspec.json.encode(document(max_choices))

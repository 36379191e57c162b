"""The OpenAI error object, which every answer of /v1 that is not a success carries.

    {"error": {"message": str, "type": str, "param": str | null, "code": str | null}}

Errors of ours (HeadwayError and below) and errors that an engine reported both become a `Refusal`, the one form the edges
know. An engine's message names the model as the engine knows it: that name is replaced by the public id.

The edge's own errors:

InvalidInput
├── BodyTooLarge        413  send a smaller body
├── BadRequest          400  fix the request; `param` names the field
│   ├── UnknownParameter     fix the name of the parameter
│   └── UnsupportedParameter leave the parameter out
└── (RequestRefused)    400  inference.errors: fix the request
MethodNotAllowed        405
UnknownPath             404
CredentialRefused       401  send one API key, as Authorization: Bearer
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headway.errors import HeadwayError, InvalidInput, NotFound
from inference.errors import UnknownModel

TYPES_BY_STATUS = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    403: "invalid_request_error",
    404: "invalid_request_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}
MAX_ENGINE_MESSAGE_CHARS = 2000
SHOWN_MODEL_CHARS = 200
REFUSED_BY_ENGINE = "The engine refused the request."
# A flag of the engine's command line, a file of its machine, a traceback: nothing a client can do anything about.
_INTERNAL_WORDS = re.compile(r"(?<![\w-])--[a-zA-Z][\w-]+|(?<![\w.:/])/(?!v1/)[\w.-]+/[\w./-]+|Traceback")
_KIND = re.compile(r"[\w.-]{1,64}")


class BodyTooLarge(InvalidInput):
    """Send a smaller body."""

    code = "request_too_large"
    http_status = 413


class BadRequest(InvalidInput):
    """Fix the request; `param` names the field."""

    code = "invalid_value"


class UnknownParameter(BadRequest):
    """Fix the name of the parameter, or leave it out."""

    code = "unknown_parameter"


class UnsupportedParameter(BadRequest):
    """Leave the parameter out; the message says what to use instead."""

    code = "unsupported_parameter"


class UnknownPath(NotFound):
    """Fix the path."""

    code = "unknown_url"


class MethodNotAllowed(InvalidInput):
    """Use the method that `allow` names."""

    code = "method_not_allowed"
    http_status = 405


class CredentialRefused(HeadwayError):
    """Send one API key as `Authorization: Bearer <key>`."""

    code = "invalid_api_key"
    http_status = 401
    error_type = "invalid_request_error"


@dataclass(frozen=True)
class Refusal:
    """An answer that is an error: its status, its error object and the headers that go with it."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None
    headers: tuple[tuple[str, str], ...] = field(default=())
    detail: dict[str, Any] | None = None
    """What a program may want to know beside: which limit, how it stands, how exact `retry-after` is."""

    def body(self) -> bytes:
        error: dict[str, Any] = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        if self.detail is not None:
            error["detail"] = self.detail
        return msgspec.json.encode({"error": error})

    def all_headers(self) -> list[tuple[str, str]]:
        headers = list(self.headers)
        if self.retry_after_s is not None:
            headers.append(("retry-after", str(max(1, math.ceil(self.retry_after_s)))))
        if self.status == 401:
            headers.append(("www-authenticate", "Bearer"))
        return headers


def refusal_of(error: HeadwayError) -> Refusal:
    """`data` may hold `allow`, or `headers` (pairs of texts), or `detail`."""
    allow, more, detail = error.data.get("allow"), error.data.get("headers", ()), error.data.get("detail")
    assert isinstance(more, list | tuple), "pairs of texts"
    assert detail is None or isinstance(detail, dict)
    return Refusal(
        status=error.http_status,
        message=error.message,
        type=error.error_type,
        code=error.code,
        param=error.param,
        retry_after_s=error.retry_after_s,
        headers=(("allow", str(allow)), *more) if allow else tuple(more),
        detail=detail,
    )


INTERNAL = Refusal(status=500, message="Something went wrong on our side.", type="server_error", code="internal_error")


def unknown_model(name: str) -> UnknownModel:
    shown = name[:SHOWN_MODEL_CHARS]
    return UnknownModel(f"The model {shown!r} does not exist. GET /v1/models lists those that do.", param="model")


def engine_refusal(status: int, error: object, *, upstream_model: str, public_id: str) -> Refusal:
    """What an engine said about the client's request: its own name for the model is replaced, and what speaks of its
    insides (flags, files) is not passed on.

    `error` is the engine's error object, or whatever came in its place.
    """
    fields: dict[str, Any] = error if isinstance(error, dict) else {}
    message = fields.get("message")
    param, code = fields.get("param"), fields.get("code")
    return Refusal(
        status=status,
        message=_public(message if isinstance(message, str) and message else REFUSED_BY_ENGINE, upstream_model, public_id),
        type=TYPES_BY_STATUS.get(status, "invalid_request_error" if status < 500 else "server_error"),
        code=code if isinstance(code, str) else None,
        param=param[:SHOWN_MODEL_CHARS].removeprefix("body.") if isinstance(param, str) else None,
    )


def engine_error_kind(error: object) -> str:
    """The type an engine gave its error, for our log; never its text, which may hold the prompt."""
    kind = error.get("type") if isinstance(error, dict) else None
    return kind if isinstance(kind, str) and _KIND.fullmatch(kind) else ""


def _public(message: str, upstream_model: str, public_id: str) -> str:
    message = message[: 10 * MAX_ENGINE_MESSAGE_CHARS]
    if upstream_model and upstream_model != public_id:
        message = re.sub(rf"(?<![\w./-]){re.escape(upstream_model)}(?![\w/-])", lambda _: public_id, message)
    if _INTERNAL_WORDS.search(message):
        return f"{REFUSED_BY_ENGINE} It asks for what this model is not set up for."
    return message[:MAX_ENGINE_MESSAGE_CHARS]


def error_status(error: object) -> int:
    """The HTTP status that an error object inside a 200 stands for; anything unclear is a 500."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and len(code) == 3 and code.isdecimal():
        code = int(code)
    return code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599 else 500

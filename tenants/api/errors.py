"""One shape for every error: {"error": {"message", "type", "param", "code"}}, as the gateway's `/v1` has it.

HeadwayError
├── KeyRefused 401        send one API key that works, as Authorization: Bearer
├── TooManyBadKeys 429    fix the key; too many requests with bad ones came from this address
├── SessionNeeded 403     log in: a key cannot do that
└── SecondFactorNeeded 403   give a one-time code: this session was opened without one
"""

import math
from typing import Any

import structlog
from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.response import Response

from headway.errors import HeadwayError, Unavailable

log = structlog.get_logger(__name__)

DATABASE_RETRY_S = 2.0


class KeyRefused(HeadwayError):
    """Send one API key that works, as `Authorization: Bearer <key>`."""

    code = "invalid_api_key"
    http_status = 401
    error_type = "invalid_request_error"


class TooManyBadKeys(HeadwayError):
    """Fix the key; too many requests with bad ones came from this address."""

    code = "too_many_bad_keys"
    http_status = 429
    error_type = "rate_limit_error"


class SessionNeeded(HeadwayError):
    """Log in as a person; a key cannot do that."""

    code = "session_needed"
    http_status = 403
    error_type = "invalid_request_error"


class SecondFactorNeeded(HeadwayError):
    """Log in again with a one-time code; your account has a second factor, and this session was opened without it."""

    code = "second_factor_needed"
    http_status = 403
    error_type = "invalid_request_error"


def answer_of(error: Exception, context: dict[str, Any]) -> Response:
    """DRF's exception handler. One that is not foreseen is logged and becomes a 500."""
    if isinstance(error, HeadwayError):
        return _ours(error, context)
    if isinstance(error, Http404):
        return Response(body("There is nothing here.", code="not_found"), status=404)
    if isinstance(error, PermissionDenied):
        return Response(body("This is not allowed.", code="not_allowed"), status=403)
    if isinstance(error, exceptions.APIException):
        return _of_drf(error)
    if isinstance(error, OperationalError | InterfaceError):
        log.error("api_database_away", reason=f"{type(error).__name__}: {error}")
        return _ours(Unavailable("The database is away. Retry.", retry_after_s=DATABASE_RETRY_S), context)
    return _our_fault(error, context, code="internal_error")


def body(message: str, *, code: str | None, kind: str = "invalid_request_error", param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@csrf_exempt  # it does nothing, for nobody
def unknown_path(_request: HttpRequest, **_kwargs: Any) -> JsonResponse:
    return JsonResponse(body("There is nothing at this path; see /api/v1/docs/.", code="unknown_url"), status=404)


def _ours(error: HeadwayError, context: dict[str, Any]) -> Response:
    if error.http_status >= 500 and error.retry_after_s is None:
        return _our_fault(error, context, code=error.code)
    headers = {"www-authenticate": "Bearer"} if error.http_status == 401 else {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    shown = body(error.message, code=error.code, kind=error.error_type, param=error.param)
    return Response(shown, status=error.http_status, headers=headers)


def _our_fault(error: Exception, context: dict[str, Any], *, code: str) -> Response:
    log.error("api_failed", code=code, view=type(context.get("view")).__name__, exc_info=error)
    return Response(body("Something went wrong on our side.", code="internal_error", kind="server_error"), status=500)


def _of_drf(error: exceptions.APIException) -> Response:
    codes = {400: "invalid_value", 401: "not_authenticated", 403: "not_allowed", 404: "not_found", 405: "method_not_allowed"}
    param, message = _first(error.detail)
    headers = {"www-authenticate": "Bearer"} if error.status_code == 401 else {}
    if isinstance(error, exceptions.MethodNotAllowed):
        param = None
    shown = body(message, code=codes.get(error.status_code, str(error.default_code)), param=param)
    return Response(shown, status=error.status_code, headers=headers)


def _first(detail: Any, path: str = "") -> tuple[str | None, str]:
    """The first field that is wrong, and what is wrong with it."""
    if isinstance(detail, dict) and detail:
        name, inner = next(iter(detail.items()))
        if isinstance(name, int):
            return _first(inner, f"{path}[{name}]")
        own = "" if name in {"non_field_errors", "detail"} else str(name)
        return _first(inner, f"{path}.{own}".strip("."))
    if isinstance(detail, list) and detail:
        place = next((index for index, each in enumerate(detail) if each), 0)
        is_nested = isinstance(detail[place], dict | list)
        return _first(detail[place], f"{path}[{place}]" if is_nested else path)
    return path or None, str(detail)

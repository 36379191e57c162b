"""Structured logs: one JSON object a line on stderr, with the request id where there is one.

Never log prompt or completion text, keys, or headers that carry them. Values are named (`log.info("granted",
replica=...)`), so a processor can drop what must not be written.
"""

import contextvars
import logging
import logging.config
import secrets
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import structlog
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

REQUEST_ID: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
# Names under which a value would be a secret or somebody's text.
NEVER_LOGGED = frozenset({"authorization", "api_key", "key", "secret", "prompt", "messages", "completion", "body", "password"})


def new_request_id() -> str:
    return "req_" + secrets.token_hex(12)


def _add_request_id(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    request_id = REQUEST_ID.get()
    if request_id:
        event.setdefault("request_id", request_id)
    return event


def _drop_private(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name in NEVER_LOGGED & event.keys():
        event[name] = "[not logged]"
    return event


# A line for each sweep, every two seconds.
_EVERY_TASK = ("celery.worker.strategy", "celery.app.trace", "celery.beat")

SHARED_PROCESSORS: list[structlog.types.Processor] = [
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    _add_request_id,
    _drop_private,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def configure(config: dict[str, Any]) -> None:
    """Django's LOGGING_CONFIG: everything, ours and the libraries', leaves as JSON lines on stderr."""
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=SHARED_PROCESSORS,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.get("level", "INFO"))
    # Some of them would write headers at DEBUG, and so keys.
    for noisy in (
        "httpx",
        "httpcore",
        "httpx2",
        "httpcore2",
        "websockets",
        "asyncio",
        "daphne",
        "uvicorn.access",
        *_EVERY_TASK,
    ):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *SHARED_PROCESSORS,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


_encode_line = msgspec.json.Encoder().encode


def access(logger: str, event: str, **values: str | int | float | None) -> None:
    """A line as `log.info` writes it, for what ends every request: a tenth of the cost. The names are ours, so none is
    private; logging's handlers do not see it."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {**values, "event": event, "level": "info", "logger": logger, "request_id": REQUEST_ID.get(), "timestamp": now}
    assert not NEVER_LOGGED & line.keys(), "never logged"
    sys.stderr.write(_encode_line(line).decode() + "\n")


class RequestIdMiddleware:
    """Gives each request of the site an id, in the logs and in `x-request-id`."""

    sync_capable = False
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        request_id = new_request_id()
        REQUEST_ID.set(request_id)
        response = await self.get_response(request)
        response["x-request-id"] = request_id
        return response

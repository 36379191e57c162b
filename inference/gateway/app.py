"""The data plane's ASGI application.

Paths are taken as clients write them: doubled and trailing slashes do not matter and are never answered with a redirect,
on which bodies and Authorization headers get lost. HEAD is GET without the body.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

from channels.routing import ProtocolTypeRouter

from inference.gateway.consumer import Receive, Send
from inference.gateway.parts import GatewayParts
from inference.gateway.routes import (
    GenerateConsumer,
    HealthConsumer,
    ModelsConsumer,
    OpenApiConsumer,
    PreflightConsumer,
    ReceiptConsumer,
    UnknownPathConsumer,
    WrongMethodConsumer,
)
from inference.gateway.websocket import GenerateSocket, UnknownSocketPath

Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

GENERATE_PATHS = ("/v1/generate", "/v1/chat/completions", "/v1/completions")
HEALTH_PATHS = ("/healthz", "/readyz")
MODELS_PATH = "/v1/models"
REQUESTS_PATH = "/v1/requests/"
OPENAPI_PATH = "/v1/openapi.json"
_SLASHES = re.compile(r"/{2,}")


def tidy_path(path: str) -> str:
    """One slash where there are several, none at the end."""
    return _SLASHES.sub("/", "/" + path).rstrip("/") or "/"


def build_app(parts: GatewayParts) -> Application:
    def http(scope: dict[str, Any], receive: Receive, send: Send) -> Awaitable[None]:
        return _http_consumer(parts, scope)(scope, receive, send)

    def websocket(scope: dict[str, Any], receive: Receive, send: Send) -> Awaitable[None]:
        is_known = tidy_path(scope["path"]) == "/v1/generate"
        consumer = GenerateSocket(parts=parts) if is_known else UnknownSocketPath()
        return consumer(scope, receive, send)

    return cast(Application, ProtocolTypeRouter({"http": http, "websocket": websocket}))


def _http_consumer(parts: GatewayParts, scope: dict[str, Any]) -> Application:
    path, method = tidy_path(scope["path"]), scope["method"]
    if parts.cors.is_preflight(method, scope["headers"]):
        return PreflightConsumer(parts=parts, route="preflight")
    if path in GENERATE_PATHS:
        if method == "POST":
            return GenerateConsumer(parts=parts, route=path)
        return WrongMethodConsumer(parts=parts, route=path, allow="POST")
    is_models, is_model = path == MODELS_PATH, path.startswith(MODELS_PATH + "/")
    is_receipt = path.startswith(REQUESTS_PATH)
    if not (is_models or is_model or is_receipt or path == OPENAPI_PATH or path in HEALTH_PATHS):
        return UnknownPathConsumer(parts=parts, route="unknown")
    route = MODELS_PATH + "/{id}" if is_model else REQUESTS_PATH + "{id}" if is_receipt else path
    if method not in ("GET", "HEAD"):
        return WrongMethodConsumer(parts=parts, route=route, allow="GET, HEAD")
    if path in HEALTH_PATHS:
        return HealthConsumer(parts=parts, route=path)
    if path == OPENAPI_PATH:
        return OpenApiConsumer(parts=parts, route=path)
    if is_receipt:
        return ReceiptConsumer(parts=parts, route=route, request_id=path.removeprefix(REQUESTS_PATH))
    public_id = path.removeprefix(MODELS_PATH).removeprefix("/")
    return ModelsConsumer(parts=parts, route=route, public_id=public_id)

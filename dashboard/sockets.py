"""The site's WebSockets. Only pages of the site itself may open one."""

from typing import Any
from urllib.parse import urlsplit

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import split_domain_port, validate_host
from django.urls import path

from dashboard.consumers import LiveConsumer, UnknownSocket

_SCHEMES = {"ws": "http", "wss": "https"}


class SameOriginOnly:
    """An origin is a scheme, a host and a port. The site's own: HEADWAY_SITE_URL's, one that is trusted with forms, or, by an
    allowed host, the very one the handshake was sent to (as Django asks of forms).
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        headers = dict(scope["headers"])
        origin, host = (headers.get(name, b"").decode("latin1").lower() for name in (b"origin", b"host"))
        is_own = is_own_origin(origin, scheme=_SCHEMES.get(scope.get("scheme", "ws"), "http"), host=host)
        return await (self.inner if is_own else WebsocketDenier())(scope, receive, send)


def is_own_origin(origin: str, *, scheme: str, host: str) -> bool:
    asked = _origin(origin)
    if asked is None:
        return False
    if asked in {_origin(url) for url in (settings.SITE_URL, *settings.CSRF_TRUSTED_ORIGINS)}:
        return True
    return asked == _origin(f"{scheme}://{host}") and validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS)


def _origin(url: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname and port else None


application = SameOriginOnly(
    AuthMiddlewareStack(
        URLRouter([path("t/<slug:tenant>/live/", LiveConsumer.as_asgi()), path("<path:rest>", UnknownSocket.as_asgi())])
    )
)

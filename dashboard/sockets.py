"""The site's WebSockets. Only pages of the site itself may open one."""

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.urls import path

from dashboard.consumers import LiveConsumer, UnknownSocket

application = AllowedHostsOriginValidator(
    AuthMiddlewareStack(
        URLRouter([path("t/<slug:tenant>/live/", LiveConsumer.as_asgi()), path("<path:rest>", UnknownSocket.as_asgi())])
    )
)

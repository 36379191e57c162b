"""The site's ASGI application (dashboard, admin), served by Daphne. The data plane's is inference/gateway/app.py."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "headway.settings")

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

http = get_asgi_application()  # first: it loads the apps

from dashboard.sockets import application as sockets  # noqa: E402

application = ProtocolTypeRouter({"http": http, "websocket": sockets})

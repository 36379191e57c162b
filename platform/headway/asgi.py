"""The site's ASGI application (dashboard, admin), served by Daphne. The data plane's is inference/gateway/app.py."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "headway.settings")

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

application = ProtocolTypeRouter({"http": get_asgi_application()})

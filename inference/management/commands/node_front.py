import asyncio
import signal
from typing import Any

from django.conf import settings

from headway.certificates import Certificates
from headway.command import HeadwayCommand
from headway.errors import ConfigurationError
from inference.node.front import Front
from inference.node.front_door import FrontDoor
from inference.node.node_files import NodeFiles


class Command(HeadwayCommand):
    help = "Let gateways of other machines reach this node's engines, over TLS with our certificates (HEADWAY_NODE_ADDRESS)."

    def handle(self, **_options: Any) -> None:
        _host, colon, port = settings.NODE_ADDRESS.rpartition(":")
        if not colon or not port.isdigit():
            raise ConfigurationError("HEADWAY_NODE_ADDRESS must be host:port, where gateways of other machines reach this one")
        front = Front(NodeFiles(settings.HOME, settings.NODE_NAME).read_run)
        door = FrontDoor(front, Certificates(settings.HOME.tls), settings.NODE_NAME)
        asyncio.run(_serve(door, settings.NODE_LISTEN_HOST, int(port)))


async def _serve(door: FrontDoor, host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await door.open(host, port)
    await door.run(stop)

import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser
from django.db import InterfaceError, OperationalError, connection

from headway.command import HeadwayCommand
from inference.node.agent import Agent
from inference.node.composition import Launchers, make_tools, tag_of
from inference.node.node_settings import node_settings, zone_name
from inference.node.state_push import StatePush
from inference.services.feed_progress import wait_for_acknowledgement
from inference.services.heartbeats import check_name
from inference.wiring_dispatcher import dispatcher_secret, find_dispatcher


class Command(HeadwayCommand):
    help = "Run the node agent: this machine's engines follow the registry. They live on when it ends (see stop_engines)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--name", default=settings.NODE_NAME, help="this node's name (default: HEADWAY_NODE_NAME, the host name)"
        )

    def handle(self, *, name: str, **_options: Any) -> None:
        tunables = node_settings()
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        launchers = Launchers(tag_of(settings.HOME, name), settings.HOME.logs, is_prefork=tunables.is_prefork)
        tools = make_tools(
            settings.HOME,
            name,
            tunables,
            launchers,
            _all_gateways_know,
            zone=zone_name(settings.ZONE),
            address=settings.NODE_ADDRESS,
        )
        with tools.files.lock(name):
            try:
                agent = Agent(tools)
                _check_name(name, tools.files.agent_id())
                agent.start()
                push = StatePush(agent.loads, find_dispatcher, secret=dispatcher_secret())
                push.start()
                agent.run(stop)
                push.stop()
            finally:
                launchers.close()


def _check_name(name: str, agent: str) -> None:
    """Raises NodeNameTaken. With the database away nobody can say: the agent finds out when it is back."""
    try:
        check_name(node=name, agent=agent)
    except (OperationalError, InterfaceError):
        pass
    finally:
        connection.close()


def _all_gateways_know(change_id: int, timeout_s: float) -> bool:
    """Runs in a job's thread, so the connection is one of its own. With the database away nobody can say: no."""
    try:
        return all(has_applied for _gateway, has_applied in wait_for_acknowledgement(change_id, timeout_s))
    except (OperationalError, InterfaceError):
        return False
    finally:
        connection.close()

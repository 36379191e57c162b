from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from headway.command import HeadwayCommand
from headway.errors import InvalidInput


class Command(HeadwayCommand):
    help = "Serve the API: authenticate, admit, relay, meter. Runs until SIGTERM or SIGINT, then lets requests end."

    def add_arguments(self, parser: CommandParser) -> None:
        host, port, metrics_port = settings.GATEWAY_HOST, settings.GATEWAY_PORT, settings.METRICS_PORT
        parser.add_argument("--host", default=host, help=f"address to listen on (default {host}, HEADWAY_GATEWAY_HOST)")
        parser.add_argument("--port", type=int, default=port, help=f"default {port}, HEADWAY_GATEWAY_PORT")
        parser.add_argument("--processes", type=int, default=1, help="1; several come with a later step")
        parser.add_argument(
            "--metrics-port",
            type=int,
            default=metrics_port,
            help=f"where /metrics answers, 0 for nowhere (default {metrics_port}, HEADWAY_METRICS_PORT)",
        )

    def handle(self, *, host: str, port: int, processes: int, metrics_port: int, **_options: Any) -> None:
        if processes != 1:
            raise InvalidInput("--processes must be 1: several gateway processes come with a later step")
        from inference.wiring import run_gateway  # not at import: `--help` and wrong arguments need none of it

        run_gateway(host=host, port=port, metrics_port=metrics_port)

import sys
from argparse import SUPPRESS
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
        parser.add_argument(
            "--processes",
            type=int,
            default=settings.GATEWAY_PROCESSES,
            help=f"workers behind one socket (default {settings.GATEWAY_PROCESSES}, HEADWAY_GATEWAY_PROCESSES); "
            "SIGHUP renews them one by one",
        )
        parser.add_argument("--worker", help=SUPPRESS)  # how a parent starts one: place/processes/sockets/seconds
        parser.add_argument(
            "--metrics-port",
            type=int,
            default=metrics_port,
            help=f"where /metrics answers, 0 for nowhere (default {metrics_port}, HEADWAY_METRICS_PORT)",
        )

    def handle(self, *, host: str, port: int, processes: int, metrics_port: int, worker: str | None, **_options: Any) -> None:
        if processes < 1:
            raise InvalidInput("--processes must be at least 1")
        from inference import wiring  # not at import: `--help` and wrong arguments need none of it
        from inference.gateway.place import Place

        if worker is not None:
            place, of, listening_fd, channel_fd, ready_s = worker.split("/")
            chosen = Place(index=int(place), processes=int(of))
            wiring.run_worker(
                place=chosen, listening_fd=int(listening_fd), channel_fd=int(channel_fd), ready_within_s=float(ready_s)
            )
        elif processes == 1:
            wiring.run_gateway(host=host, port=port, metrics_port=metrics_port)
        else:
            command = [sys.executable, *sys.orig_argv[1 : sys.orig_argv.index("gateway") + 1]]
            code = wiring.run_gateway_processes(
                host=host, port=port, metrics_port=metrics_port, processes=processes, command=command
            )
            sys.exit(code)

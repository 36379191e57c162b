import sys
from argparse import SUPPRESS
from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand


class Command(HeadwayCommand):
    help = (
        "Decide for all gateways of the installation: limits, queue, routing. One decides; each further one stands by and "
        "takes over when it ends. Runs until SIGTERM or SIGINT."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--metrics-port", type=int, default=0, help="where /metrics answers, 0 for nowhere (default 0)")
        parser.add_argument("--child", help=SUPPRESS)  # how a parent starts one: socket/seconds

    def handle(self, *, metrics_port: int, child: str | None, **_options: Any) -> None:
        from inference import wiring_dispatcher  # not at import: `--help` and wrong arguments need none of it

        channel_fd, patience_s = child.split("/") if child else (None, "0")
        code = wiring_dispatcher.run_dispatcher(
            metrics_port=metrics_port,
            channel_fd=None if channel_fd is None else int(channel_fd),
            patience_s=float(patience_s),
        )
        sys.exit(code)

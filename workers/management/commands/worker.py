from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser

from headway.celery_app import app
from headway.command import HeadwayCommand

LISTENING = {"socket_connect_timeout": 2, "socket_timeout": 5}


class Command(HeadwayCommand):
    help = "Do background work: mails, webhooks, sweeps. Any number may run, on any machine."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--concurrency", type=int, default=4, help="how much at once (default 4)")

    def handle(self, *, concurrency: int, **_options: Any) -> None:
        app.conf.broker_transport_options = {**settings.CELERY_BROKER_TRANSPORT_OPTIONS, **LISTENING}
        # Threads: the work waits for others, and a killed process leaves no children behind.
        app.worker_main(
            [
                "worker",
                "--pool=threads",
                f"--concurrency={concurrency}",
                "--loglevel=INFO",
                "--without-gossip",
                "--without-mingle",
            ]
        )

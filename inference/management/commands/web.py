from typing import Any

from daphne.cli import CommandLineInterface
from django.conf import settings
from django.core.management.base import CommandParser

from headway.command import HeadwayCommand


class Command(HeadwayCommand):
    help = "Serve the site (admin and the control API) with Daphne."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default=settings.SITE_HOST)
        parser.add_argument("--port", type=int, default=settings.SITE_PORT)

    def handle(self, *, host: str, port: int, **_options: Any) -> None:
        self.say(f"site on http://{host}:{port}/")
        CommandLineInterface().run(["-v", "0", "-b", host, "-p", str(port), "headway.asgi:application"])

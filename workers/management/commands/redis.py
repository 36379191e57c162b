import os
import signal
from typing import Any

from django.conf import settings

from headway.command import HeadwayCommand
from headway.errors import ConfigurationError
from headway.redis_server import server_binary, write_config


class Command(HeadwayCommand):
    help = (
        "Run this installation's own Redis-protocol server, in place of this process; with REDIS_URL set: wait, and do nothing."
    )

    def handle(self, **_options: Any) -> None:
        if settings.HAS_OUTSIDE_REDIS:
            self.say("REDIS_URL names a server: none is run here")
            signal.sigwait({signal.SIGTERM, signal.SIGINT})
            return
        try:
            binary = server_binary()
        except FileNotFoundError as error:
            raise ConfigurationError(f"set REDIS_URL, or install one of: {error}") from error
        os.execv(binary, [binary, str(write_config(settings.HOME))])

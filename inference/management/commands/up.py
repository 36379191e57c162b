import io
import signal
import time
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandParser

from headway.command import HeadwayCommand
from headway.supervision import Supervision
from inference.services import demo
from inference.services.readiness import wait_until_ready


class Interrupts:
    """Ctrl-C and `kill` alike raise KeyboardInterrupt. One that some callback swallowed is not forgotten: see `check`."""

    def __init__(self) -> None:
        self._seen = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._seen = True
        raise KeyboardInterrupt

    def check(self) -> None:
        if self._seen:
            raise KeyboardInterrupt


class Command(HeadwayCommand):
    help = "Start everything on this machine with a demo tenant and two small models; `make up` calls it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--attach", action="store_true", help="stay until Ctrl-C, then stop everything")
        parser.add_argument("--within", type=float, default=600.0, help="seconds to wait for the models (default 600)")

    def handle(self, *, attach: bool, within: float, json: bool, **_options: Any) -> None:
        interrupts = Interrupts()
        supervision = Supervision(settings.HOME)
        is_ours = attach  # an `up` that found everything running leaves it running when it is interrupted
        try:
            call_command("migrate", verbosity=0)
            call_command("node_certificate", settings.NODE_NAME, stdout=io.StringIO())
            with supervision.alone():
                if not supervision.is_up():
                    is_ours = True
                    self.say("starting gateway, node agent, site, worker, beat and their Redis-protocol server ...")
                    supervision.start()
                supervision.check_same_ports()
            made = demo.ensure_demo(home=settings.HOME, say=self.say)
            wait_until_ready(models=demo.wanted_models(), key=made.key, within_s=within, say=self.say)
            interrupts.check()
            self.print_result(demo.welcome(made), made.as_dict(), as_json=json)
            while attach:
                time.sleep(3600)
        except KeyboardInterrupt:
            if not is_ours:
                raise SystemExit(130) from None
            self.say("\nstopping everything ...")
            call_command("down")
            raise SystemExit(130) from None

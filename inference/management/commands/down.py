from typing import Any

from django.conf import settings
from django.core.management import call_command

from headway.command import HeadwayCommand
from headway.supervision import Supervision


class Command(HeadwayCommand):
    help = "Stop what `up` started, engines included, and nothing else; `make down` calls it."

    def handle(self, **_options: Any) -> None:
        Supervision(settings.HOME).stop()
        call_command("stop_engines")
        self.say("stopped; what is in HEADWAY_HOME stays")

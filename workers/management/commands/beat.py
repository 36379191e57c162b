from typing import Any

from headway.celery_app import app
from headway.command import HeadwayCommand
from workers.beating import LeadingScheduler


class Command(HeadwayCommand):
    help = "Start what is due, again and again. Any number may run: one leads, the others stand by."

    def handle(self, **_options: Any) -> None:
        app.Beat(scheduler=LeadingScheduler, loglevel="INFO", max_interval=1.0, redirect_stdouts=False).run()

import time
from typing import Any

from django.core.management.base import CommandParser

from headway.command import HeadwayCommand, actor
from inference.fleet_models import RollingRestart
from inference.services.fleet_sweep import look_after_fleet
from inference.services.restarts import cancel_restart, restart_model

LOOK_S = 1.0
FIELDS = ("verdict", "reason", "waiting", "done", "replica", "replaced_by")


class Command(HeadwayCommand):
    help = (
        "Restart all replicas of a model, one after the other, each with a new engine in its place first where a node has "
        "room for two. Waits for the end; exit code 1 unless all were restarted."
    )

    interrupted = "no longer waiting: the restart goes on (--cancel begins no further one)"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="its public id")
        parser.add_argument("--cancel", action="store_true", help="begin no further one of the restart under way")
        parser.add_argument("--no-wait", action="store_true", help="return at once: the sweep goes on by itself")

    def handle(self, *, model: str, cancel: bool, no_wait: bool, json: bool, **_options: Any) -> None:
        begin = cancel_restart if cancel else restart_model
        found = begin(public_id=model, actor=actor())
        while not (no_wait or found.ended_at):
            time.sleep(LOOK_S)
            look_after_fleet()
            found.refresh_from_db()
        self.print_result(text_of(model, found), {name: getattr(found, name) for name in FIELDS}, as_json=json)
        if not (cancel or no_wait) and found.verdict != RollingRestart.Verdict.DONE:
            raise SystemExit(1)


def text_of(model: str, restart: RollingRestart) -> str:
    begun = len(restart.done) + bool(restart.replica)
    reason = f" ({restart.reason})" if restart.reason else ""
    return f"{model}: {restart.verdict}{reason}; {len(restart.done)} of {begun + len(restart.waiting)} restarted"

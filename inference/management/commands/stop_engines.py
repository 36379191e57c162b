import contextlib
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError

from headway.command import HeadwayCommand
from headway.errors import ConfigurationError
from inference.launchers.processes import is_alive
from inference.node.node_files import NodeFiles, node_names
from inference.node.node_settings import node_settings
from inference.node.stopping import stop_all_engines
from inference.services.node import mark_stopped

REASON = "stopped by make down; it starts again with the node agent"
TERM_MARGIN_S = 5.0
LOCK_WAIT_S = 10.0


class Command(HeadwayCommand):
    help = "Stop all engines of this HEADWAY_HOME; the node agent must be stopped first. Prints how many there were."

    def handle(self, *, json: bool, **_options: Any) -> None:
        names = node_names(settings.HOME)
        with contextlib.ExitStack() as locks:
            for name in names:
                locks.enter_context(_locked(name))
            runs = [
                (files, run)
                for files in (NodeFiles(settings.HOME, name) for name in names)
                for run in files.read_runs().values()
            ]
            stopped = sum(is_alive(run.pid, run.start_time) for _files, run in runs)
            stop_all_engines(settings.HOME, graceful_s=node_settings().engine.shutdown_timeout_s + TERM_MARGIN_S)
            for files, run in runs:
                Path(run.socket).unlink(missing_ok=True)
                files.forget_run(run.replica_id)
            try:
                mark_stopped(nodes=names, reason=REASON)
            except (OperationalError, InterfaceError) as error:
                self.say(f"the database does not answer, so the replicas' states stay as they are: {type(error).__name__}")
        self.print_result(f"{stopped} engines stopped", {"stopped": stopped}, as_json=json)


def _locked(name: str) -> contextlib.AbstractContextManager[Any]:
    """An agent that was told to stop needs a moment. Raises ConfigurationError if it goes on."""
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return NodeFiles(settings.HOME, name).lock(name)
        except ConfigurationError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)

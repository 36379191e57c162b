"""Stop every engine of an installation, without an agent (`manage.py stop_engines`, `make down`)."""

import signal
import time

import structlog

from headway.home import Home
from inference.launchers import processes
from inference.launchers.processes import ProcessStat

log = structlog.get_logger(__name__)
POLL_S = 0.1
KILL_LIMIT_S = 30.0


def stop_all_engines(home: Home, *, graceful_s: float) -> None:
    """SIGTERM to every process that carries a tag of this home, `graceful_s` to end, SIGKILL."""
    left = _of(home)
    for number, limit_s in ((signal.SIGTERM, graceful_s), (signal.SIGKILL, KILL_LIMIT_S)):
        for stat in left:
            # An engine's first process ends the others in order; a SIGTERM of their own would cut open streams.
            if number is signal.SIGKILL or stat.pid == stat.session:
                processes.send_signal(stat, number)
        deadline_s = time.monotonic() + limit_s
        while left and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
            left = _of(home)
            if number is signal.SIGTERM and not any(stat.pid == stat.session for stat in left):
                break  # only orphans are left: nothing will end them in order
    if left:
        log.error("engines_do_not_die", pids=[stat.pid for stat in left])


def _of(home: Home) -> list[ProcessStat]:
    return processes.tagged(f"{home.installation_id}/")

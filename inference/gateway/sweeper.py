"""The thread that looks after external replicas in a process that has nothing better to do it with."""

import threading

import structlog
from django.db import DatabaseError, InterfaceError, connection

from headway import env
from headway.clock import Clock
from inference.services.external import ExternalTunables, probe_external, sweep_external

log = structlog.get_logger(__name__)


def external_tunables_from_env() -> ExternalTunables:
    default = ExternalTunables()
    return ExternalTunables(
        connect_timeout_s=env.seconds("HEADWAY_PROBE_CONNECT_TIMEOUT_S", default.connect_timeout_s, at_least=0.1),
        answer_timeout_s=env.seconds("HEADWAY_PROBE_ANSWER_TIMEOUT_S", default.answer_timeout_s, at_least=0.1),
        retry_s=env.seconds("HEADWAY_PROBE_RETRY_S", default.retry_s, at_least=0.1),
        recheck_s=env.seconds("HEADWAY_PROBE_RECHECK_S", default.recheck_s, at_least=0.1),
        max_failures=env.whole("HEADWAY_PROBE_MAX_FAILURES", default.max_failures, at_least=1),
    )


class ExternalSweeper:
    """Sweeps every `retry_s`; with several processes sweeping, each replica is probed by one of them at a time."""

    def __init__(self, tunables: ExternalTunables, clock: Clock) -> None:
        self._tunables = tunables
        self._clock = clock
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="external-sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """A probe that is under way is not waited for: the thread ends with the process."""
        self._is_stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._is_stopping.wait(self._tunables.retry_s):
                self._sweep()
        finally:
            connection.close()

    def _sweep(self) -> None:
        try:
            sweep_external(
                self._clock.now(),
                probe=lambda replica: probe_external(replica, self._tunables),
                tunables=self._tunables,
            )
        except (DatabaseError, InterfaceError):
            connection.close()  # it is away: replicas keep their states, and the feed's thread says so in the log
        except Exception:
            # The thread's boundary: without it no external replica would be looked after any more.
            log.exception("external_sweep_failed")
            connection.close()

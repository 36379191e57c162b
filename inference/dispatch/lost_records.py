"""Writes the records of lost gateways into the ledger, on a thread, once their journals have had time to say better.

A gateway's journal is drained by any process that finds it ownerless, within seconds. So what its dispatcher knows waits
for `wait_s`, and is written then whether the journal came or not: the ledger takes a request once, and lets what knows
more take the place of what says `gateway_lost` (billing.services.ledger), in whatever order they come. A gateway that
comes back in time has lost nothing: what was kept of it is dropped.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog
from django.db import connection

from billing.services.ledger import UsageDraft
from inference.gateway.drain import LedgerAway, LedgerWriter

log = structlog.get_logger(__name__)

RETRY_S = 1.0


class RecordKeeper(Protocol):
    def keep(self, gateway: str, drafts: Sequence[UsageDraft], on_written: Callable[[], None]) -> None:
        """Write them in a while; `on_written` is called on another thread."""

    def came_back(self, gateway: str) -> None:
        """Nothing of it need be written."""


class NoRecords:
    """Where there is no ledger: tests of the brain alone."""

    def keep(self, gateway: str, drafts: Sequence[UsageDraft], on_written: Callable[[], None]) -> None:
        pass

    def came_back(self, gateway: str) -> None:
        pass


class LostRecords:
    """`keep` and `came_back` may be called from any thread."""

    def __init__(
        self, writer: LedgerWriter, *, wait_s: float, now_s: Callable[[], float] = time.monotonic, retry_s: float = RETRY_S
    ) -> None:
        self._writer, self._wait_s, self._now_s, self._retry_s = writer, wait_s, now_s, retry_s
        self._kept: dict[str, tuple[float, list[UsageDraft], Callable[[], None]]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="lost-records", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """What is kept is written now; what the ledger does not take then is left to the journals."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def keep(self, gateway: str, drafts: Sequence[UsageDraft], on_written: Callable[[], None]) -> None:
        if drafts:
            with self._lock:
                self._kept[gateway] = (self._now_s() + self._wait_s, list(drafts), on_written)
            self._wake.set()

    def came_back(self, gateway: str) -> None:
        with self._lock:
            self._kept.pop(gateway, None)

    def write_due(self) -> float | None:
        """Write what is due. How long until the next is; None: there is none. Raises LedgerAway."""
        with self._lock:
            kept = list(self._kept.items())
        for gateway, (due_s, drafts, on_written) in kept:
            if due_s > self._now_s() and not self._is_stopping:
                continue
            self._writer.write(drafts)
            with self._lock:
                was_wanted = self._kept.pop(gateway, None) is not None
            log.info("lost_gateway_settled", gateway=gateway, records=len(drafts))
            if was_wanted:
                on_written()
        with self._lock:
            return min((max(0.0, due_s - self._now_s()) for due_s, _, _ in self._kept.values()), default=None)

    def _run(self) -> None:
        pause_s: float | None = None
        try:
            while not self._is_stopping:
                self._wake.wait(pause_s)
                self._wake.clear()
                pause_s = self._round()
            self._round()
        finally:
            connection.close()

    def _round(self) -> float | None:
        try:
            return self.write_due()
        except LedgerAway as error:
            log.warning("lost_records_wait", reason=str(error))
        except Exception:
            # The thread's boundary: without it no lost gateway would be settled any more.
            log.exception("lost_records_failed")
        return self._retry_s

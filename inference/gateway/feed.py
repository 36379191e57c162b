"""The thread that keeps the control state up with the database: four looks a second, and none on the event loop.

Start: the snapshot file if there is one, then what the database has since; without a snapshot, everything. With the
database away a snapshot is enough to serve from; with neither the gateway is not ready, and the thread keeps trying.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import structlog
from django.db import DatabaseError, InterfaceError, connection

from headway import env
from headway.clock import Clock
from inference.gateway.place import Place
from inference.gateway.snapshot import Anchor, Snapshot, load_snapshot, save_snapshot
from inference.gateway.state import Change, ControlState
from inference.models import ControlChange
from inference.services import control, feed_progress

log = structlog.get_logger(__name__)

_FIRST_COMPACTION_S = 60.0


@dataclass(frozen=True, slots=True)
class FeedTunables:
    poll_s: float = 0.25
    """How often the database is asked for changes."""
    max_backoff_s: float = 2.0
    """The longest pause between attempts while it is away."""
    heartbeat_s: float = 2.0
    """How often a gateway says that it lives and how far it is, when nothing changes."""
    snapshot_s: float = 1.0
    """The shortest time between two snapshots."""
    compaction_s: float = 3600.0
    """How often rows that newer ones replace are deleted."""
    keep_s: float = 86_400.0
    """How long such rows are kept."""
    rows_a_poll: int = 1000
    """How many rows are read at once."""

    @classmethod
    def from_env(cls) -> "FeedTunables":
        default = cls()
        return cls(
            poll_s=env.seconds("HEADWAY_FEED_POLL_S", default.poll_s, at_least=0.01),
            max_backoff_s=env.seconds("HEADWAY_FEED_MAX_BACKOFF_S", default.max_backoff_s, at_least=0.1),
            heartbeat_s=env.seconds("HEADWAY_FEED_HEARTBEAT_S", default.heartbeat_s, at_least=0.1),
            snapshot_s=env.seconds("HEADWAY_SNAPSHOT_INTERVAL_S", default.snapshot_s),
            compaction_s=env.seconds("HEADWAY_FEED_COMPACTION_S", default.compaction_s, at_least=1.0),
            keep_s=env.seconds("HEADWAY_FEED_KEEP_S", default.keep_s, at_least=60.0),
        )


class Feed:
    """`start` and `stop` it; `is_ready`, `why_not_ready` and `age_s` may be asked from any thread."""

    def __init__(
        self,
        state: ControlState,
        *,
        gateway: str,
        snapshot_path: Path,
        tunables: FeedTunables,
        clock: Clock,
        place: Place | None = None,
        errand: Callable[[bool], None] = lambda is_database_there: None,
    ) -> None:
        """`errand`: what else needs the database, after every round; told whether it is there. It is quick."""
        self._errand = errand
        self._state = state
        self._place = place or Place()
        self._gateway = gateway
        self._path = snapshot_path
        self._tunables = tunables
        self._clock = clock
        self._is_stopping = threading.Event()
        self._is_ready = threading.Event()
        self._is_away = False
        self._anchor: Anchor | None = None  # None: nothing was ever loaded
        self._is_checked = False  # this connection's database is the one the anchor is of
        self._acknowledged_id = -1
        self._is_unsaved = False
        now_s = clock.monotonic_s()
        self._polled_s = now_s
        self._next_heartbeat_s = now_s
        self._next_snapshot_s = now_s
        self._next_compaction_s = now_s + _FIRST_COMPACTION_S
        self._thread = threading.Thread(target=self._run, name="control-feed", daemon=True)

    @property
    def is_ready(self) -> bool:
        return self._is_ready.is_set()

    def why_not_ready(self) -> str:
        """Empty when it is ready."""
        if self.is_ready:
            return ""
        return "the database is away and there is no snapshot" if self._is_away else "loading the control state"

    def wait_ready(self, timeout_s: float) -> bool:
        return self._is_ready.wait(timeout_s)

    def age_s(self) -> float:
        """Seconds since the database was last read (since the start, if it never was)."""
        return max(0.0, self._clock.monotonic_s() - self._polled_s)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Sign off and end; blocks for up to `timeout_s`."""
        self._is_stopping.set()
        self._thread.join(timeout_s)

    # The thread

    def _run(self) -> None:
        pause_s = self._tunables.poll_s
        try:
            self._survive(self._load_snapshot)
            while not self._is_stopping.is_set():
                is_fine = self._survive(self._round)
                self._save_snapshot()
                if is_fine:
                    is_fine = self._survive(partial(self._errand, True))
                else:
                    self._errand(False)
                pause_s = self._tunables.poll_s if is_fine else min(pause_s * 2, self._tunables.max_backoff_s)
                self._is_stopping.wait(pause_s)
            self._save_snapshot(at_once=True)
            self._survive(lambda: feed_progress.forget_gateway(gateway=self._gateway))
        finally:
            connection.close()

    def _survive(self, step: Callable[[], None]) -> bool:
        """Run a step; false when the database is away. Whatever happens, the thread lives and the gateway serves on."""
        try:
            step()
        except (DatabaseError, InterfaceError) as error:
            if not self._is_away:
                log.warning("feed_database_away", reason=f"{type(error).__name__}: {error}")
        except Exception:
            # The thread's boundary: without it a revoked key would work until the next restart.
            log.exception("feed_failed")
        else:
            if self._is_away:
                log.info("feed_database_back")
            self._is_away = False
            return True
        self._is_away = True
        self._is_checked = False
        if self._anchor is not None:
            self._is_ready.set()  # what the snapshot says is the best there is
        connection.close()
        return False

    def _round(self) -> None:
        now_s = self._clock.monotonic_s()
        is_heartbeat_due = now_s >= self._next_heartbeat_s
        if is_heartbeat_due or not self._is_checked:
            self._check_anchor()
        self._poll()
        self._polled_s = self._clock.monotonic_s()
        if is_heartbeat_due or self._state.applied_change_id != self._acknowledged_id:
            self._acknowledge(now_s)
        self._is_ready.set()  # after the row that says we are here: who waits for all gateways waits for this one too
        if now_s >= self._next_compaction_s:
            self._next_compaction_s = now_s + self._tunables.compaction_s
            self._compact()

    def _compact(self) -> None:
        before = self._clock.now() - timedelta(seconds=self._tunables.keep_s)
        num_rows = control.compact_feed(older_than=before)
        num_gateways = feed_progress.forget_dead_gateways(not_seen_since=before)
        log.info("feed_compacted", rows=num_rows, dead_gateways=num_gateways)

    def _check_anchor(self) -> None:
        """Load everything if nothing is loaded, or if the row we stopped at is not there: then it is another database."""
        anchor = self._anchor
        is_same = anchor is not None and (
            anchor.id == 0 or ControlChange.objects.filter(id=anchor.id, kind=anchor.kind, key=anchor.key).exists()
        )
        if not is_same:
            if anchor is not None:
                log.warning("feed_reloaded", reason="the database does not have the row last applied", change_id=anchor.id)
            self._reload()
        self._is_checked = True

    def _reload(self) -> None:
        rows = [Change(*row) for row in control.newest_rows()]
        self._state.reload(rows)
        self._applied(rows)
        if not rows:
            self._anchor = Anchor(0, "", "")
            self._is_unsaved = True

    def _poll(self) -> None:
        """Apply until nothing is left."""
        limit = self._tunables.rows_a_poll
        while control.has_rows_after(self._state.applied_change_id):
            rows = [Change(*row) for row in control.rows_after(self._state.applied_change_id, limit=limit)]
            self._state.apply(rows)
            self._applied(rows)
            if len(rows) < limit:
                return

    def _applied(self, rows: list[Change]) -> None:
        if rows:
            last = rows[-1]
            self._anchor = Anchor(last.id, last.kind, last.key)
            self._is_unsaved = True

    def _acknowledge(self, now_s: float) -> None:
        applied = self._state.applied_change_id
        feed_progress.acknowledge(
            gateway=self._gateway,
            applied_change_id=applied,
            now=self._clock.now(),
            process=self._place.index + 1,
            processes=self._place.processes,
        )
        self._acknowledged_id = applied
        self._next_heartbeat_s = now_s + self._tunables.heartbeat_s

    # The snapshot

    def _load_snapshot(self) -> None:
        snapshot = load_snapshot(self._path)
        if snapshot is None:
            return
        self._state.reload(snapshot.rows)
        self._state.applied_change_id = snapshot.anchor.id
        self._anchor = snapshot.anchor
        log.info("snapshot_loaded", change_id=snapshot.anchor.id, objects=len(snapshot.rows))

    def _save_snapshot(self, *, at_once: bool = False) -> None:
        now_s = self._clock.monotonic_s()
        if not self._is_unsaved or self._anchor is None or (now_s < self._next_snapshot_s and not at_once):
            return
        self._next_snapshot_s = now_s + self._tunables.snapshot_s
        try:
            save_snapshot(self._path, Snapshot(anchor=self._anchor, rows=self._state.rows()))
        except OSError as error:
            log.warning("snapshot_not_saved", file=str(self._path), reason=error.strerror)
            return
        self._is_unsaved = False

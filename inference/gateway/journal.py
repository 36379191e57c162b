"""One durable record for every request: on disk before the client has its last event, later in the ledger.

`open` and `close` are called on the event loop and do one write of a few hundred bytes, which lands in the kernel's
memory and so survives the death of this process. A thread calls fsync soon after (for the death of the machine), moves
to a new segment when one is long enough, and carries the records of requests that are still open into it; so an old
segment can go as soon as the ledger has its final records. The drainer (drain.py) takes them there.
"""

import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from billing.services.ledger import UsageDraft
from headway import env
from headway.errors import ConfigurationError, Unavailable
from inference.gateway.drain import Commit, Drainer, DrainTunables, Tail, commit_durably
from inference.gateway.segments import FolderLock, FolderNotEmpty, encode, segment_path, sync_folder

log = structlog.get_logger(__name__)

CLAIM_WITHIN_S = 5.0


class JournalUnavailable(Unavailable):
    """Retry after a while; the journal's disk is full or does not work, so nothing new is taken on."""

    code = "journal_unavailable"


@dataclass(frozen=True, slots=True)
class JournalTunables:
    max_segment_bytes: int = 4 * 1024 * 1024
    """A segment that is longer is closed and a new one begun."""
    sync_delay_s: float = 0.04
    """How long writes are gathered before one fsync makes them durable: within 50 ms, and not sooner, as fsyncs cost CPU."""
    retry_s: float = 0.5
    """How often a disk that refused is tried again."""
    stop_timeout_s: float = 5.0
    """How long a clean stop waits for the ledger."""
    drain: DrainTunables = field(default_factory=DrainTunables)
    """Of the way to the ledger."""

    @classmethod
    def from_env(cls) -> "JournalTunables":
        default, drain = cls(), DrainTunables()
        return cls(
            max_segment_bytes=env.whole("HEADWAY_JOURNAL_SEGMENT_BYTES", default.max_segment_bytes, at_least=4096),
            sync_delay_s=env.seconds("HEADWAY_JOURNAL_SYNC_DELAY_S", default.sync_delay_s),
            retry_s=env.seconds("HEADWAY_JOURNAL_RETRY_S", default.retry_s, at_least=0.01),
            stop_timeout_s=env.seconds("HEADWAY_JOURNAL_STOP_TIMEOUT_S", default.stop_timeout_s),
            drain=DrainTunables(
                interval_s=env.seconds("HEADWAY_JOURNAL_DRAIN_INTERVAL_S", drain.interval_s, at_least=0.01),
                batch_records=env.whole("HEADWAY_JOURNAL_BATCH_RECORDS", drain.batch_records, at_least=1, at_most=5000),
                adopt_interval_s=env.seconds("HEADWAY_JOURNAL_ADOPT_INTERVAL_S", drain.adopt_interval_s, at_least=0.1),
                max_backoff_s=env.seconds("HEADWAY_JOURNAL_MAX_BACKOFF_S", drain.max_backoff_s, at_least=0.1),
            ),
        )


class _Segment:
    """One file. `size` is always the end of a whole record."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self.path = segment_path(folder, number)
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self.size = 0
        self.consumed = 0
        self.is_broken = False
        self.is_sealed = False
        self.is_carried = False  # its open requests stand in the next segment, durably

    def append(self, data: bytes) -> None:
        """Whole or not at all. Raises OSError."""
        if self.is_broken:
            raise OSError(errno.EIO, "the segment is broken")
        try:
            written = os.write(self.fd, data)
            if written == len(data):
                self.size += written
                return
            os.ftruncate(self.fd, self.size)  # part of it fitted: the disk is full
        except OSError as error:
            # Nothing or some of it may be there. Whatever it is, cut it off; where that fails write here no more.
            self._cut_back()
            raise error
        raise OSError(errno.ENOSPC, "no room for the whole record")

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self.fd, self.size)
        except OSError:
            self.is_broken = True


class Journal:
    """One a process. `open`, `close`, `depth` and `is_healthy` are for the event loop, the rest for its own threads."""

    def __init__(
        self,
        root: Path,
        gateway: str,
        tunables: JournalTunables,
        *,
        commit: Commit = commit_durably,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes the folder and starts the threads. Raises ConfigurationError when the folder cannot be had.

        `also` is what else the thread that drains carries to the database.
        """
        self._gateway = gateway
        self._tunables = tunables
        self._folder = root / gateway
        self._lock = threading.Lock()
        self._sequence = itertools.count(1)
        self._opened: dict[str, UsageDraft] = {}  # until their final record is written, or in the ledger
        self._unwritten: dict[str, UsageDraft] = {}
        self._finals_ahead = 0  # written, not in the ledger
        self._is_healthy = True
        self._is_dirty = False
        self._wake = threading.Event()
        self._is_stopping = False
        try:
            self._ownership = _claim(self._folder)
            self._current = _Segment(self._folder, 1)
            sync_folder(self._folder)
            sync_folder(root)
        except OSError as error:
            raise ConfigurationError(f"the journal's folder {self._folder} cannot be used: {error.strerror}") from error
        self._segments = {1: self._current}
        self._to_carry: list[tuple[_Segment, list[UsageDraft]]] = []
        self._drainer = Drainer(root, gateway, self, tunables.drain, commit, also)
        self._syncer = threading.Thread(target=self._run, name="journal-sync", daemon=True)
        self._syncer.start()
        self._drainer.start()

    # For the event loop

    @property
    def is_healthy(self) -> bool:
        """False: the disk refuses. It is tried again in the background."""
        return self._is_healthy

    @property
    def num_open(self) -> int:
        return len(self._opened)

    @property
    def num_refused(self) -> int:
        """Records that the ledger refused for themselves; each lies in a `.refused` file."""
        return self._drainer.num_refused

    @property
    def num_corrupt(self) -> int:
        """Stretches that could not be read; each lies in a `.corrupt` file."""
        return self._drainer.num_corrupt

    def depth(self) -> int:
        """Final records that are not in the ledger yet."""
        return self._finals_ahead + len(self._unwritten)

    def open(self, draft: UsageDraft) -> None:
        """A request was authenticated: from here on it leaves a record whatever happens. Raises JournalUnavailable."""
        if not self._is_healthy:
            raise _unavailable()
        draft = msgspec.structs.replace(draft, gateway=self._gateway, journal_sequence=next(self._sequence))
        data = encode("open", draft)
        try:
            with self._lock:
                self._current.append(data)
                self._opened[draft.request_id] = draft
        except OSError as error:
            self._disk_refused(error)
            raise _unavailable() from error
        self._written()

    def close(self, draft: UsageDraft) -> None:
        """The final record; call it before the last event is sent. Kept in memory and tried again if the disk refuses."""
        opened = self._opened.get(draft.request_id)
        sequence = opened.journal_sequence if opened else next(self._sequence)
        draft = msgspec.structs.replace(draft, gateway=self._gateway, journal_sequence=sequence)
        try:
            with self._lock:
                self._append_final(draft)
        except OSError as error:
            with self._lock:
                self._unwritten[draft.request_id] = draft
            self._disk_refused(error)
            return
        self._written()

    def _append_final(self, draft: UsageDraft) -> None:
        """With the lock held. Raises OSError."""
        self._current.append(encode("close", draft))
        self._opened.pop(draft.request_id, None)
        self._finals_ahead += 1

    def _written(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            self._wake.set()

    def _disk_refused(self, error: OSError) -> None:
        if self._is_healthy:
            log.error("journal_unhealthy", reason=error.strerror)
        self._is_healthy = False
        self._wake.set()

    # For the drainer

    def tails(self) -> list[Tail]:
        with self._lock:
            return [
                Tail(number=segment.number, path=segment.path, offset=segment.consumed, size=segment.size)
                for segment in self._segments.values()
                if segment.consumed < segment.size
            ]

    def consumed(self, number: int, offset: int, *, finals: int) -> None:
        with self._lock:
            self._segments[number].consumed = offset
            has_more = any(segment.consumed < segment.size for segment in self._segments.values())
            # A final record that could not be read is in no `finals`.
            self._finals_ahead = self._finals_ahead - finals if has_more else 0
        self._drop_finished()

    def unwritten(self) -> list[UsageDraft]:
        with self._lock:
            return list(self._unwritten.values())

    def unwritten_committed(self, drafts: Sequence[UsageDraft]) -> None:
        with self._lock:
            for draft in drafts:
                # One that has been written meanwhile is counted with those of its segment.
                if self._unwritten.pop(draft.request_id, None) is not None:
                    self._opened.pop(draft.request_id, None)

    def _drop_finished(self) -> None:
        with self._lock:
            finished = [s for s in self._segments.values() if s.is_sealed and s.is_carried and s.consumed == s.size]
            for segment in finished:
                del self._segments[segment.number]
        for segment in finished:
            segment.path.unlink(missing_ok=True)

    # The thread that keeps the files

    def _run(self) -> None:
        while not self._is_stopping:
            if self._is_healthy:
                self._wake.wait()
                self._wake.clear()
                time.sleep(self._tunables.sync_delay_s)
            else:
                time.sleep(self._tunables.retry_s)
            self._keep_files()

    def _keep_files(self) -> None:
        try:
            self._sync()
            if self._current.is_broken or self._current.size >= self._tunables.max_segment_bytes:
                self._rotate()
            self._carry()
            self._write_unwritten()
        except OSError as error:
            self._disk_refused(error)
        except Exception:
            # The thread's boundary: without it nothing would be made durable any more.
            log.exception("journal_sync_failed")

    def _sync(self) -> None:
        if not self._is_dirty:
            return
        self._is_dirty = False
        try:
            os.fsync(self._current.fd)
        except OSError:
            # What the kernel could not write it forgets: go on in another file. Requests that are open are carried there.
            self._current.is_broken = True
            raise

    def _rotate(self) -> None:
        fresh = _Segment(self._folder, self._current.number + 1)
        sync_folder(self._folder)
        with self._lock:
            old, self._current = self._current, fresh
            self._segments[fresh.number] = fresh
            self._to_carry.append((old, list(self._opened.values())))
            old.is_sealed = True
        # A write that came between our last fsync and the swap.
        try:
            os.fsync(old.fd)
        finally:
            os.close(old.fd)

    def _carry(self) -> None:
        """Bring the open records of sealed segments into the current one; what has been closed since needs none."""
        while self._to_carry:
            old, drafts = self._to_carry[0]
            for draft in drafts:
                if draft.request_id in self._opened:
                    with self._lock:
                        self._current.append(encode("open", draft))
            os.fsync(self._current.fd)
            old.is_carried = True
            del self._to_carry[0]
            self._drop_finished()

    def _write_unwritten(self) -> None:
        if self._is_healthy and not self._unwritten:
            return
        with self._lock:
            if not self._is_healthy:
                self._current.append(encode("probe"))
            for draft in list(self._unwritten.values()):
                self._append_final(draft)
                del self._unwritten[draft.request_id]
        os.fsync(self._current.fd)
        if not self._is_healthy:
            log.info("journal_healthy")
        self._is_healthy = True

    # The end

    def stop(self) -> None:
        """Make everything durable and drain what can be drained; blocks for up to `stop_timeout_s`. Call it once."""
        self._is_stopping = True
        self._wake.set()
        self._syncer.join()
        self._keep_files()
        is_drained = self._drainer.stop(self._tunables.stop_timeout_s)
        with self._lock:
            self._current.is_broken = True  # its number may soon be another file's
            os.close(self._current.fd)
        if is_drained and self.depth() == 0 and not self._opened:
            try:
                self._ownership.remove_folder()
            except FolderNotEmpty:
                log.warning("journal_folder_not_empty", folder=str(self._folder))
        self._ownership.release()


def _unavailable() -> JournalUnavailable:
    return JournalUnavailable(
        "This gateway cannot record usage at the moment, so it takes no requests. Retry.", retry_after_s=5.0
    )


def _claim(folder: Path) -> FolderLock:
    """Make and own the folder. A drainer that looks in may hold, or even remove it, for a moment: try again."""
    deadline_s = time.monotonic() + CLAIM_WITHIN_S
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FolderLock.take(folder)
        if lock is not None:
            return lock
        if time.monotonic() > deadline_s:
            raise ConfigurationError(f"another process holds the journal's folder {folder}")
        time.sleep(0.01)

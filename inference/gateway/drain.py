"""From journal to ledger: a thread with its own database connection, for our own segments and for dead gateways'."""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
from django.core.exceptions import ValidationError
from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, connection

from billing.errors import UsageRefused
from billing.services.ledger import GATEWAY_LOST, UsageDraft, record_usage
from inference.gateway.segments import BadStretch, FolderLock, Parsed, encode, parse, segments_of, write_durably

log = structlog.get_logger(__name__)

Commit = Callable[[list[UsageDraft]], None]

# The record is at fault, not the database: it is put aside so that it does not block the others.
_REFUSED = (UsageRefused, DataError, IntegrityError, ValidationError, ValueError, OverflowError)
_READ_BYTES = 256 * 1024
_MAX_MS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DrainTunables:
    interval_s: float = 0.5
    """How often finished requests are carried to the ledger."""
    batch_records: int = 200
    """Records a transaction."""
    adopt_interval_s: float = 5.0
    """How often folders of gateways that are gone are looked for."""
    max_backoff_s: float = 2.0
    """The longest pause between attempts while the database is away."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What of one of our segments the ledger does not have yet: bytes from `offset` to `size`, a record's end."""

    number: int
    path: Path
    offset: int
    size: int


class OwnRecords(Protocol):
    """The running gateway's side of the journal, as the drainer sees it. Safe to call from its thread."""

    def tails(self) -> list[Tail]: ...

    def consumed(self, number: int, offset: int, *, finals: int) -> None:
        """The ledger has everything of this segment before `offset`, of which `finals` records are new."""

    def unwritten(self) -> list[UsageDraft]:
        """Final records that the disk would not take."""

    def unwritten_committed(self, drafts: Sequence[UsageDraft]) -> None: ...


class LedgerAway(Exception):
    """Retry after a while; the ledger did not take the batch, and no record of it is to blame."""


def commit_durably(drafts: list[UsageDraft]) -> None:
    """Into the ledger, on disk when this returns, whatever the database's own default is."""
    sql = "PRAGMA synchronous=FULL" if connection.vendor == "sqlite" else "SET synchronous_commit TO ON"
    with connection.cursor() as cursor:
        cursor.execute(sql)
    record_usage(drafts=drafts)


class LedgerWriter:
    """Commits batches; a record that the ledger refuses for itself is found by halving and put aside in a file."""

    def __init__(self, root: Path, commit: Commit, batch_records: int) -> None:
        self._root = root
        self._commit = commit
        self._batch_records = batch_records
        self.num_refused = 0
        self.num_corrupt = 0

    def write(self, drafts: Sequence[UsageDraft]) -> None:
        """Raises LedgerAway; what was committed before that stays, and may be given again."""
        for start in range(0, len(drafts), self._batch_records):
            self._write_batch(list(drafts[start : start + self._batch_records]))

    def _write_batch(self, drafts: list[UsageDraft]) -> None:
        try:
            self._commit(drafts)
        except _REFUSED as error:
            if len(drafts) == 1:
                self._put_aside(drafts[0], error)
                return
            middle = len(drafts) // 2
            self._write_batch(drafts[:middle])
            self._write_batch(drafts[middle:])
        except (DatabaseError, InterfaceError) as error:
            connection.close()
            raise LedgerAway(f"{type(error).__name__}: {error}") from error

    def _put_aside(self, draft: UsageDraft, error: Exception) -> None:
        data = encode("close", draft)
        path = self._root / f"{draft.gateway or 'unknown'}-{hashlib.sha256(data).hexdigest()[:16]}.refused"
        self._keep(path, data)
        self.num_refused += 1
        log.error("usage_record_refused", request_id=draft.request_id, file=str(path), reason=type(error).__name__)

    def keep_bad(self, gateway: str, number: int, stretches: Sequence[BadStretch], *, base: int = 0) -> None:
        """Keep what could not be read. Raises LedgerAway when that fails."""
        for stretch in stretches:
            at = base + stretch.offset
            path = self._root / f"{gateway}-{number:08d}-{at}.corrupt"
            self._keep(path, stretch.data)
            self.num_corrupt += 1
            log.error("journal_corrupt", gateway=gateway, segment=number, offset=at, length=len(stretch.data), file=str(path))

    def _keep(self, path: Path, data: bytes) -> None:
        try:
            write_durably(path, data)
        except OSError as error:
            raise LedgerAway(f"cannot keep {path.name}: {error.strerror}") from error


class Drainer:
    def __init__(
        self,
        root: Path,
        gateway: str,
        own: OwnRecords,
        tunables: DrainTunables,
        commit: Commit = commit_durably,
        also: Callable[[], None] = lambda: None,
    ) -> None:
        """`also` is called after each look, while the ledger can be reached."""
        self._also = also
        self._root = root
        self._gateway = gateway
        self._own = own
        self._tunables = tunables
        self._ledger = LedgerWriter(root, commit, tunables.batch_records)
        self._is_stopping = threading.Event()
        self._next_adoption_s = 0.0
        self._is_away = False
        self._thread = threading.Thread(target=self._run, name="journal-drain", daemon=True)

    @property
    def num_refused(self) -> int:
        return self._ledger.num_refused

    @property
    def num_corrupt(self) -> int:
        return self._ledger.num_corrupt

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Drain what can be drained now. False: the thread is still at it (the database hangs)."""
        self._is_stopping.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause_s = self._tunables.interval_s
        try:
            while not self._is_stopping.is_set():
                pause_s = self._tunables.interval_s if self._round() else min(pause_s * 2, self._tunables.max_backoff_s)
                self._is_stopping.wait(pause_s)
            self._round(is_last=True)
        finally:
            connection.close()

    def _round(self, *, is_last: bool = False) -> bool:
        """One look at everything. False: wait longer before the next."""
        try:
            self.drain_own()
            if not is_last and time.monotonic() >= self._next_adoption_s:
                self.adopt_all()
                self._next_adoption_s = time.monotonic() + self._tunables.adopt_interval_s
            self._also()
        except LedgerAway as error:
            if not self._is_away:
                log.warning("ledger_away", reason=str(error))
            self._is_away = True
            return False
        except Exception:
            # The thread's boundary: without it no record would reach the ledger any more. Everything is still on disk.
            log.exception("journal_drain_failed")
            return False
        if self._is_away:
            log.info("ledger_back")
        self._is_away = False
        return True

    # Ours

    def drain_own(self) -> None:
        """Raises LedgerAway."""
        for tail in self._own.tails():
            offset = tail.offset
            while offset < tail.size:
                offset = self._drain_some(tail, offset)
        unwritten = self._own.unwritten()
        if unwritten:
            self._ledger.write(unwritten)
            self._own.unwritten_committed(unwritten)

    def _drain_some(self, tail: Tail, offset: int) -> int:
        with tail.path.open("rb") as file:
            file.seek(offset)
            data = file.read(min(_READ_BYTES, tail.size - offset))
        # Our own records end where the size says, so one that is cut there was damaged.
        parsed = parse(data, is_whole=offset + len(data) >= tail.size)
        if parsed.end == 0:
            parsed.bad.append(BadStretch(0, data))
            parsed.end = len(data)
        self._ledger.write(parsed.closed)
        self._ledger.keep_bad(self._gateway, tail.number, parsed.bad, base=offset)
        self._own.consumed(tail.number, offset + parsed.end, finals=len(parsed.closed))
        return offset + parsed.end

    # Those of gateways that are gone

    def adopt_all(self) -> None:
        """Settle every folder whose owner is gone. Raises LedgerAway."""
        for folder in sorted(path for path in self._root.iterdir() if path.is_dir() and path.name != self._gateway):
            lock = FolderLock.take(folder)
            if lock is None:
                continue
            try:
                self._adopt(folder)
                lock.remove_folder()
            except OSError as error:
                # One folder that cannot be read or removed must not keep the others waiting.
                log.error("journal_adoption_failed", gateway=folder.name, reason=str(error))
            finally:
                lock.release()

    def _adopt(self, folder: Path) -> None:
        opened: dict[str, UsageDraft] = {}
        closed_ids: set[str] = set()
        bad: list[tuple[int, Parsed]] = []
        for number, path in segments_of(folder):
            parsed = parse(path.read_bytes(), is_whole=True)
            opened.update((draft.request_id, draft) for draft in parsed.opened)
            closed_ids.update(draft.request_id for draft in parsed.closed)
            bad.append((number, parsed))
            self._ledger.write(parsed.closed)
        lost = [_lost(draft) for request_id, draft in opened.items() if request_id not in closed_ids]
        self._ledger.write(lost)
        for number, parsed in bad:
            self._ledger.keep_bad(folder.name, number, parsed.bad)
        log.info("journal_adopted", gateway=folder.name, finals=len(closed_ids), lost=len(lost))


def _lost(draft: UsageDraft) -> UsageDraft:
    """The record of a request whose gateway died: what it used is not known."""
    now_s = time.time()
    return msgspec.structs.replace(
        draft,
        end_state=GATEWAY_LOST,
        usage_source="none",
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        ended_at_s=now_s,
        total_ms=min(max(0, round((now_s - draft.started_at_s) * 1000)), _MAX_MS),
    )

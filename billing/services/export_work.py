"""Write an export's file: some rows, then a note of how far it is, and so on. Carried out by the outbox, a part at a time.

What a row of Export says is in the file, synced. A worker that dies leaves more in the file than that, which the next cuts
off before it goes on; so the file is the same as if nobody had died. One worker writes at a time: it holds the file's lock.
"""

import csv
import fcntl
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, BinaryIO

import structlog
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from billing.export_models import OPEN_STATES, Export, ExportState
from billing.services.export_rows import Row, Source
from billing.services.exports import KEPT, KIND, file_of, name_of, page_of, part_of, source_of
from workers.errors import TryLater
from workers.services import outbox
from workers.services.mail import queue_mail
from workers.services.site_links import site_url

log = structlog.get_logger(__name__)

ROWS_A_STEP = 2000
ROWS_A_PART = 50_000
"""Of one outbox entry: far less than its lease holds."""
LEASE_S = 300.0
MAX_STARTS = 8
"""Without coming any further: then it has failed."""


def carry_on(ids: dict[str, Any]) -> None:
    """An outbox entry's: {"export": id}. Raises TryLater. Done again it does nothing."""
    export = _started(ids["export"])
    if export is None:
        return
    try:
        with _alone(export) as file:
            is_whole = file is None or _write_part(export, file)
            if file is not None and is_whole:
                _name_whole(export)
    except BlockingIOError:
        raise TryLater("another worker writes this file") from None
    except OSError as error:
        reason = f"the file could not be written: {error.strerror or type(error).__name__}"
        Export.objects.filter(id=export.id, state=ExportState.RUNNING).update(reason=reason[:300])
        raise TryLater(reason) from None
    if is_whole:
        _finish(export)
    else:
        with transaction.atomic():
            outbox.put(kind=KIND, ids=ids)


def _started(export_id: str) -> Export | None:
    """None: it is over, or now it has failed."""
    moved = Export.objects.filter(id=export_id, state__in=OPEN_STATES, starts__lt=MAX_STARTS)
    if moved.update(state=ExportState.RUNNING, starts=F("starts") + 1):
        return Export.objects.get(id=export_id)
    stuck = Export.objects.filter(id=export_id, state__in=OPEN_STATES).first()
    if stuck is not None:
        _fail(stuck)
    return None


@contextmanager
def _alone(export: Export) -> Iterator[BinaryIO | None]:
    """The file, locked, cut to what is on record. None: it is whole already, and only nobody was told.

    Where the file is not what is on record (it lay on another machine, or was removed), it is begun anew.
    """
    part, flags = part_of(export), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    if file_of(export).exists():
        yield None
        return
    with os.fdopen(os.open(part, flags, 0o600), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        export.refresh_from_db()
        if file_of(export).exists():  # whoever held the lock has just made it whole
            part.unlink(missing_ok=True)
            yield None
            return
        if os.fstat(file.fileno()).st_size < export.bytes_done:
            export.rows_done, export.bytes_done, export.cursor = 0, 0, {}
        file.truncate(export.bytes_done)
        file.seek(export.bytes_done)
        yield file


def _write_part(export: Export, file: BinaryIO) -> bool:
    """Up to ROWS_A_PART rows. Returns whether those were the last."""
    source = source_of(export)
    if not export.cursor:
        _begin(export, source, file)
    for _ in range(max(1, ROWS_A_PART // ROWS_A_STEP)):
        rows, export.cursor = source.rows_after(export.cursor, ROWS_A_STEP)
        if not rows:
            return True
        _append(file, rows)
        export.rows_done += len(rows)
        _note(export, file)
    return False


def _name_whole(export: Export) -> None:
    part_of(export).replace(file_of(export))
    folder = os.open(file_of(export).parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _begin(export: Export, source: Source, file: BinaryIO) -> None:
    export.rows_total, export.cursor = source.begin()
    _append(file, [source.head()])
    _note(export, file)


def _append(file: BinaryIO, rows: list[Row]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    file.write(text.getvalue().encode())


def _note(export: Export, file: BinaryIO) -> None:
    """What is on record is on the disk."""
    file.flush()
    os.fsync(file.fileno())
    export.bytes_done = file.tell()
    mine = Export.objects.filter(id=export.id, state=ExportState.RUNNING)
    told = {name: getattr(export, name) for name in ("rows_done", "rows_total", "bytes_done", "cursor")}
    if not mine.update(**told, starts=0, reason=""):
        raise TryLater("this export is being made no more")


def _finish(export: Export) -> None:
    now = timezone.now()
    with transaction.atomic():
        mine = Export.objects.filter(id=export.id, state=ExportState.RUNNING)
        if not mine.update(state=ExportState.READY, rows_total=F("rows_done"), ended_at=now, expires_at=now + KEPT, reason=""):
            return
        export.refresh_from_db()
        what = f"{export.rows_done:,} rows. It is kept until {export.expires_at:%Y-%m-%d %H:%M} UTC."
        _mail(export, f"{name_of(export)} is ready", what)


def _fail(export: Export) -> None:
    now, reason = timezone.now(), export.reason or f"it was begun {MAX_STARTS} times and came no further"
    failed = {"state": ExportState.FAILED, "reason": reason, "ended_at": now, "expires_at": now + timedelta(days=1)}
    with transaction.atomic():
        if Export.objects.filter(id=export.id, state__in=OPEN_STATES).update(**failed):
            log.error("export_failed", export=str(export.id), reason=reason)
            _mail(export, f"{name_of(export)} could not be made", f"Why: {reason}. You can ask for it again.")


def _mail(export: Export, subject: str, what: str) -> None:
    """The link leads to a page that asks for a log-in; the file itself is never in a mail."""
    if export.email:
        text = f"{subject}\n{what}\n\n{site_url(page_of(export))}\n"
        queue_mail(to=export.email, subject=f"[Headway] {subject}", text=text)

"""Large files: asked for here, made by workers (export_work), kept for a week in HEADWAY_HOME/exports, then removed."""

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from billing.export_models import OPEN_STATES, Export, ExportKind, ExportState
from billing.services.export_rows import LedgerOfMonth, RequestsOfTenant, Source
from headway.errors import Conflict, InvalidInput, NotFound
from headway.months import MONTH, midnight, zone_named
from tenants.selectors import tenant_with_id
from tenants.services.audit import record_audit
from workers.services import outbox

log = structlog.get_logger(__name__)

KIND = "export"
KEPT = timedelta(days=7)
ROW_KEPT = timedelta(days=90)
"""Of what is on record about a file that was removed."""
MAX_AT_ONCE = 3
"""Of a tenant, and of the operators."""
EXPORT_LOCK_ID = 0x4878
"""The first half of our advisory locks' names in PostgreSQL (usage_rows has the one before)."""
MAX_DAYS = 400
OVER = (ExportState.READY, ExportState.FAILED, ExportState.CANCELLED)
PIECE_BYTES = 1 << 16
OPERATORS_PATH = "/operator/exports/"
TENANTS_PATH = "/t/{tenant}/exports/"
"""Of the pages that mails lead to."""


def export_ledger(*, month: str, actor: str, email: str, now: datetime | None = None) -> Export:
    """All tenants' records and adjustments of a billing month. Raises InvalidInput, Conflict."""
    if not MONTH.fullmatch(month):
        raise InvalidInput(f"a month is written YYYY-MM: {month[:20]!r}", param="month")
    return _ask(ExportKind.LEDGER, {"month": month}, None, actor, email, now or timezone.now())


def export_requests(
    *,
    tenant: Any,
    first: date,
    last: date,
    actor: str,
    email: str,
    model: str = "",
    key: str = "",
    now: datetime | None = None,
) -> Export:
    """A tenant's requests of whole days in its zone, `last` among them. Raises InvalidInput, Conflict."""
    now = now or timezone.now()
    if not timedelta(0) <= last - first < timedelta(days=MAX_DAYS):
        raise InvalidInput(f"the last day must not lie before the first, and a file holds at most {MAX_DAYS} days", param="to")
    if first.year < 2000 or last.year > 2999:
        raise InvalidInput("days lie between 2000 and 2999", param="from")
    zone = tenant.time_zone if zone_named(tenant.time_zone) else "UTC"
    ends_at = min(midnight(last + timedelta(days=1), zone), now)
    starts_at = min(midnight(first, zone), ends_at)
    asked = {"starts_at": starts_at.isoformat(), "ends_at": ends_at.isoformat(), "zone": zone, "model": model, "key": key}
    asked |= {"first": first.isoformat(), "last": last.isoformat()}
    return _ask(ExportKind.REQUESTS, asked, tenant, actor, email, now)


def _ask(kind: ExportKind, asked: dict[str, Any], tenant: Any, actor: str, email: str, now: datetime) -> Export:
    tenant_id = tenant.id if tenant is not None else None
    with transaction.atomic():
        _wait_for_askers(tenant_id)
        if Export.objects.filter(tenant_id=tenant_id, state__in=OPEN_STATES).count() >= MAX_AT_ONCE:
            raise Conflict(f"{MAX_AT_ONCE} files are being made already: wait until one is ready, or cancel one")
        export = Export.objects.create(
            kind=kind,
            tenant_id=tenant_id,
            asked=asked,
            asked_by=actor[:200],
            email=email,
            created_at=now,
            expires_at=now + KEPT,
        )
        record_audit(actor=actor, action="export.ask", target=str(export.id), tenant=tenant, after={"kind": kind, **asked})
        outbox.put(kind=KIND, ids={"export": str(export.id)})
    return export


def _wait_for_askers(tenant_id: UUID | None) -> None:
    """Until the transaction ends, nobody else asks for a file of theirs (on SQLite one who writes is alone anyway)."""
    if connection.vendor == "postgresql":
        number = tenant_id.int & 0x7FFFFFFF if tenant_id is not None else 0
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [EXPORT_LOCK_ID, number])


def cancel_export(export_id: UUID, *, tenant_id: UUID | None, actor: str, now: datetime | None = None) -> Export:
    """Make it no further, and remove what there is of its file; again it stays cancelled. Raises NotFound, Conflict."""
    export, now = one_export(export_id, tenant_id=tenant_id), now or timezone.now()
    tenant = tenant_with_id(tenant_id) if tenant_id is not None else None
    with transaction.atomic():
        mine = Export.objects.filter(id=export.id, state__in=OPEN_STATES)
        if mine.update(state=ExportState.CANCELLED, ended_at=now, expires_at=now):
            record_audit(actor=actor, action="export.cancel", target=str(export.id), tenant=tenant, after={"kind": export.kind})
    export.refresh_from_db()
    if export.state != ExportState.CANCELLED:
        raise Conflict(f"this file is being made no more: it is {export.state}")
    # A worker that writes it notes that it may not go on; what it names whole in this instant the next sweep removes.
    part_of(export).unlink(missing_ok=True)
    return export


def exports_of(tenant_id: UUID | None) -> QuerySet[Export]:
    """Newest first. None: the operators'."""
    return Export.objects.filter(tenant_id=tenant_id).order_by("-created_at", "id")


def one_export(export_id: UUID, *, tenant_id: UUID | None) -> Export:
    """However far it is. Raises NotFound, for those of others too."""
    export = exports_of(tenant_id).filter(id=export_id).first()
    if export is None:
        raise NotFound("there is no such export")
    return export


def finished_export(export_id: UUID, *, tenant_id: UUID | None) -> Export:
    """One whose file is there. Raises NotFound, for those of others too."""
    export = Export.objects.filter(id=export_id, tenant_id=tenant_id, state=ExportState.READY).first()
    if export is None or not file_of(export).exists():
        raise NotFound("there is no such file; those older than a week are removed")
    return export


class Pieces(Iterator[bytes]):
    """Of a file. It is opened at once: one that is removed meanwhile is sent to its end."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError."""
        self._file = path.open("rb")

    def __next__(self) -> bytes:
        if piece := self._file.read(PIECE_BYTES):
            return piece
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Also of one that nobody read, as after a HEAD."""
        self._file.close()


def pieces_of(export: Export) -> Pieces:
    return Pieces(file_of(export))


def name_of(export: Export) -> str:
    """Of the file as it is downloaded."""
    asked = export.asked
    what = asked["month"] if export.kind == ExportKind.LEDGER else f"{asked['first']}-{asked['last']}"
    return f"headway-{export.kind}-{what}.csv"


def page_of(export: Export) -> str:
    """The path of the page that shows it."""
    if export.tenant_id is None:
        return OPERATORS_PATH
    tenant = tenant_with_id(export.tenant_id)
    return TENANTS_PATH.format(tenant=tenant.name if tenant else export.tenant_id)


def source_of(export: Export) -> Source:
    if export.kind == ExportKind.LEDGER:
        return LedgerOfMonth(export.asked)
    assert export.tenant_id is not None, "requests are a tenant's"
    return RequestsOfTenant(export.tenant_id, export.asked)


def file_of(export: Export) -> Path:
    return folder() / f"{export.id}.csv"


def part_of(export: Export) -> Path:
    """While it is being written."""
    return folder() / f"{export.id}.part"


def folder() -> Path:
    path: Path = settings.HOME.folder("exports")
    return path


def forget_old_exports(now: datetime | None = None) -> int:
    """Remove the files of those that are over, and what nobody knows. Returns how many exports that were."""
    now = now or timezone.now()
    over = Export.objects.filter(state__in=OVER, expires_at__lte=now)
    number = 0
    for export in over:
        if Export.objects.filter(id=export.id, state=export.state).update(state=ExportState.EXPIRED):
            number += 1
            file_of(export).unlink(missing_ok=True)
            part_of(export).unlink(missing_ok=True)
    Export.objects.filter(state=ExportState.EXPIRED, expires_at__lt=now - ROW_KEPT).delete()
    paths = list(folder().iterdir())  # before the rows: a file that is begun now has one
    kept = {str(each) for each in Export.objects.exclude(state=ExportState.EXPIRED).values_list("id", flat=True)}
    for path in paths:
        if path.stem not in kept:
            log.info("export_file_of_nobody_removed", name=path.name)
            path.unlink(missing_ok=True)
    return number

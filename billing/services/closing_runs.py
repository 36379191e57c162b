"""Close a month of all tenants in a worker: asked for here, carried out by the outbox a part at a time, watched meanwhile.

Each tenant's month is a transaction of its own (`closing`), and closes once whoever else does it; so a run that is carried
out twice, or from where another died, closes nothing twice. What a run says of itself only tells people how far it is.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from billing.closing_models import ClosingRun, ClosingState
from billing.errors import MonthNotOver
from billing.services.closing import Closed, Closing, try_close
from billing.services.statements import month_bounds
from headway.errors import InvalidInput, NotFound
from headway.months import UTC_NAME
from tenants.selectors import every_tenant_id, time_zones
from tenants.services.audit import record_audit
from workers.services import outbox

log = structlog.get_logger(__name__)

KIND = "closing"
TENANTS_A_PART = 50
"""Of one outbox entry."""
LEASE_S = 600.0
"""Longer than a part takes."""
STUCK = timedelta(seconds=2 * LEASE_S)
"""A run that has not come further for so long is carried on when it is asked for again."""
MAX_FAILURES_KEPT = 200
_FIRST_ZONE = "Etc/GMT-14"
"""Where a month is over first."""


def ask_to_close(*, month: str, actor: str, now: datetime | None = None) -> ClosingRun:
    """The run of that month, which a worker carries out. While one is under way it is given back: two clicks make one.

    Raises InvalidInput for what is no month, or without a company's name; MonthNotOver where it is over for nobody.
    """
    now = now or timezone.now()
    if month_bounds(month, _FIRST_ZONE)[1] > now:
        raise MonthNotOver(f"{month} is not over in any time zone")
    if not settings.COMPANY_NAME:
        raise InvalidInput("an invoice names who sends it: set HEADWAY_COMPANY_NAME first", param="month")
    try:
        with transaction.atomic():
            run = ClosingRun.objects.create(month=month, actor=actor[:200], created_at=now, moved_at=now)
            record_audit(actor=actor, action="month.close", target=month, after={"run": run.id})
            outbox.put(kind=KIND, ids={"run": run.id})
            return run
    except IntegrityError:
        return _under_way(month, now)


def closing_run(run_id: int) -> ClosingRun:
    """Raises NotFound."""
    found = ClosingRun.objects.filter(id=run_id).first()
    if found is None:
        raise NotFound(f"there is no closing run {run_id}")
    return found


def closing_runs(month: str = "") -> QuerySet[ClosingRun]:
    """Newest first; blank: of every month."""
    rows = ClosingRun.objects.order_by("-id")
    return rows.filter(month=month) if month else rows


def carry_on(ids: dict[str, Any], *, now: datetime | None = None) -> None:
    """An outbox entry's: {"run": id}. Done again it does nothing."""
    run, now = ClosingRun.objects.filter(id=ids["run"], ended_at=None).first(), now or timezone.now()
    if run is None:
        return
    over = _where_it_is_over(run.month, now)
    rest = over[over.index(run.last_tenant_id) + 1 :] if run.last_tenant_id in over else over
    for tenant_id in rest[:TENANTS_A_PART]:
        closing = Closing()
        try_close(closing, tenant_id, run.month, run.actor, now)
        if not _note(run, tenant_id, closing, num_over=len(over), now=now):
            return  # another worker has come further: it goes on
    with transaction.atomic():
        if len(rest) > TENANTS_A_PART:
            outbox.put(kind=KIND, ids=ids)
        else:
            ClosingRun.objects.filter(id=run.id, ended_at=None).update(
                state=ClosingState.DONE, tenants_total=run.tenants_done, moved_at=now, ended_at=timezone.now()
            )


def _under_way(month: str, now: datetime) -> ClosingRun:
    run = ClosingRun.objects.filter(month=month).latest("id")
    with transaction.atomic():
        stuck = ClosingRun.objects.filter(id=run.id, ended_at=None, moved_at__lt=now - STUCK)
        if stuck.update(moved_at=now):
            log.warning("closing_run_carried_on", run=run.id, month=month)
            outbox.put(kind=KIND, ids={"run": run.id})
    return run


def _where_it_is_over(month: str, now: datetime) -> list[UUID]:
    """In one order, at whose end new tenants come."""
    tenant_ids = every_tenant_id()
    zones = time_zones(tenant_ids)
    return [each for each in tenant_ids if month_bounds(month, zones.get(each, UTC_NAME))[1] <= now]


def _note(run: ClosingRun, tenant_id: UUID, closing: Closing, *, num_over: int, now: datetime) -> bool:
    """False: the run is not where we left it."""
    at = ClosingRun.objects.filter(id=run.id, ended_at=None, last_tenant_id=run.last_tenant_id)
    for closed in closing.closed:
        is_mine = closed.is_new or _closed_by(run, closed)
        run.closed, run.closed_before = run.closed + is_mine, run.closed_before + (not is_mine)
        run.invoices += is_mine and closed.invoice is not None
    for (failed_id, _), reason in closing.failed.items():
        run.num_failed += 1
        run.failed = [*run.failed, {"tenant_id": str(failed_id), "reason": reason}][:MAX_FAILURES_KEPT]
    run.state, run.tenants_total, run.tenants_done = ClosingState.RUNNING, num_over, run.tenants_done + 1
    run.last_tenant_id, run.moved_at = tenant_id, timezone.now()
    names = ("state", "tenants_total", "tenants_done", "closed", "invoices", "closed_before", "num_failed", "failed")
    return bool(at.update(**{name: getattr(run, name) for name in (*names, "last_tenant_id", "moved_at")}))


def _closed_by(run: ClosingRun, closed: Closed) -> bool:
    """By a worker that died before it could note it."""
    return closed.statement.closed_by == run.actor and closed.statement.closed_at >= run.created_at

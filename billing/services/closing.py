"""Close months: a statement each, kept as it is, and the invoice of it. Once, however often and by however many."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction
from django.utils import timezone

from billing.errors import MonthNotOver
from billing.invoice_models import Invoice, Statement, StatementLine
from billing.models import MonthSpend, UsageRecord
from billing.services.invoices import audit_invoice, issue_invoice
from billing.services.month_sums import check_against_ledger
from billing.services.open_months import close_month
from billing.services.statements import StatementDraft, draft_statement, month_bounds
from headway.errors import HeadwayError
from headway.months import UTC_NAME, month_of
from tenants.errors import UnknownTenant
from tenants.selectors import every_tenant_id, time_zones

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Closed:
    statement: Statement
    invoice: Invoice | None
    """None: nothing was used."""
    is_new: bool
    """False: it was closed before."""


@dataclass
class Closing:
    """What became of many months."""

    closed: list[Closed] = field(default_factory=list)
    failed: dict[tuple[UUID, str], str] = field(default_factory=dict)
    """By tenant and month: why. They stay open, and the next run tries again."""


def close_statement(*, tenant_id: UUID, month: str, actor: str, now: datetime | None = None) -> Closed:
    """Close a tenant's month that is over: from here on nothing is added to it.

    One that is closed already is given back as it is. Raises MonthNotOver, InvalidInput, RateMissing, ConfigurationError,
    UnknownTenant; StatementDiffers where its lines are not the ledger's sum. Then nothing was closed and no number taken.
    """
    now = now or timezone.now()
    zone = time_zones([tenant_id]).get(tenant_id)
    if zone is None:
        raise UnknownTenant(f"there is no tenant {tenant_id}")
    if month_bounds(month, zone)[1] > now:
        raise MonthNotOver(f"{month} is not over in {zone}, the tenant's time zone")
    with transaction.atomic():
        close_month(tenant_id=tenant_id, month=month)  # one at a time from here on, of a tenant
        before = Statement.objects.filter(tenant_id=tenant_id, month=month).first()
        if before is not None:
            return Closed(before, Invoice.objects.filter(statement=before).first(), is_new=False)
        draft = draft_statement(tenant_id, month, now=now)
        check_against_ledger(tenant_id, month, draft.ledger_picos)
        statement = _keep(draft, actor=actor, now=now)
        invoice = issue_invoice(statement, draft, now=now) if draft.has_use else None
        if invoice is not None:
            after = {"month": month, "total_minor": invoice.total_minor, "currency": invoice.currency}
            audit_invoice(invoice, action="invoice.issue", actor=actor, after=after)
    return Closed(statement, invoice, is_new=True)


def close_all(month: str, *, actor: str, now: datetime | None = None) -> Closing:
    """That month of every tenant in whose time zone it is over, each in a transaction of its own."""
    now = now or timezone.now()
    closing = Closing()
    zones = time_zones(tenant_ids := every_tenant_id())
    for tenant_id in tenant_ids:
        if month_bounds(month, zones.get(tenant_id, UTC_NAME))[1] <= now:
            try_close(closing, tenant_id, month, actor, now)
    return closing


def close_due(*, actor: str = "system", now: datetime | None = None) -> Closing:
    """Every month that was over HEADWAY_STATEMENT_CLOSE_DAYS ago and is not closed: what beat's sweep calls.

    Oldest first. Months without anything in the ledger are left open: what still comes is on them.
    """
    now = now or timezone.now()
    closing = Closing()
    if not settings.COMPANY_NAME:
        log.info("statements_not_closed", reason="HEADWAY_COMPANY_NAME is not set")
        return closing
    until = now - timedelta(days=settings.STATEMENT_CLOSE_DAYS)
    for tenant_id, zone in time_zones(every_tenant_id()).items():
        running = month_of(until, zone).name
        for month in sorted(_unclosed(tenant_id, running, until, zone)):
            try_close(closing, tenant_id, month, actor, now)
    return closing


def _unclosed(tenant_id: UUID, running: str, until: datetime, zone: str) -> set[str]:
    """Months before the one that ran then."""
    closed = set(Statement.objects.filter(tenant_id=tenant_id).values_list("month", flat=True))
    rows = MonthSpend.objects.filter(tenant_id=tenant_id, key_id="", model="", month__lt=running)
    months = set(rows.values_list("month", flat=True)) - closed
    # What was free leaves no trace in the months' sums. Of each month that is open, one row is looked for.
    rest = set(_months_before(running, zone)) - closed - months
    return months | {month for month in rest if UsageRecord.objects.filter(tenant_id=tenant_id, billing_month=month).exists()}


def _months_before(month: str, zone: str) -> Iterator[str]:
    """The twelve before it, newest first."""
    for _ in range(12):
        month = month_of(month_bounds(month, zone)[0] - timedelta(seconds=1), zone).name
        yield month


def try_close(closing: Closing, tenant_id: UUID, month: str, actor: str, now: datetime) -> None:
    """What cannot be closed is among the failed: others go on."""
    try:
        closing.closed.append(close_statement(tenant_id=tenant_id, month=month, actor=actor, now=now))
    except (HeadwayError, DatabaseError) as error:
        message = error.message if isinstance(error, HeadwayError) else f"the database: {type(error).__name__}"
        closing.failed[tenant_id, month] = message
        code = getattr(error, "code", "database_error")
        log.error("statement_not_closed", tenant=str(tenant_id), month=month, code=code, reason=message)


def _keep(draft: StatementDraft, *, actor: str, now: datetime) -> Statement:
    statement = Statement.objects.create(
        tenant_id=draft.tenant_id,
        month=draft.month,
        time_zone=draft.time_zone,
        starts_at=draft.starts_at,
        ends_at=draft.ends_at,
        currency=draft.money.currency,
        minor_digits=draft.money.minor_digits,
        rate_nanos=draft.money.rate_nanos,
        ledger_picos=draft.ledger_picos,
        credit_picos=draft.credit_picos,
        carried_in_picos=draft.carried_in_picos,
        carried_out_picos=draft.carried_out_picos,
        subtotal_minor=draft.subtotal_minor,
        tax_minor=draft.tax_minor,
        total_minor=draft.total_minor,
        closed_at=now,
        closed_by=actor[:200],
    )
    StatementLine.objects.bulk_create(
        [StatementLine(statement=statement, position=place, **vars(line)) for place, line in enumerate(draft.lines, start=1)]
    )
    return statement

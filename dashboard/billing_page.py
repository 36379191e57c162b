"""The billing page: the next invoice as it stands, credit, the hard limit with its alerts, who is billed, how to pay."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.utils import timezone

from billing.selectors import spent_picos
from billing.services.accounts import billing_account
from billing.services.balance_reads import grants_of, overdrawn_picos
from billing.services.invoice_reads import due_by_currency
from billing.services.open_months import open_month
from billing.services.own_account import PayTo, pay_to
from billing.services.statements import StatementDraft, draft_statement
from billing.services.top_ups import top_up_of
from dashboard.money_shown import ShownLine, Totals, money, shown_lines, totals_of
from headway.errors import HeadwayError
from headway.money import micros_up
from headway.months import Month, month_named, month_of, zone_named
from tenants.selectors import TermsInForce, plan_of, terms_on
from tenants.services.alerts import BUDGET_PERCENTS

MAX_GRANTS = 50


@dataclass(frozen=True)
class NextInvoice:
    month: str
    zone: str
    ends_at: datetime
    issued_on: date
    """When it is made at the soonest, in the tenant's time zone."""
    lines: list[ShownLine]
    totals: Totals | None
    currency: str
    note: str
    """On its tax."""
    problem: str
    """Why it cannot be told; then there are no lines."""


@dataclass(frozen=True)
class GrantRow:
    kind: str
    reason: str
    amount_micros: int
    left_picos: int
    created_at: datetime
    expires_at: datetime | None
    state: str
    tone: str


@dataclass(frozen=True)
class Credit:
    is_prepaid: bool
    left_picos: int
    overdrawn_picos: int
    rows: list[GrantRow]


@dataclass(frozen=True)
class Budget:
    limit_micros: int
    used_micros: int
    is_from_plan: bool
    alerts: list[tuple[int, bool]]
    """Percent, and whether so much was spent this month."""

    @property
    def level(self) -> str:
        return (
            "full" if self.used_micros >= self.limit_micros else "high" if self.used_micros * 5 >= self.limit_micros * 4 else ""
        )


@dataclass(frozen=True)
class BillingPage:
    account: Any
    terms: TermsInForce
    next: NextInvoice
    credit: Credit
    spent_picos: int
    budget: Budget | None
    due: list[str]
    pay_to: PayTo
    as_of: datetime
    top_up: Any
    """What one that pays in advance wants of automatic top-ups; None: it never said."""
    percents: tuple[int, ...] = BUDGET_PERCENTS


def billing_page(tenant: Any, now: datetime | None = None) -> BillingPage:
    now = now or timezone.now()
    plan, sender = plan_of(tenant), pay_to()
    # After a change of time zones the month that runs there may be closed: what is used now is on the next one.
    month = month_named(open_month(tenant.id, now, tenant.time_zone, now=now), tenant.time_zone)
    terms = terms_on(tenant, plan)
    spent = spent_picos(tenant.id, month.name)
    draft, problem = _draft(tenant, month, now)
    return BillingPage(
        account=draft.account if draft else billing_account(tenant.id),
        terms=terms,
        next=_next_invoice(tenant, month, sender, draft, problem),
        credit=credit_of(tenant, is_prepaid=plan.is_prepaid, now=now),
        spent_picos=spent,
        budget=_budget(terms, spent),
        due=[money(minor, currency) for currency, minor in sorted(due_by_currency(tenant.id).items()) if minor],
        pay_to=sender,
        as_of=now,
        top_up=top_up_of(tenant.id) if plan.is_prepaid else None,
    )


def first_invoice_on(tenant: Any, now: datetime | None = None) -> date:
    """When the month that runs has its invoice at the soonest, there."""
    month = month_of(now or timezone.now(), tenant.time_zone)
    return _issued_on(month.ends_s, tenant.time_zone, pay_to())


def credit_of(tenant: Any, *, is_prepaid: bool, now: datetime) -> Credit:
    grants = grants_of(tenant.id)
    rows = [_grant_row(grant, now) for grant in grants]
    return Credit(
        is_prepaid=is_prepaid,
        left_picos=sum(row.left_picos for row in rows),
        overdrawn_picos=overdrawn_picos(tenant.id) if grants else 0,
        rows=rows[:MAX_GRANTS],
    )


def _draft(tenant: Any, month: Month, now: datetime) -> tuple[StatementDraft | None, str]:
    """Or why there is none."""
    try:
        return draft_statement(tenant.id, month.name, now=now, zone=tenant.time_zone), ""
    except HeadwayError as error:
        return None, error.message


def _next_invoice(tenant: Any, month: Month, sender: PayTo, draft: StatementDraft | None, problem: str) -> NextInvoice:
    lines = draft.lines if draft else ()
    currency = draft.money.currency if draft else ""
    return NextInvoice(
        month=month.name,
        zone=tenant.time_zone,
        ends_at=datetime.fromtimestamp(month.ends_s, UTC),
        issued_on=_issued_on(month.ends_s, tenant.time_zone, sender),
        lines=shown_lines(lines, currency),
        totals=_totals(draft) if draft else None,
        currency=currency,
        note=draft.tax.note if draft else "",
        problem=problem,
    )


def _totals(draft: StatementDraft) -> Totals:
    return totals_of(
        subtotal_minor=draft.subtotal_minor,
        tax_minor=draft.tax_minor,
        credit_minor=sum(line.amount_minor for line in draft.lines if line.kind == "credit"),
        currency=draft.money.currency,
    )


def _issued_on(month_ends_s: float, zone: str, sender: PayTo) -> date:
    ended = datetime.fromtimestamp(month_ends_s, UTC).astimezone(zone_named(zone) or UTC).date()
    return ended + timedelta(days=sender.issued_after_days)


def _grant_row(grant: Any, now: datetime) -> GrantRow:
    is_over = grant.ended_at is not None or (grant.expires_at is not None and grant.expires_at <= now)
    left = 0 if is_over else grant.left_picos
    state, tone = ("expired", "pill-warn") if is_over else ("used up", "") if not left else ("in use", "pill-good")
    return GrantRow(
        kind=grant.get_kind_display(),
        reason=grant.reason,
        amount_micros=grant.amount_micros,
        left_picos=left,
        created_at=grant.created_at,
        expires_at=grant.expires_at,
        state=state,
        tone=tone,
    )


def _budget(terms: TermsInForce, spent: int) -> Budget | None:
    limit = next((each for each in terms.limits if each.scope == "tenant" and each.kind == "monthly_budget"), None)
    if limit is None:
        return None
    used = micros_up(spent)
    alerts = [(percent, used * 100 >= limit.value * percent) for percent in BUDGET_PERCENTS]
    return Budget(limit.value, used, limit.is_from_plan, alerts)

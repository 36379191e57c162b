"""Tenants as operators see them: a page of the list, and one of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils import timezone

from billing.selectors import TenantUse, month_spends, spent_in_months, use_by_model, use_by_tenant
from billing.services.balance_reads import usable_grants
from dashboard.billing_page import Credit, credit_of
from dashboard.paging import Page, by_number
from dashboard.plan_page import Offer, plan_offers_of_operator
from headway.months import month_of
from tenants.selectors import (
    TermsInForce,
    audit_of_tenant,
    members_of_tenant,
    plan_name_of,
    plan_of,
    tenants_like,
    terms_in_force,
)

SINCE = timedelta(days=30)
STATES = ("active", "suspended")
NEWEST_AUDIT = 10
NO_USE = TenantUse(requests=0, errors=0, tokens=0, amount_picos=0)


@dataclass(frozen=True)
class TenantRow:
    tenant: Any
    plan: str
    use: TenantUse
    spent_picos: int


@dataclass(frozen=True)
class TenantList:
    rows: list[TenantRow]
    page: Page
    query: str
    state: str
    states: tuple[str, ...] = STATES

    @property
    def is_filtered(self) -> bool:
        return bool(self.query or self.state or self.page.newer)


@dataclass(frozen=True)
class TenantPage:
    tenant: Any
    terms: TermsInForce
    members: list[Any]
    use: TenantUse
    models: list[tuple[str, TenantUse]]
    months: list[tuple[str, int]]
    credit: Credit
    offers: list[Offer]
    audit: list[Any]


def tenant_list(asked: Mapping[str, str]) -> TenantList:
    query, state, now = asked.get("q", "").strip()[:100], asked.get("state", ""), timezone.now()
    is_suspended = {"active": False, "suspended": True}.get(state)
    page = by_number(tenants_like(query, is_suspended=is_suspended), asked.get("page", ""))
    ids = [tenant.id for tenant in page.rows]
    used = use_by_tenant(ids, since=now - SINCE)
    months = {tenant.id: month_of(now, tenant.time_zone).name for tenant in page.rows}
    spent = spent_in_months(months)
    rows = [
        TenantRow(tenant, plan_name_of(tenant), used.get(tenant.id, NO_USE), spent.get(tenant.id, 0)) for tenant in page.rows
    ]
    return TenantList(rows=rows, page=page, query=query, state=state if is_suspended is not None else "")


def tenant_page(tenant: Any) -> TenantPage:
    since = timezone.now() - SINCE
    return TenantPage(
        tenant=tenant,
        terms=terms_in_force(tenant),
        members=list(members_of_tenant(tenant)[:50]),
        use=use_by_tenant([tenant.id], since=since).get(tenant.id, NO_USE),
        models=sorted(use_by_model(tenant.id, since=since).items(), key=lambda found: -found[1].amount_picos),
        months=month_spends(tenant.id),
        credit=credit_of(tenant, is_prepaid=plan_of(tenant).is_prepaid, now=timezone.now()),
        offers=plan_offers_of_operator(tenant),
        audit=list(audit_of_tenant(tenant).order_by("-id")[:NEWEST_AUDIT]),
    )


def refundable_grants(tenant: Any) -> list[Any]:
    """Paid in advance, with something left: what may be paid back."""
    return [grant for grant in usable_grants(tenant.id) if grant.kind == "prepaid" and grant.left_picos]

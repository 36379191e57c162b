"""Operators: tenants with what they spend and have left; suspend, plan, credit given and taken."""

from collections.abc import Iterable
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from billing.api import operator_shapes as o
from billing.api.shapes import GrantShape
from billing.api.values import grant_values
from billing.models import Grant, Hold
from billing.selectors import spent_in_months
from billing.services.balance_reads import balance_of, grant_with_id, lefts_picos
from billing.services.balances import MAX_GRANT_MICROS, debit_balance, grant_credit, refund_credit
from headway.errors import NotFound
from headway.money import MICROS_A_USD, micros_to_usd, picos_to_usd, usd_to_micros
from headway.months import month_of
from tenants.api.base import OperatorView
from tenants.selectors import plan_name_of, prepaid_among, tenants_like
from tenants.services.suspension import resume_tenant, suspend_tenant
from tenants.services.tenants import tenant_named
from tenants.services.terms import set_plan


class Tenants(OperatorView):
    @extend_schema(
        operation_id="operator_tenants_list", parameters=[o.TenantsAsked], responses=o.OperatorTenantShape(many=True)
    )
    def get(self, _request: Request) -> Response:
        """All of them, by name."""
        asked = self.read_query(o.TenantsAsked, is_paged=True)
        is_suspended = {"active": False, "suspended": True}.get(asked.get("state", ""))
        rows = tenants_like(asked.get("q", ""), is_suspended=is_suspended)
        return self.page(rows, o.OperatorTenantShape, ordering=("name",), prepare_all=tenants_values)


class OneTenant(OperatorView):
    @extend_schema(operation_id="operator_tenants_read", responses=o.OperatorTenantShape)
    def get(self, _request: Request, tenant: str) -> Response:
        return _shown(tenant)


class Suspend(OperatorView):
    @extend_schema(operation_id="operator_tenants_suspend", request=o.Reason, responses=o.OperatorTenantShape)
    def post(self, _request: Request, tenant: str) -> Response:
        """Its keys are refused within a second; what runs goes on to its end. Of one that is suspended nothing changes."""
        suspend_tenant(tenant=tenant_named(tenant), reason=self.read(o.Reason)["reason"], actor=self.actor)
        return _shown(tenant)


class Resume(OperatorView):
    @extend_schema(operation_id="operator_tenants_resume", request=None, responses=o.OperatorTenantShape)
    def post(self, _request: Request, tenant: str) -> Response:
        resume_tenant(tenant=tenant_named(tenant), actor=self.actor)
        return _shown(tenant)


class Plan(OperatorView):
    @extend_schema(operation_id="operator_tenants_plan", request=o.OperatorPlanChoice, responses=o.OperatorTenantShape)
    def put(self, _request: Request, tenant: str) -> Response:
        """Limits of the tenant's own stay."""
        set_plan(tenant=tenant_named(tenant), plan=self.read(o.OperatorPlanChoice)["plan"], actor=self.actor)
        return _shown(tenant)


class Grants(OperatorView):
    @extend_schema(operation_id="operator_grants_list", responses=GrantShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        """Newest first; used up and expired too."""
        rows = Grant.objects.filter(tenant_id=tenant_named(tenant).id)
        return self.page(rows, GrantShape, ordering=("-created_at", "id"), prepare=grant_values)

    @extend_schema(operation_id="operator_grants_create", request=o.NewGrant, responses={201: GrantShape})
    def post(self, _request: Request, tenant: str) -> Response:
        """Credit that may be used at once. With a reference that was given before it is the grant that was made then."""
        asked = self.read(o.NewGrant)
        amount_micros = _micros(asked.pop("amount_usd"))
        grant = grant_credit(tenant_id=tenant_named(tenant).id, amount_micros=amount_micros, actor=self.actor, **asked)
        return Response(GrantShape(grant_values(grant)).data, status=201)


class Debits(OperatorView):
    @extend_schema(operation_id="operator_debits_create", request=o.NewDebit, responses={201: o.DebitShape})
    def post(self, _request: Request, tenant: str) -> Response:
        """Take credit away. It is set aside first, and taken when nothing that runs can need it; else, after 10 s, a 409."""
        asked, tenant_id = self.read(o.NewDebit), tenant_named(tenant).id
        grant_id = asked.pop("grant")
        asked |= {"tenant_id": tenant_id, "amount_micros": _micros(asked.pop("amount_usd")), "actor": self.actor}
        hold = debit_balance(**asked) if grant_id is None else refund_credit(grant=_grant(grant_id, tenant_id), **asked)
        return Response(o.DebitShape(hold_values(hold)).data, status=201)


def tenants_values(tenants: Iterable[Any]) -> list[dict[str, Any]]:
    """Of a page of them, in three queries."""
    found, now = list(tenants), timezone.now()
    months = {tenant.id: month_of(now, tenant.time_zone).name for tenant in found}
    spent, lefts, prepaid = spent_in_months(months), lefts_picos(months, now=now), prepaid_among(months)
    names = ("id", "name", "time_zone", "created_at", "suspended_at")
    return [
        {
            **{name: getattr(tenant, name) for name in names},
            "plan": plan_name_of(tenant),
            "month": months[tenant.id],
            "month_spend_usd": picos_to_usd(spent.get(tenant.id, 0)),
            "is_prepaid": tenant.id in prepaid,
            "balance_usd": picos_to_usd(lefts.get(tenant.id, 0)),
        }
        for tenant in found
    ]


def hold_values(hold: Hold) -> dict[str, Any]:
    named = {name: getattr(hold, name) for name in ("id", "state", "reason", "reference")}
    left_picos = balance_of(hold.tenant_id).left_picos
    return {**named, "amount_usd": micros_to_usd(hold.amount_micros), "left_usd": picos_to_usd(left_picos)}


def _shown(tenant: str) -> Response:
    (values,) = tenants_values([tenant_named(tenant)])
    return Response(o.OperatorTenantShape(values).data)


def _micros(text: str) -> int:
    return usd_to_micros(text, param="amount_usd", max_usd=MAX_GRANT_MICROS // MICROS_A_USD)


def _grant(grant_id: Any, tenant_id: Any) -> Grant:
    found = grant_with_id(grant_id)
    if found is None or found.tenant_id != tenant_id:
        raise NotFound(f"this organisation has no grant {grant_id}", param="grant")
    return found

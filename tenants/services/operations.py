"""Our own account, for work of ours that runs as any customer's does: evals, and requests that are mirrored.

It is known by its plan, which nobody else is given: batch tier, no limit and no budget, and nothing to pay. A customer may
have taken its name; that makes nobody an operator.
"""

import secrets

from django.db import transaction

from tenants.errors import TenantExists
from tenants.models import Plan, Tenant, Tier
from tenants.selectors import OPERATIONS_PLAN
from tenants.services.tenants import create_tenant
from tenants.services.terms import define_plan

NAME = "headway-operations"


def operations_account(*, actor: str) -> Tenant:
    """It is made when it is asked for first."""
    found = _known()
    if found is not None:
        return found
    try:
        return _make(NAME, actor)
    except TenantExists:  # just made by somebody else, or a customer's
        return _known() or _make(f"{NAME}-{secrets.token_hex(4)}", actor)


def _known() -> Tenant | None:
    return Tenant.objects.filter(plan__name=OPERATIONS_PLAN).order_by("created_at", "id").first()


def _make(name: str, actor: str) -> Tenant:
    with transaction.atomic():
        plan = Plan.objects.filter(name=OPERATIONS_PLAN).first() or define_plan(
            name=OPERATIONS_PLAN, actor=actor, tier_ceiling=Tier.BATCH, discount_percent=100, is_self_service=False
        )
        return create_tenant(name=name, actor=actor, plan=plan)

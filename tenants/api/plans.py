"""Plans and limits."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.access import Action
from tenants.api import shapes
from tenants.api.base import TenantView
from tenants.api.keys import limits_of
from tenants.models import Plan
from tenants.selectors import TermsInForce, plan_of, terms_in_force
from tenants.services.plan_choice import choose_plan, plans_on_offer, preview_plan_change
from tenants.services.terms import set_limits


class Plans(TenantView):
    actions = {"GET": Action.VIEW_TENANT}

    @extend_schema(operation_id="plans_list", responses=shapes.PlansShape)
    def get(self, _request: Request, tenant: str) -> Response:
        """The plan that holds, and those you may choose: a handful, all on one page."""
        mine = plan_of(self.standing.tenant).name
        offered = [plan_values(plan, is_current=plan.name == mine) for plan in plans_on_offer(self.standing.tenant)]
        return Response(shapes.PlansShape({"results": offered}).data)


class PlanPreview(TenantView):
    actions = {"GET": Action.VIEW_BILLING}

    @extend_schema(operation_id="plans_preview", responses=shapes.PlanPreviewShape)
    def get(self, _request: Request, tenant: str, plan: str) -> Response:
        """What would change, field by field; nothing is changed."""
        changes = [change._asdict() for change in preview_plan_change(self.standing.tenant, plan)]
        return Response(shapes.PlanPreviewShape({"plan": plan, "changes": changes}).data)


class ChosenPlan(TenantView):
    actions = {"PUT": Action.MANAGE_BILLING}

    @extend_schema(operation_id="plans_choose", request=shapes.PlanChoice, responses=shapes.LimitsShape)
    def put(self, _request: Request, tenant: str) -> Response:
        """Gateways know within a second."""
        plan = self.read(shapes.PlanChoice)["plan"]
        terms = choose_plan(tenant=self.standing.tenant, plan=plan, actor=self.standing.actor)
        return Response(shapes.LimitsShape(limits_values(terms)).data)


class Limits(TenantView):
    actions = {"GET": Action.VIEW_LIMITS, "PUT": Action.MANAGE_LIMITS}

    @extend_schema(operation_id="limits_read", responses=shapes.LimitsShape)
    def get(self, _request: Request, tenant: str) -> Response:
        """All that hold: the plan's, and those of the organisation, its keys and models."""
        return Response(shapes.LimitsShape(limits_values(terms_in_force(self.standing.tenant))).data)

    @extend_schema(operation_id="limits_set", request=shapes.LimitsChange, responses=shapes.LimitsShape)
    def put(self, _request: Request, tenant: str) -> Response:
        """Of the organisation (never above its plan), of a key or of a model; what is not named stays."""
        asked = self.read(shapes.LimitsChange)
        terms = set_limits(
            tenant=self.standing.tenant,
            limits=limits_of(asked["limits"]),
            key_id=asked.get("key"),
            model=asked.get("model"),
            actor=self.standing.actor,
            by=self.standing.asker,
            is_self_service=True,
        )
        return Response(shapes.LimitsShape(limits_values(terms)).data)


def plan_values(plan: Plan, *, is_current: bool) -> dict[str, Any]:
    names = [name for name in shapes.PlanShape().fields if name not in {"is_current", "limits"}]
    limits = {kind.value: value for kind, value in plan.default_limits().items()}
    return {**{name: getattr(plan, name) for name in names}, "is_current": is_current, "limits": limits}


def limits_values(terms: TermsInForce) -> dict[str, Any]:
    limits = [
        {**vars(limit), "id": limit.id.partition("/")[2] if limit.scope == "model" else limit.id} for limit in terms.limits
    ]
    return {"plan": terms.plan, "time_zone": terms.time_zone, "limits": limits}

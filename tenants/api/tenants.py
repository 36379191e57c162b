"""Tenants: mine, one, founding, leaving, handing over."""

from typing import Any

from django.db.models import F
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.access import Action
from tenants.api import shapes
from tenants.api.base import HeadwayView, TenantView, person_of
from tenants.api.callers import Standing, standing_in, standing_of_member
from tenants.errors import UnknownMember
from tenants.models import ApiKey, Membership, Tenant, User
from tenants.selectors import plan_name_of
from tenants.services.members import leave, transfer_ownership
from tenants.services.tenants import found_tenant
from tenants.services.terms import set_limits, set_shadowing


class Tenants(HeadwayView):
    @extend_schema(operation_id="tenants_list", responses=shapes.TenantShape(many=True))
    def get(self, request: Request) -> Response:
        """Those you belong to, by name; of a key the one that it belongs to."""
        if isinstance(request.auth, ApiKey):
            only = Tenant.objects.filter(id=request.auth.tenant_id)
            name = request.auth.tenant.name
            return self.page(
                only, shapes.TenantShape, ordering=("name",), prepare=lambda _: tenant_values(standing_in(request, name))
            )
        mine = Membership.unscoped.filter(user=person_of(request)).select_related("tenant", "tenant__plan", "user")
        rows = mine.annotate(name=F("tenant__name"))
        return self.page(
            rows, shapes.TenantShape, ordering=("name",), prepare=lambda member: tenant_values(standing_of_member(member))
        )

    @extend_schema(operation_id="tenants_create", request=shapes.NewTenant, responses={201: shapes.TenantShape})
    def post(self, request: Request) -> Response:
        """Found one: you own it, on the free plan."""
        user = person_of(request)
        tenant = found_tenant(name=self.read(shapes.NewTenant)["name"], owner=user)
        return Response(shapes.TenantShape(tenant_values(standing_in(request, tenant.name))).data, status=201)


class OneTenant(TenantView):
    actions = {"GET": Action.VIEW_TENANT, "PATCH": Action.MANAGE_SETTINGS}

    @extend_schema(operation_id="tenants_read", responses=shapes.TenantShape)
    def get(self, _request: Request, tenant: str) -> Response:
        return Response(shapes.TenantShape(tenant_values(self.standing)).data)

    @extend_schema(operation_id="tenants_change", request=shapes.TenantChange, responses=shapes.TenantShape)
    def patch(self, _request: Request, tenant: str) -> Response:
        """What is not named stays. Gateways know within a second."""
        asked, mine, actor = self.read(shapes.TenantChange), self.standing.tenant, self.standing.actor
        if "time_zone" in asked:
            set_limits(tenant=mine, limits={}, time_zone=asked["time_zone"], actor=actor, is_self_service=True)
        if "is_mirroring_allowed" in asked:
            set_shadowing(tenant=mine, is_allowed=asked["is_mirroring_allowed"], actor=actor)
        return Response(shapes.TenantShape(tenant_values(self.standing)).data)


class Leave(TenantView):
    actions = {"POST": Action.VIEW_TENANT}

    @extend_schema(operation_id="tenants_leave", request=shapes.Removal, responses={204: None})
    def post(self, request: Request, tenant: str) -> Response:
        """You belong to it no more; your keys are revoked, or handed to another member. The last owner stays."""
        taker = member_named(self.standing.tenant, self.read(shapes.Removal).get("hand_keys_to"))
        leave(tenant=self.standing.tenant, user=person_of(request), hand_keys_to=taker)
        return Response(status=204)


class TransferOwnership(TenantView):
    actions = {"POST": Action.TRANSFER_OWNERSHIP}

    @extend_schema(operation_id="tenants_transfer", request=shapes.Transfer, responses={204: None})
    def post(self, request: Request, tenant: str) -> Response:
        """Another member becomes owner, and you an admin."""
        to = member_named(self.standing.tenant, self.read(shapes.Transfer)["to"])
        assert to is not None
        transfer_ownership(tenant=self.standing.tenant, owner=person_of(request), to=to, actor=self.standing.actor)
        return Response(status=204)


def member_named(tenant: Tenant, user_id: int | None) -> User | None:
    """Raises UnknownMember."""
    if user_id is None:
        return None
    row: Membership | None = Membership.objects.for_tenant(tenant).select_related("user").filter(user_id=user_id).first()
    if row is None:
        raise UnknownMember(f"{tenant.name} has no member {user_id}")
    return row.user


def tenant_values(standing: Standing) -> dict[str, Any]:
    tenant = standing.tenant
    return {
        "id": tenant.id,
        "name": tenant.name,
        "plan": plan_name_of(tenant),
        "time_zone": tenant.time_zone,
        "created_at": tenant.created_at,
        "is_suspended": tenant.suspended_at is not None,
        "is_mirroring_allowed": not tenant.no_shadow,
        "role": standing.role if standing.key is None else None,
        "actions": sorted(standing.actions),
    }

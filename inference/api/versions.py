"""Versions of models, and who stays on them."""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from inference.api import rollout_shapes as shapes
from inference.services.registry import pool_of
from inference.services.registry_reads import model_page
from inference.services.rollouts.pin_reads import pins_of
from inference.services.rollouts.pins import pin_version, unpin_version
from inference.services.rollouts.retiring import set_retirement
from tenants.access import Action
from tenants.api.base import HeadwayView, OperatorView, TenantView
from tenants.services.alerts import announce_version_retirement
from tenants.services.tenants import tenant_named


class Versions(OperatorView):
    @extend_schema(
        operation_id="operator_versions_list", parameters=[shapes.VersionsAsked], responses=shapes.VersionShape(many=True)
    )
    def get(self, _request: Request) -> Response:
        """Of one model, newest first: what each is made of, and where it stands."""
        return _versions(self, self.read_query(shapes.VersionsAsked, is_paged=True)["model"])


class Retirements(OperatorView):
    @extend_schema(operation_id="operator_versions_retire", request=shapes.Retirement, responses=shapes.VersionShape(many=True))
    def put(self, _request: Request) -> Response:
        """Say when a version goes: those who stay on it are told, and go with the stable one then."""
        asked = self.read(shapes.Retirement)
        model, version, at = asked["model"], asked["version"], asked["retires_at"]
        if at is None:
            set_retirement(public_id=model, label=version, retires_at=None, actor=self.actor)
        else:
            announce_version_retirement(model=model, version=version, retires_at=at, actor=self.actor)
        return _versions(self, model)


class OperatorPins(OperatorView):
    @extend_schema(operation_id="operator_pins_list", responses=shapes.PinShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        """Which version a tenant gets of each model."""
        return _pins(self, tenant_named(tenant).id)

    @extend_schema(operation_id="operator_pins_set", request=shapes.NewPin, responses=shapes.PinShape(many=True))
    def put(self, _request: Request, tenant: str) -> Response:
        """Keep it on any version that is not retired; one that does not serve is started."""
        found = tenant_named(tenant)
        _set_pin(found, self.read(shapes.NewPin), self.actor, is_self_service=False)
        return _pins(self, found.id)


class Pins(TenantView):
    actions = {"GET": Action.VIEW_TENANT, "PUT": Action.MANAGE_SETTINGS}

    @extend_schema(operation_id="pins_list", responses=shapes.PinShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        """Which version of each model answers your requests."""
        return _pins(self, self.standing.tenant.id)

    @extend_schema(operation_id="pins_set", request=shapes.NewPin, responses=shapes.PinShape(many=True))
    def put(self, _request: Request, tenant: str) -> Response:
        """Stay on a version that serves, until it retires; or (null) go with the stable one."""
        _set_pin(self.standing.tenant, self.read(shapes.NewPin), self.standing.actor, is_self_service=True)
        return _pins(self, self.standing.tenant.id)


def _set_pin(tenant: Any, asked: dict[str, Any], actor: str, *, is_self_service: bool) -> None:
    model, label = asked["model"], asked["version"]
    if label is None:
        unpin_version(tenant=tenant, public_id=model, actor=actor)
    else:
        pin_version(tenant=tenant, public_id=model, label=label, actor=actor, is_self_service=is_self_service)


def _pins(view: HeadwayView, tenant_id: UUID) -> Response:
    return view.whole(pins_of(tenant_id), shapes.PinShape)


def _versions(view: HeadwayView, public_id: str) -> Response:
    return view.whole(model_page(pool_of(public_id).model_id).rows, shapes.VersionShape)

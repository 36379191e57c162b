"""Webhook endpoints and deliveries."""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.access import Action
from tenants.api import shapes
from tenants.api.base import TenantView
from tenants.models import WebhookDelivery, WebhookEndpoint
from tenants.services import webhooks


class Webhooks(TenantView):
    actions = {"GET": Action.VIEW_WEBHOOKS, "POST": Action.MANAGE_WEBHOOKS}

    @extend_schema(operation_id="webhooks_list", responses=shapes.WebhookShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        rows = WebhookEndpoint.objects.for_tenant(self.standing.tenant)
        return self.page(rows, shapes.WebhookShape, ordering=("-created_at",), prepare=endpoint_values)

    @extend_schema(operation_id="webhooks_add", request=shapes.WebhookFields, responses={201: shapes.NewWebhookShape})
    def post(self, _request: Request, tenant: str) -> Response:
        """The secret that signs is in this answer, and in no other."""
        asked = self.read(shapes.WebhookFields)
        return _new(webhooks.add_endpoint(tenant=self.standing.tenant, actor=self.standing.actor, **asked), status=201)


class OneWebhook(TenantView):
    actions = {"GET": Action.VIEW_WEBHOOKS, "PATCH": Action.MANAGE_WEBHOOKS, "DELETE": Action.MANAGE_WEBHOOKS}

    @extend_schema(operation_id="webhooks_read", responses=shapes.WebhookShape)
    def get(self, _request: Request, tenant: str, endpoint_id: UUID) -> Response:
        found = webhooks.endpoint_of(self.standing.tenant, str(endpoint_id))
        return Response(shapes.WebhookShape(endpoint_values(found)).data)

    @extend_schema(operation_id="webhooks_change", request=shapes.WebhookChange, responses=shapes.WebhookShape)
    def patch(self, _request: Request, tenant: str, endpoint_id: UUID) -> Response:
        asked, standing = self.read(shapes.WebhookChange, partial=True), self.standing
        changed = webhooks.change_endpoint(tenant=standing.tenant, endpoint_id=str(endpoint_id), actor=standing.actor, **asked)
        return Response(shapes.WebhookShape(endpoint_values(changed)).data)

    @extend_schema(operation_id="webhooks_remove", responses={204: None})
    def delete(self, _request: Request, tenant: str, endpoint_id: UUID) -> Response:
        webhooks.remove_endpoint(tenant=self.standing.tenant, endpoint_id=str(endpoint_id), actor=self.standing.actor)
        return Response(status=204)


class RenewSecret(TenantView):
    actions = {"POST": Action.MANAGE_WEBHOOKS}

    @extend_schema(operation_id="webhooks_renew_secret", request=None, responses=shapes.NewWebhookShape)
    def post(self, _request: Request, tenant: str, endpoint_id: UUID) -> Response:
        """The old secret signs nothing more."""
        standing = self.standing
        return _new(
            webhooks.renew_secret(tenant=standing.tenant, endpoint_id=str(endpoint_id), actor=standing.actor), status=200
        )


class TestWebhook(TenantView):
    actions = {"POST": Action.MANAGE_WEBHOOKS}

    @extend_schema(operation_id="webhooks_test", request=None, responses={202: shapes.DeliveryShape})
    def post(self, _request: Request, tenant: str, endpoint_id: UUID) -> Response:
        """Send it an event of the type `test`."""
        standing = self.standing
        sent = webhooks.send_test(tenant=standing.tenant, endpoint_id=str(endpoint_id), actor=standing.actor)
        return Response(shapes.DeliveryShape(sent).data, status=202)


class Deliveries(TenantView):
    actions = {"GET": Action.VIEW_WEBHOOKS}

    @extend_schema(operation_id="deliveries_list", responses=shapes.DeliveryShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        """Of the last 30 days, newest first."""
        rows = WebhookDelivery.objects.for_tenant(self.standing.tenant).select_related("event", "endpoint")
        return self.page(rows, shapes.DeliveryShape, ordering=("-created_at",))


class Resend(TenantView):
    actions = {"POST": Action.MANAGE_WEBHOOKS}

    @extend_schema(operation_id="deliveries_resend", request=None, responses={202: shapes.DeliveryShape})
    def post(self, _request: Request, tenant: str, delivery_id: UUID) -> Response:
        """The same event again, under the same ids."""
        standing = self.standing
        sent = webhooks.resend(tenant=standing.tenant, delivery_id=str(delivery_id), actor=standing.actor)
        return Response(shapes.DeliveryShape(sent).data, status=202)


def endpoint_values(endpoint: WebhookEndpoint) -> dict[str, Any]:
    names = ("id", "url", "events", "created_at")
    return {**{name: getattr(endpoint, name) for name in names}, "is_enabled": endpoint.disabled_at is None}


def _new(made: webhooks.NewEndpoint, *, status: int) -> Response:
    values = endpoint_values(made.endpoint) | {"secret": made.secret}
    return Response(shapes.NewWebhookShape(values).data, status=status)

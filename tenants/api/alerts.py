"""Who is told by mail of what is about to happen; webhooks are told the same."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.access import Action
from tenants.api import shapes
from tenants.api.base import TenantView
from tenants.services.alert_mails import alert_roles, set_alert_roles


class AlertMails(TenantView):
    actions = {"GET": Action.VIEW_TENANT, "PUT": Action.MANAGE_SETTINGS}

    @extend_schema(operation_id="alert_mails_read", responses=shapes.AlertMailsShape)
    def get(self, _request: Request, tenant: str) -> Response:
        """By kind of event: the roles whose members are told."""
        return self._shown()

    @extend_schema(operation_id="alert_mails_set", request=shapes.AlertMailsShape, responses=shapes.AlertMailsShape)
    def put(self, _request: Request, tenant: str) -> Response:
        """An empty list: nobody is told. Kinds that are not named stay."""
        roles = self.read(shapes.AlertMailsShape)["roles"]
        set_alert_roles(tenant=self.standing.tenant, roles=roles, actor=self.standing.actor)
        return self._shown()

    def _shown(self) -> Response:
        return Response(shapes.AlertMailsShape({"roles": alert_roles(self.standing.tenant)}).data)

"""Operators: who looked at which tenant's pages, with whose eyes, and why."""

from drf_spectacular.utils import extend_schema
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from tenants.access import Role
from tenants.api.base import OperatorView
from tenants.models import OperatorVisit
from tenants.selectors import visits
from tenants.services.tenants import tenant_named
from tenants.services.visits import MAX_REASON_CHARS, begin_visit, end_visits


class VisitsAsked(s.Serializer):
    tenant = s.CharField(required=False, max_length=63, help_text="its name")
    operator = s.CharField(required=False, max_length=150, help_text="their user name")


class NewVisit(s.Serializer):
    tenant = s.CharField(max_length=63, help_text="its name")
    role = s.ChoiceField([role.value for role in Role], help_text="whose eyes its pages are seen with")
    reason = s.CharField(max_length=MAX_REASON_CHARS, help_text="the tenant can read it")


class VisitShape(s.Serializer):
    id = s.IntegerField()
    operator = s.CharField(source="operator.username")
    tenant = s.CharField(source="tenant.name")
    role = s.CharField()
    reason = s.CharField()
    started_at = s.DateTimeField()
    ends_at = s.DateTimeField(help_text="at the latest; earlier when it was ended")


class EndedShape(s.Serializer):
    ended = s.IntegerField(help_text="of your own visits, how many ran")


class Visits(OperatorView):
    @extend_schema(operation_id="operator_visits_list", parameters=[VisitsAsked], responses=VisitShape(many=True))
    def get(self, _request: Request) -> Response:
        """Of all operators, newest first. They are kept."""
        asked = self.read_query(VisitsAsked, is_paged=True)
        tenant = tenant_named(asked["tenant"]) if "tenant" in asked else None
        return self.page(visits(tenant=tenant, operator=asked.get("operator", "")), VisitShape, ordering=("-id",))

    @extend_schema(operation_id="operator_visits_create", request=NewVisit, responses={201: VisitShape})
    def post(self, _request: Request) -> Response:
        """See a tenant's pages in this session for an hour, and change nothing there. It ends the visit that you are on."""
        asked = self.read(NewVisit)
        tenant = tenant_named(asked.pop("tenant"))
        visit: OperatorVisit = begin_visit(operator=self.operator, tenant=tenant, actor=self.actor, **asked)
        return Response(VisitShape(visit).data, status=201)


class EndVisits(OperatorView):
    @extend_schema(operation_id="operator_visits_end", request=None, responses=EndedShape)
    def post(self, _request: Request) -> Response:
        """All of yours that run."""
        return Response({"ended": end_visits(operator=self.operator, actor=self.actor)})

"""Usage over time, requests with their receipts, the audit log."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from billing.selectors import requests_of_tenant, usage_of_request, with_corrections
from billing.services.usage_series import GROUPS, UsageQuery, UsageSeries, aligned, usage_series
from headway.errors import InvalidInput
from headway.months import zone_named
from tenants.access import Action
from tenants.api import shapes, usage_shapes
from tenants.api.base import TenantView
from tenants.api.usage_shapes import time_of
from tenants.models import ApiKey, AuditEntry, User

USUAL_RANGE = {"minute": timedelta(hours=1), "hour": timedelta(days=1), "day": timedelta(days=30)}


class Usage(TenantView):
    actions = {"GET": Action.VIEW_USAGE}

    @extend_schema(operation_id="usage_read", parameters=[usage_shapes.UsageAsked], responses=usage_shapes.UsageShape)
    def get(self, _request: Request, tenant: str) -> Response:
        """As the ledger has it at this moment. A range is widened to whole buckets, and told as it was taken."""
        asked = self.read_query(usage_shapes.UsageAsked)
        series = usage_series(self.standing.tenant.id, query_of(asked, self.standing.tenant.time_zone))
        return Response(usage_shapes.UsageShape(self._values(series)).data)

    def _values(self, series: UsageSeries) -> dict[str, Any]:
        query, labels = series.query, self._labels(series)
        return {
            "from": query.starts_at,
            "to": query.ends_at,
            "time_zone": query.time_zone,
            "granularity": query.granularity,
            "group_by": query.group_by,
            "as_of": timezone.now(),
            "totals": series.totals(),
            "buckets": [{**bucket.as_dict(), "label": labels.get(bucket.group, bucket.group)} for bucket in series.buckets],
        }

    def _labels(self, series: UsageSeries) -> dict[str, str]:
        """Names of keys and of people; revoked keys and former members have theirs too."""
        groups = {bucket.group for bucket in series.buckets}
        if series.query.group_by == "key":
            rows = ApiKey.objects.for_tenant(self.standing.tenant).filter(id__in=groups)
            return dict(rows.values_list("id", "name"))
        if series.query.group_by == "member":
            return {str(user.pk): str(user) for user in User.objects.filter(pk__in=groups)}
        return {}


class Requests(TenantView):
    actions = {"GET": Action.VIEW_REQUESTS}

    @extend_schema(
        operation_id="requests_list",
        parameters=[usage_shapes.RequestsAsked],
        responses=usage_shapes.RequestShape(many=True),
    )
    def get(self, _request: Request, tenant: str) -> Response:
        """Those that have ended, newest first."""
        asked = self.read_query(usage_shapes.RequestsAsked, is_paged=True)
        zone = zone_named(self.standing.tenant.time_zone) or UTC
        times = {name: time_of(asked.pop(name), zone, param=name) for name in ("from", "to") if name in asked}
        rows = requests_of_tenant(self.standing.tenant.id, starts_at=times.get("from"), ends_at=times.get("to"), **asked)
        return self.page(with_corrections(rows), usage_shapes.RequestShape, ordering=("-ended_at", "-id"))


class OneRequest(TenantView):
    actions = {"GET": Action.VIEW_REQUESTS}

    @extend_schema(operation_id="requests_read", responses=usage_shapes.RequestShape)
    def get(self, _request: Request, tenant: str, request_id: str) -> Response:
        found = usage_of_request(self.standing.tenant.id, request_id)
        if found is None:
            raise NotFound("there is no such request; one that has just ended is here a second later")
        return Response(usage_shapes.RequestShape(found).data)


class Audit(TenantView):
    actions = {"GET": Action.VIEW_AUDIT}

    @extend_schema(operation_id="audit_list", responses=shapes.AuditShape(many=True))
    def get(self, _request: Request, tenant: str) -> Response:
        """Who did what to what, from where; newest first."""
        rows = AuditEntry.objects.filter(tenant=self.standing.tenant)
        return self.page(rows, shapes.AuditShape, ordering=("-id",))


def query_of(asked: dict[str, Any], zone_of_tenant: str) -> UsageQuery:
    """Raises InvalidInput."""
    name, granularity = asked.get("time_zone", zone_of_tenant), asked["granularity"]
    zone = zone_named(name)
    if zone is None:
        raise InvalidInput(f"{name!r} is not a time zone, such as Europe/Berlin", param="time_zone")
    end: datetime = time_of(asked["to"], zone, param="to") if "to" in asked else timezone.now()
    try:
        start = time_of(asked["from"], zone, param="from") if "from" in asked else end - USUAL_RANGE[granularity]
    except OverflowError:
        raise InvalidInput("this range lies outside of the calendar", param="to") from None
    filters = tuple((group, str(asked[group])) for group in GROUPS if group in asked)
    return aligned(UsageQuery(start, end, name, granularity, asked.get("group_by", ""), filters))

"""Exports as pages list them: the operators', and those of an organisation."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.http import Http404, HttpRequest, HttpResponseBase

from billing.services.exports import exports_of, finished_export, name_of, pieces_of
from dashboard.paging import Page, by_number
from dashboard.request_log import MAX_LISTED_KEYS
from headway.errors import InvalidInput, NotFound
from headway.months import zone_named
from headway.streaming import file_of_pieces
from inference.selectors import model_ids
from tenants.selectors import keys_of_tenant

MOVING = ("asked", "running")


@dataclass(frozen=True)
class ExportList:
    page: Page
    day: date
    """Today, for the form: in the tenant's zone."""
    models: list[str]
    keys: list[Any]
    asked: Mapping[str, str]
    """What the form begins with: from, to, model, key."""

    @property
    def rows(self) -> list[tuple[Any, str]]:
        """Each with the name of its file."""
        return [(export, name_of(export)) for export in self.page.rows]

    @property
    def is_moving(self) -> bool:
        return any(export.state in MOVING for export in self.page.rows)

    @property
    def first_day(self) -> date:
        return _day(self.asked.get("from", "")) or self.day - timedelta(days=29)

    @property
    def last_day(self) -> date:
        return _day(self.asked.get("to", "")) or self.day

    @property
    def last_month(self) -> str:
        return f"{self.day.replace(day=1) - timedelta(days=1):%Y-%m}"


def export_list(tenant: Any, asked: Mapping[str, str], now: datetime) -> ExportList:
    """`tenant` None: the operators' own."""
    page = by_number(exports_of(tenant.id if tenant is not None else None), asked.get("page", ""))
    if tenant is None:
        return ExportList(page, now.date(), [], [], asked)
    zone = zone_named(tenant.time_zone) or ZoneInfo("UTC")
    return ExportList(page, now.astimezone(zone).date(), model_ids(), list(keys_of_tenant(tenant)[:MAX_LISTED_KEYS]), asked)


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def days_of(posted: Mapping[str, str]) -> tuple[date, date]:
    """The first and the last. Raises InvalidInput."""
    try:
        return date.fromisoformat(posted.get("from", "")), date.fromisoformat(posted.get("to", ""))
    except ValueError:
        raise InvalidInput("give both days of the range", param="from") from None


def export_file(request: HttpRequest, export_id: UUID, *, tenant_id: UUID | None) -> HttpResponseBase:
    try:
        export = finished_export(export_id, tenant_id=tenant_id)
        pieces = pieces_of(export)
    except (NotFound, FileNotFoundError):
        raise Http404("there is no such file") from None
    return file_of_pieces(request, name=name_of(export), content_type="text/csv; charset=utf-8", pieces=pieces)

"""Adjustments as operators see them: of all tenants, and what may be corrected of one request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from billing.services.adjustment_reads import adjustments_of_record, every_adjustment, record_of_request
from billing.services.adjustments import net_picos
from dashboard.paging import Page, by_id
from tenants.selectors import names_of_tenants


@dataclass(frozen=True)
class AdjustmentRow:
    adjustment: Any
    tenant: str


@dataclass(frozen=True)
class RecordFound:
    record: Any
    tenant: str
    net_picos: int
    adjustments: list[Any]

    @property
    def tokens(self) -> str:
        record = self.record
        return f"{record.prompt_tokens:,} input, {record.cached_tokens:,} of them cached, {record.completion_tokens:,} output"


@dataclass(frozen=True)
class AdjustmentList:
    rows: list[AdjustmentRow]
    page: Page
    query: str
    found: RecordFound | None
    """Of the request that was asked for; None: nothing was, or there is none."""


def adjustment_list(asked: Mapping[str, str]) -> AdjustmentList:
    query = asked.get("q", "").strip()[:64]
    page = by_id(every_adjustment(request_id=query), asked.get("page", ""))
    return AdjustmentList(_rows(page.rows), page, query, record_found(query) if query else None)


def record_found(request_id: str) -> RecordFound | None:
    record = record_of_request(request_id)
    if record is None:
        return None
    names = names_of_tenants([record.tenant_id])
    tenant = names.get(record.tenant_id, str(record.tenant_id))
    return RecordFound(record, tenant, net_picos(record), adjustments_of_record(record))


def _rows(adjustments: Iterable[Any]) -> list[AdjustmentRow]:
    found = list(adjustments)
    names = names_of_tenants({each.tenant_id for each in found})
    return [AdjustmentRow(each, names.get(each.tenant_id, str(each.tenant_id))) for each in found]

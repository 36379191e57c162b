"""Re-ratings as operators see them: which there were and how far they are, and what a new one would change."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from billing.services.re_rating import Span
from billing.services.re_rating_dry_run import ReRatingRow, dry_run_re_rating
from billing.services.re_rating_runs import is_stuck, re_ratings
from dashboard.paging import Page, by_id
from headway.errors import InvalidInput
from inference.selectors import model_ids
from tenants.errors import UnknownTenant
from tenants.selectors import names_of_tenants
from tenants.services.tenants import tenant_named

MAX_DRY_ROWS = 20


@dataclass(frozen=True)
class RunRow:
    run: Any
    tenant: str
    """Blank: of all."""
    state: str
    tone: str
    is_stuck: bool


@dataclass(frozen=True)
class RunList:
    rows: list[RunRow]
    page: Page
    model: str
    models: list[str]

    @property
    def is_filtered(self) -> bool:
        return bool(self.model or self.page.newer)

    @property
    def is_moving(self) -> bool:
        return any(row.run.ended_at is None and not row.is_stuck for row in self.rows)


@dataclass(frozen=True)
class TriedRow:
    tenant: str
    requests: int
    was_picos: int
    would_picos: int

    @property
    def more_picos(self) -> int:
        return self.would_picos - self.was_picos


@dataclass(frozen=True)
class Preview:
    span: Span
    rows: list[TriedRow]
    total: TriedRow
    num_left_out: int


def run_list(asked: Mapping[str, str], now: datetime) -> RunList:
    models, model = model_ids(), asked.get("model", "")[:200]
    runs = re_ratings().filter(model=model) if model else re_ratings()
    page = by_id(runs, asked.get("page", ""))
    names = names_of_tenants({run.tenant_id for run in page.rows if run.tenant_id is not None})
    return RunList([_row(run, names, now) for run in page.rows], page, model, models)


def preview_re_rating(span: Span) -> Preview:
    """Raises NotFound, InvalidInput."""
    found = dry_run_re_rating(span)
    names = names_of_tenants({row.tenant_id for row in found})
    return Preview(
        span=span,
        rows=[_tried(names.get(row.tenant_id, str(row.tenant_id)), [row]) for row in found[:MAX_DRY_ROWS]],
        total=_tried("All", found),
        num_left_out=max(0, len(found) - MAX_DRY_ROWS),
    )


def span_asked(asked: Mapping[str, Any]) -> Span:
    """Of the form. Raises InvalidInput for a tenant that is not there."""
    tenant = asked["tenant"].strip()
    try:
        tenant_id = tenant_named(tenant).id if tenant else None
    except UnknownTenant as error:
        raise InvalidInput(error.message, param="tenant") from None
    return Span(asked["model"], asked["version"], asked["starts_at"], asked["ends_at"], tenant_id)


def _tried(name: str, rows: list[ReRatingRow]) -> TriedRow:
    return TriedRow(name, *(sum(getattr(row, of) for row in rows) for of in ("requests", "was_picos", "would_picos")))


def _row(run: Any, names: Mapping[Any, str], now: datetime) -> RunRow:
    tenant = names.get(run.tenant_id, str(run.tenant_id)) if run.tenant_id is not None else ""
    stuck = is_stuck(run, now)
    if run.ended_at is not None:
        return RunRow(run, tenant, "done", "pill-good", stuck)
    if stuck:
        return RunRow(run, tenant, "cut off", "pill-bad", stuck)
    return RunRow(run, tenant, "waiting" if run.moved_at is None else "running", "pill-warn", stuck)

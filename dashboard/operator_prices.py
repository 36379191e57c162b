"""Prices as operators see them, and what a new one would have made of last month."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils import timezone

from billing.selectors import prices_of_models
from billing.services.price_dry_run import dry_run_price
from billing.services.prices import MAX_FACTOR, ids_in_force, price_in_force
from dashboard.paging import Page, by_id
from headway.months import month_of, previous_month_name
from inference.selectors import model_ids
from tenants.selectors import names_of_tenants

MAX_DRY_ROWS = 20
UNITS = (("input_micros", "Input"), ("cached_micros", "Cached input"), ("output_micros", "Output"))


@dataclass(frozen=True)
class PriceRow:
    price: Any
    state: str
    tone: str


@dataclass(frozen=True)
class PriceList:
    rows: list[PriceRow]
    page: Page
    model: str
    models: list[str]

    @property
    def is_filtered(self) -> bool:
        return bool(self.model or self.page.newer)


@dataclass(frozen=True)
class Kind:
    label: str
    before: int | None
    after: int
    is_far: bool
    """A hundred times as much, or as little."""


@dataclass(frozen=True)
class DryRow:
    tenant: str
    tier: str
    requests: int
    was_picos: int
    would_picos: int

    @property
    def more_picos(self) -> int:
        return self.would_picos - self.was_picos


@dataclass(frozen=True)
class Preview:
    """A price that is not set yet."""

    model: str
    tier: str
    month: str
    kinds: list[Kind]
    rows: list[DryRow]
    """Those it changes most."""
    total: DryRow
    num_left_out: int

    @property
    def is_far(self) -> bool:
        return any(kind.is_far for kind in self.kinds)


def price_list(asked: Mapping[str, str]) -> PriceList:
    """Newest first, each with whether it holds now."""
    model, now = asked.get("model", "")[:200], timezone.now()
    page = by_id(prices_of_models([model] if model else None), asked.get("page", ""))
    holds = ids_in_force({price.model for price in page.rows}, now=now)
    rows = [PriceRow(price, *_state(price, holds, now)) for price in page.rows]
    return PriceList(rows, page, model, model_ids())


def preview_price(asked: Mapping[str, Any]) -> Preview:
    """Raises InvalidInput, as the service that would set it does."""
    now = timezone.now()
    price = {name: asked[name] for name in ("model", "tier", *(unit for unit, _ in UNITS))}
    month = previous_month_name(month_of(now, "UTC").name)
    run = dry_run_price(**price, month=month)
    names = names_of_tenants({row.tenant_id for row in run.rows})
    rows = [
        DryRow(names.get(row.tenant_id, str(row.tenant_id)), row.tier, row.requests, row.was_picos, row.would_picos)
        for row in run.rows
    ]
    rows.sort(key=lambda row: -abs(row.more_picos))
    holds = price_in_force(asked["model"], asked["tier"], asked["effective_from"] or now)
    return Preview(
        model=asked["model"],
        tier=asked["tier"],
        month=month,
        kinds=[_kind(label, getattr(holds, unit, None), _after(asked, unit)) for unit, label in UNITS],
        rows=rows[:MAX_DRY_ROWS],
        total=DryRow("All", "", *run.total()),
        num_left_out=max(0, len(rows) - MAX_DRY_ROWS),
    )


def _after(asked: Mapping[str, Any], unit: str) -> int:
    found: int = asked["input_micros"] if asked[unit] is None else asked[unit]
    return found


def _kind(label: str, before: int | None, after: int) -> Kind:
    is_far = before is not None and (after > before * MAX_FACTOR or after * MAX_FACTOR < before)
    return Kind(label, before, after, is_far)


def _state(price: Any, holds: set[int], now: datetime) -> tuple[str, str]:
    if price.id in holds:
        return "in force", "pill-good"
    return ("later", "pill-warn") if price.effective_from > now else ("past", "")

"""Tax rates, exchange rates and what machines cost as operators see them: what holds, what comes, what was; and a new one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from django import forms
from django.db.models import Q, QuerySet
from django.utils import timezone

from billing.services.gpu_costs import check_gpu_cost, every_gpu_cost, set_gpu_cost
from billing.services.rates import (
    check_exchange_rate,
    check_tax_rate,
    exchange_rates,
    set_exchange_rate,
    set_tax_rate,
    tax_rates,
)
from billing.services.standing import IN_FORCE, STANDINGS, with_standing
from dashboard.operator_rate_forms import ExchangeRateForm, GpuCostForm, TaxRateForm
from dashboard.paging import Page, by_id
from headway.countries import COUNTRIES

TONES = {IN_FORCE: "pill-good", "coming": "pill-warn"}
PER_MILLE = 1000


@dataclass(frozen=True)
class Kind:
    """One of the three, in the words of its page."""

    slug: str
    title: str
    lead: str
    whose_label: str
    value_label: str
    form: type[forms.Form]
    scope: tuple[str, ...]
    rows: Callable[[], QuerySet[Any]]
    today: Callable[[datetime], date | datetime]
    whose: Callable[[Any], str]
    about: Callable[[Any], str]
    value: Callable[[Any], str]
    number: Callable[[Any], int]
    arguments: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Of the services, from what the form has checked."""
    check: Callable[..., Any]
    set: Callable[..., Any]
    effect: str
    """What a new one does, and does not."""


@dataclass(frozen=True)
class RateRow:
    whose: str
    about: str
    value: str
    since: date | datetime
    added_at: datetime
    standing: str
    tone: str


@dataclass(frozen=True)
class RateList:
    kind: Kind
    rows: list[RateRow]
    page: Page
    query: str
    standing: str
    kinds: tuple[Kind, ...]
    standings: tuple[str, ...] = STANDINGS

    @property
    def is_filtered(self) -> bool:
        return bool(self.query or self.standing or self.page.newer)


@dataclass(frozen=True)
class RatePreview:
    whose: str
    about: str
    before: str
    """Blank: nothing holds then."""
    after: str
    change: str
    """ "+8.7 %"; blank: there is nothing to compare it with."""
    since: date | datetime
    until: date | datetime | None
    """When the next one that is set already takes over."""
    is_past: bool
    word: str
    """To be typed."""


CLOSED = "Months that are closed stay as they are. The rate of a month's last day holds for all of it, when it is closed."
KINDS = {
    kind.slug: kind
    for kind in (
        Kind(
            slug="tax",
            title="Tax rates",
            lead="What each country taxes our service with. A rate is never changed: a new one takes its place from a day on.",
            whose_label="Country",
            value_label="Percent",
            form=TaxRateForm,
            scope=("country",),
            rows=tax_rates,
            today=lambda now: now.date(),
            whose=lambda rate: rate.country,
            about=lambda rate: f"{COUNTRIES.get(rate.country, '')}, {rate.name}",
            value=lambda rate: f"{rate.percent} %",
            number=lambda rate: rate.basis_points,
            arguments=dict,
            check=check_tax_rate,
            set=set_tax_rate,
            effect=CLOSED,
        ),
        Kind(
            slug="exchange",
            title="Exchange rates",
            lead="Units of a currency for one US dollar: prices are in dollars, and invoices in other currencies are made with "
            "these. A rate is never changed: a new one takes its place from a day on.",
            whose_label="Currency",
            value_label="For one US dollar",
            form=ExchangeRateForm,
            scope=("currency",),
            rows=exchange_rates,
            today=lambda now: now.date(),
            whose=lambda rate: rate.currency,
            about=lambda _rate: "",
            value=lambda rate: rate.units_per_usd,
            number=lambda rate: rate.rate_nanos,
            arguments=lambda asked: {
                "currency": asked["currency"],
                "units_per_usd": asked["rate"],
                "effective_from": asked["effective_from"],
            },
            check=check_exchange_rate,
            set=set_exchange_rate,
            effect=CLOSED,
        ),
        Kind(
            slug="machines",
            title="What machines cost",
            lead="US dollars an hour that one replica exists, for the reports' margins. A cost is never changed: a new one "
            "takes its place from an instant on.",
            whose_label="Machine or model",
            value_label="US dollars an hour",
            form=GpuCostForm,
            scope=("machine_kind", "model"),
            rows=every_gpu_cost,
            today=lambda now: now,
            whose=lambda cost: cost.model or cost.machine_kind,
            about=lambda cost: "model" if cost.model else "kind of machine",
            value=lambda cost: f"${cost.usd_an_hour}",
            number=lambda cost: cost.cost_micros,
            arguments=lambda asked: {**asked, "effective_from": asked["effective_from"] or timezone.now()},
            check=check_gpu_cost,
            set=set_gpu_cost,
            effect="Reports count with it at once, of the past too where it begins there. No customer is billed by it.",
        ),
    )
}


def rate_list(kind: Kind, asked: Mapping[str, str], now: datetime) -> RateList:
    query, standing = asked.get("q", "").strip()[:100], asked.get("standing", "")
    standing = standing if standing in STANDINGS else ""
    rows = with_standing(kind.rows(), kind.scope, kind.today(now))
    if query:
        wanted = Q()
        for name in kind.scope:
            wanted |= Q(**{f"{name}__istartswith": query})
        rows = rows.filter(wanted)
    page = by_id(rows.filter(standing=standing) if standing else rows, asked.get("page", ""))
    return RateList(kind, [_row(kind, rate) for rate in page.rows], page, query, standing, tuple(KINDS.values()))


def preview_rate(kind: Kind, asked: Mapping[str, Any], now: datetime) -> RatePreview:
    """Raises what setting it would."""
    rate = kind.check(**kind.arguments(asked))
    same = kind.rows().filter(**{name: getattr(rate, name) for name in kind.scope})
    before = same.filter(effective_from__lte=rate.effective_from).order_by("-effective_from").first()
    following = same.filter(effective_from__gt=rate.effective_from).order_by("effective_from").first()
    return RatePreview(
        whose=kind.whose(rate),
        about=kind.about(rate),
        before=kind.value(before) if before is not None else "",
        after=kind.value(rate),
        change=_change(kind.number(before), kind.number(rate)) if before is not None else "",
        since=rate.effective_from,
        until=following.effective_from if following is not None else None,
        is_past=rate.effective_from < kind.today(now),
        word=kind.whose(rate),
    )


def _row(kind: Kind, rate: Any) -> RateRow:
    return RateRow(
        whose=kind.whose(rate),
        about=kind.about(rate),
        value=kind.value(rate),
        since=rate.effective_from,
        added_at=rate.created_at,
        standing=rate.standing,
        tone=TONES.get(rate.standing, ""),
    )


def _change(before: int, after: int) -> str:
    """In tenths of a percent, half away from zero."""
    if not before:
        return ""
    more = after - before
    tenths = (2 * abs(more) * PER_MILLE + before) // (2 * before)
    return f"{'−' if more < 0 else '+'}{tenths // 10:,}.{tenths % 10} %" if more else "no change"

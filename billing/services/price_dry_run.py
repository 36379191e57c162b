"""What a month's requests would have cost by another price, beside what they did: exactly, and nothing is changed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, QuerySet, Sum

from billing.models import Adjustment, AdjustmentKind, Price, UsageRecord
from billing.selectors import prices_in_force
from billing.services.prices import UNIT, check_price
from billing.services.rating import ANSWER_ONLY, WHOLE, unit_price
from headway.errors import InvalidInput
from headway.months import MONTH

_BY = ("tier", "tenant_id")


@dataclass(frozen=True, slots=True)
class DryRunRow:
    tier: str
    tenant_id: UUID
    requests: int
    was_picos: int
    """With what was rated again since."""
    would_picos: int


@dataclass(frozen=True, slots=True)
class DryRun:
    model: str
    month: str
    rows: list[DryRunRow]
    """By tier and tenant."""

    def total(self) -> tuple[int, int, int]:
        """Requests; what they did cost; what they would have."""
        rows = self.rows
        return sum(row.requests for row in rows), sum(row.was_picos for row in rows), sum(row.would_picos for row in rows)


def dry_run_price(
    *,
    model: str,
    input_micros: int,
    output_micros: int,
    month: str,
    cached_micros: int | None = None,
    tier: str = "",
    unit: str = UNIT,
    tenant_id: UUID | None = None,
) -> DryRun:
    """Of the records of a billing month ("2026-10"), each with its own discount and the rule of its end.

    A price for all tiers is not that of tiers which have one of their own. Raises InvalidInput as `set_price` does.
    """
    amounts = check_price(
        model=model, tier=tier, input_micros=input_micros, cached_micros=cached_micros, output_micros=output_micros, unit=unit
    )
    _check_month(month)
    rows = _priced_so(model, tier).filter(billing_month=month)
    if tenant_id is not None:
        rows = rows.filter(tenant_id=tenant_id)
    price = Price(model=model, tier=tier, input_micros=amounts[0], cached_micros=amounts[1], output_micros=amounts[2])
    found = _rated_again(rows)
    for line in billable(rows):
        key = (line["tier"], line["tenant_id"])
        requests, was, would = found.get(key, (0, 0, 0))
        found[key] = (requests + line["requests"], was + int(line["was"] or 0), would + cost_of(price, line))
    return DryRun(model, month, [DryRunRow(*key, *found[key]) for key in sorted(found)])


def _check_month(month: str) -> None:
    if not MONTH.fullmatch(month):
        raise InvalidInput(f"a month is written like 2026-10: {month[:20]!r}", param="month")


def _priced_so(model: str, tier: str) -> QuerySet[UsageRecord]:
    rows = UsageRecord.objects.filter(model=model)
    if tier:
        return rows.filter(tier=tier)
    return rows.exclude(tier__in=[price.tier for price in prices_in_force(model) if price.tier])


def _rated_again(rows: QuerySet[UsageRecord]) -> dict[tuple[str, UUID], tuple[int, int, int]]:
    adjusted = Adjustment.objects.filter(record__in=rows.values("id"), kind=AdjustmentKind.RE_RATE)
    sums = adjusted.values_list(*_BY).annotate(sum=Sum("amount_picos"))
    return {(tier, tenant_id): (0, int(picos), 0) for tier, tenant_id, picos in sums}


def billable(rows: QuerySet[UsageRecord]) -> Iterable[dict[str, Any]]:
    """A price is linear: what many requests cost is what their tokens cost together, by discount and end."""
    whole = Q(end_state__in=WHOLE)
    lines: Iterable[dict[str, Any]] = rows.values(*_BY, "discount_percent").annotate(
        requests=Count("id"),
        was=Sum("amount_picos"),
        prompt=Sum("prompt_tokens", filter=whole),
        cached=Sum("cached_tokens", filter=whole),
        completion=Sum("completion_tokens", filter=Q(end_state__in=WHOLE | ANSWER_ONLY)),
    )
    return lines


def cost_of(price: Price, line: dict[str, Any]) -> int:
    """Of one line of `billable`, in pico-dollars."""
    return unit_price(price, line["discount_percent"]).amount_picos(
        prompt_tokens=line["prompt"] or 0, cached_tokens=line["cached"] or 0, completion_tokens=line["completion"] or 0
    )

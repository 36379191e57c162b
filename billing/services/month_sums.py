"""The ledger of a tenant's month: added up for its statement, and told apart again by line."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Case, Count, F, Q, QuerySet, Sum, Value, When

from billing.errors import StatementDiffers
from billing.invoice_models import LineKind, StatementLine, TokenKind
from billing.models import Adjustment, MonthSpend, Price, UsageRecord
from billing.services.rating import ANSWER_ONLY, WHOLE, UnitPrice, unit_price
from billing.services.statement_lines import (
    AdjustmentSum,
    UsageSum,
    adjustment_source,
    unit_picos,
)

FORMER_UNIT_PICOS = 1_000_000
"""Before amounts were exact, each request was rounded up to a micro-dollar."""

_IS_WHOLE = Q(end_state__in=WHOLE)
_HAS = {
    TokenKind.INPUT: _IS_WHOLE & Q(prompt_tokens__gt=F("cached_tokens")),
    TokenKind.CACHED: _IS_WHOLE & Q(cached_tokens__gt=0),
    TokenKind.OUTPUT: Q(completion_tokens__gt=0),
}


def usage_sums(tenant_id: UUID, month: str, starts_at: datetime) -> tuple[list[UsageSum], dict[tuple[str, str], UnitPrice]]:
    """One query over the month's records; as many sums as there are models, tiers, price versions and discounts. With the
    list prices they name.
    """
    grouped: QuerySet[Any] = (
        _priced(tenant_id, month)
        .annotate(is_late=_is_late(starts_at))
        .values("model", "tier", "price_version", "discount_percent", "is_late")
        .annotate(
            requests=Count("id"),
            input=Sum(F("prompt_tokens") - F("cached_tokens"), filter=_IS_WHOLE, default=0),
            cached=Sum("cached_tokens", filter=_IS_WHOLE, default=0),
            output=Sum("completion_tokens"),
            amount=Sum("amount_picos"),
            **{f"with_{kind.value}": Count("id", filter=has) for kind, has in _HAS.items()},
        )
        .order_by("model", "tier", "price_version", "discount_percent", "is_late")
    )
    sums = [_sum_of(row) for row in grouped]
    prices = prices_of(sums)
    explained = [_explained(each, prices.get((each.model, each.price_version)), tenant_id, month, starts_at) for each in sums]
    return explained, prices


def adjustment_sums(tenant_id: UUID, month: str) -> list[AdjustmentSum]:
    grouped = (
        Adjustment.objects.filter(tenant_id=tenant_id, billing_month=month)
        .values("kind", "reason", "model")
        .annotate(count=Count("id"), amount=Sum("amount_picos"))
        .order_by("model", "kind", "reason")
    )
    return [
        AdjustmentSum(row["kind"], row["reason"], row["model"], count=row["count"], amount_picos=int(row["amount"]))
        for row in grouped
    ]


def prices_of(rows: Iterable[UsageSum] | Iterable[UsageRecord]) -> dict[tuple[str, str], UnitPrice]:
    """The list prices they name, by model and version."""
    prices = Price.objects.filter(model__in={each.model for each in rows})
    return {(price.model, str(price.version)): unit_price(price) for price in prices}


def check_against_ledger(tenant_id: UUID, month: str, of_lines: int) -> None:
    """What lines come to, records with adjustments, and the month's own sum: all three the same, to the pico-dollar.

    Call it while nobody adds to the month. Raises StatementDiffers.
    """
    records = UsageRecord.objects.filter(tenant_id=tenant_id, billing_month=month)
    adjustments = Adjustment.objects.filter(tenant_id=tenant_id, billing_month=month)
    of_ledger = sum(int(rows.aggregate(sum=Sum("amount_picos"))["sum"] or 0) for rows in (records, adjustments))
    row = MonthSpend.objects.filter(tenant_id=tenant_id, month=month, key_id="", model="").first()
    of_month = row.amount_picos if row is not None else 0
    if not of_lines == of_ledger == of_month:
        raise StatementDiffers(
            f"{month} of tenant {tenant_id}: the lines come to {of_lines} pico-dollars, the ledger to {of_ledger}, "
            f"its sum of the month to {of_month}"
        )


def requests_of_line(line: StatementLine) -> QuerySet[UsageRecord]:
    """The usage records that a line adds up, oldest first. Of credits, what is carried, and tax: none.

    The tokens of a usage line are the sum of theirs, its amount that × its unit price; a discount is the difference to
    their list price; an adjustment corrects them.
    """
    statement = line.statement
    tenant_id, month = statement.tenant_id, statement.month
    rows: QuerySet[Any]
    if line.kind == LineKind.USAGE:
        rows = _priced(tenant_id, month).annotate(is_late=_is_late(statement.starts_at)).filter(is_late=line.is_late)
        rows = rows.filter(_HAS[TokenKind(line.token_kind)], tier=line.tier, price_version=line.price_version)
        return rows.filter(model=line.model).order_by("ended_at", "id")
    if line.kind == LineKind.DISCOUNT:
        rows = _priced(tenant_id, month).filter(model=line.model, discount_percent=line.discount_percent)
        return rows.order_by("ended_at", "id")
    if line.kind == LineKind.ROUNDING:
        return _priced(tenant_id, month).order_by("ended_at", "id")
    if line.kind == LineKind.ADJUSTMENT:
        corrected = adjustments_of_line(line).exclude(record=None).values("record_id")
        return UsageRecord.objects.filter(id__in=corrected).order_by("ended_at", "id")
    return UsageRecord.objects.none()


def adjustments_of_line(line: StatementLine) -> QuerySet[Adjustment]:
    """The adjustments that a line adds up; of other kinds of lines: none."""
    statement = line.statement
    rows = Adjustment.objects.filter(tenant_id=statement.tenant_id, billing_month=statement.month, model=line.model)
    if line.kind != LineKind.ADJUSTMENT:
        return rows.none()
    kind, _, reason = line.source.partition(":")
    assert line.source == adjustment_source(kind, reason)
    return rows.filter(kind=kind, reason=reason).order_by("id")


def _priced(tenant_id: UUID, month: str) -> QuerySet[UsageRecord]:
    """Of a month: those that have a price and an end that is billed."""
    return UsageRecord.objects.filter(
        tenant_id=tenant_id, billing_month=month, amount_picos__isnull=False, end_state__in=WHOLE | ANSWER_ONLY
    )


def _is_late(starts_at: datetime) -> Case:
    return Case(When(ended_at__lt=starts_at, then=Value(True)), default=Value(False), output_field=BooleanField())


def _sum_of(row: dict[str, Any]) -> UsageSum:
    return UsageSum(
        model=row["model"],
        tier=row["tier"],
        price_version=row["price_version"],
        discount_percent=row["discount_percent"],
        is_late=row["is_late"],
        requests=row["requests"],
        tokens={
            TokenKind.INPUT: int(row["input"]),
            TokenKind.CACHED: int(row["cached"]),
            TokenKind.OUTPUT: int(row["output"]),
        },
        requests_with={kind: row[f"with_{kind.value}"] for kind in TokenKind},
        amount_picos=int(row["amount"]),
    )


def _explained(each: UsageSum, price: UnitPrice | None, tenant_id: UUID, month: str, starts_at: datetime) -> UsageSum:
    """Where it is not what its tokens cost: because its requests were rounded up, each by itself? Told so if they were."""
    if price is None:
        return each
    net = {kind: unit_picos(price, kind, each.discount_percent) for kind in TokenKind}
    exact = sum(count * net[kind] for kind, count in each.tokens.items())
    if not 0 < each.amount_picos - exact < each.requests * FORMER_UNIT_PICOS:
        return each
    rows = (
        _priced(tenant_id, month)
        .annotate(is_late=_is_late(starts_at))
        .filter(model=each.model, tier=each.tier, price_version=each.price_version)
        .filter(discount_percent=each.discount_percent, is_late=each.is_late)
        .values_list("prompt_tokens", "cached_tokens", "completion_tokens", "end_state", "amount_picos")
    )
    for prompt, cached, completion, end_state, amount in rows.iterator(chunk_size=2000):
        whole = end_state in WHOLE
        cost = completion * net[TokenKind.OUTPUT]
        cost += (prompt - cached) * net[TokenKind.INPUT] + cached * net[TokenKind.CACHED] if whole else 0
        if amount != cost and amount != -(-cost // FORMER_UNIT_PICOS) * FORMER_UNIT_PICOS:
            return each
    return replace(each, former_rounding_picos=each.amount_picos - exact)

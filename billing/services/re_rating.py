"""Rate a span of requests again by another price: by adjustments, never by edits, and the second time by none.

What a span is (`rows_of_span`), and one step through it: a batch of one tenant's requests in a transaction with the note of
how far the run is. So whoever dies leaves whole steps, whoever goes on does none twice, and two who do it at once take turns.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet, Sum
from django.utils import timezone

from billing.models import Adjustment, AdjustmentKind, Price, UsageRecord
from billing.re_rating_models import ReRating
from billing.services.adjustments import MAX_REASON_CHARS, Change, add_adjustments
from billing.services.rating import amount_of, unit_price
from billing.services.usage_rows import wait_for_writers
from headway.errors import InvalidInput, NotFound
from headway.money import picos_to_usd
from tenants.services.audit import record_audit

BATCH = 500


@dataclass(frozen=True)
class Span:
    """Which requests, and by which price: those that ended in [starts_at, ends_at) and whose tier the price is of."""

    model: str
    price_version: int
    starts_at: datetime
    ends_at: datetime
    tenant_id: UUID | None = None
    """None: of all tenants."""


def rows_of_span(span: Span) -> tuple[Price, QuerySet[UsageRecord]]:
    """The price, and the requests that it is of. Raises NotFound for a price that is not there, InvalidInput."""
    if span.starts_at >= span.ends_at:
        raise InvalidInput("a span ends after it begins", param="ends_at")
    price = Price.objects.filter(model=span.model, version=span.price_version).first()
    if price is None:
        raise NotFound(f"{span.model!r} has no price version {span.price_version}", param="version")
    rows = UsageRecord.objects.filter(model=span.model, ended_at__gte=span.starts_at, ended_at__lt=span.ends_at)
    if price.tier:
        rows = rows.filter(tier=price.tier)
    if span.tenant_id is not None:
        rows = rows.filter(tenant_id=span.tenant_id)
    return price, rows


def check_reason(reason: str) -> None:
    """Raises InvalidInput."""
    if not reason.strip() or len(reason) > MAX_REASON_CHARS:
        raise InvalidInput(f"say why, in 1 to {MAX_REASON_CHARS} characters: it is shown beside the amounts", param="reason")


def span_of(run: ReRating) -> Span:
    return Span(run.model, run.price_version, run.starts_at, run.ends_at, run.tenant_id)


def step(run_id: int, *, now: datetime | None = None) -> bool:
    """The run's next batch, or, where there is none, its end. False: it has ended, by us or before.

    Each with its own discount. What was corrected or given stays corrected and given; no request comes to cost less than
    nothing. What reaches the ledger of a tenant behind the step is left out: a run of the same span takes it.
    """
    with transaction.atomic():
        run = ReRating.objects.select_for_update().filter(id=run_id, ended_at=None).first()
        if run is None:
            return False
        price, rows = rows_of_span(span_of(run))
        if run.requests_total is None:
            run.requests_total = rows.count()
        batch, run.moved_at = _next_batch(rows, run), timezone.now()
        if batch:
            _rate(run, batch, price, now or timezone.now())
        else:
            _end(run)
        run.save()
    return bool(batch)


def raise_by(*, wanted: int, before: int, rated: int, net: int) -> int:
    """What is to be added to what one request costs, in pico-dollars: it was rated at `before`; adjustments have added
    `net` to that, and `rated` of it re-ratings."""
    return max(wanted - before - rated, -(before + net))


def _rate(run: ReRating, batch: list[UsageRecord], price: Price, now: datetime) -> None:
    """The batch is of one tenant."""
    tenant_id, ids = batch[0].tenant_id, [record.id for record in batch]
    wait_for_writers([tenant_id])
    rated, net = sums_by_record(ids, kind=AdjustmentKind.RE_RATE), sums_by_record(ids)
    changes = []
    for record in UsageRecord.objects.filter(id__in=ids).order_by("id"):  # as they are, now that nobody writes them
        wanted = amount_of(record.end_state, record, unit_price(price, record.discount_percent))
        adjusted = {"rated": rated.get(record.id, 0), "net": net.get(record.id, 0)}
        if more := raise_by(wanted=wanted, before=record.amount_picos or 0, **adjusted):
            changes.append(Change(tenant_id, record, more))
    if changes:
        add_adjustments(changes, kind=AdjustmentKind.RE_RATE, reason=run.reason, actor=run.actor, now=now)
    run.requests += len(batch)
    run.adjusted += len(changes)
    run.amount_picos += sum(change.amount_picos for change in changes)
    run.last_tenant_id, run.last_request_at, run.last_record_id = tenant_id, batch[-1].ended_at, batch[-1].id


def _end(run: ReRating) -> None:
    run.ended_at = timezone.now()
    amount_usd = picos_to_usd(run.amount_picos)
    after = {"run": run.id, "requests": run.requests, "adjusted": run.adjusted, "amount_usd": amount_usd}
    record_audit(actor=run.actor, action="usage.re_rated", target=run.model, after=after)


def sums_by_record(ids: Iterable[int] | Any, **of: str) -> dict[int, int]:
    """What was adjusted so far."""
    rows = Adjustment.objects.filter(record__in=ids, **of).values_list("record_id").annotate(sum=Sum("amount_picos"))
    return {record_id: int(picos) for record_id, picos in rows.order_by()}


def _next_batch(rows: QuerySet[UsageRecord], run: ReRating) -> list[UsageRecord]:
    """Of one tenant, by when they ended: as an index has them."""
    rows = rows.only("id", "tenant_id", "ended_at")
    if run.last_tenant_id is not None:
        mine = rows.filter(tenant_id=run.last_tenant_id, ended_at__gte=run.last_request_at)
        later = Q(ended_at__gt=run.last_request_at) | Q(id__gt=run.last_record_id)
        if found := list(mine.filter(later).order_by("ended_at", "id")[:BATCH]):
            return found
        rows = rows.filter(tenant_id__gt=run.last_tenant_id)
    following = rows.order_by("tenant_id").values_list("tenant_id", flat=True).first()
    return [] if following is None else list(rows.filter(tenant_id=following).order_by("ended_at", "id")[:BATCH])

"""Rate a span of requests again by another price: by adjustments, never by edits, and the second time by none."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet, Sum

from billing.models import Adjustment, AdjustmentKind, Price, UsageRecord
from billing.services.adjustments import Change, add_adjustments
from billing.services.rating import amount_of, unit_price
from billing.services.usage_rows import wait_for_writers
from headway.errors import InvalidInput, NotFound
from headway.money import picos_to_usd
from tenants.services.audit import record_audit

BATCH = 500


@dataclass(slots=True)
class ReRated:
    requests: int = 0
    """That were looked at."""
    adjusted: int = 0
    amount_picos: int = 0
    """Below zero: they cost less now."""


def re_rate(
    *,
    model: str,
    version: int,
    starts_at: datetime,
    ends_at: datetime,
    reason: str,
    actor: str,
    tenant_id: UUID | None = None,
    now: datetime | None = None,
    count: Callable[[int, int], None] = lambda _adjusted, _amount_picos: None,
) -> ReRated:
    """The requests that ended in [starts_at, ends_at) and whose tier that price is of, each with its own discount.

    What was corrected or given stays corrected and given; no request comes to cost less than nothing. Each batch is a
    transaction; one that stopped half way is called again. `count` is told, in it, what the batch has changed. Raises
    NotFound for a price that is not there, InvalidInput.
    """
    price, rows = rows_of_span(
        model=model, version=version, starts_at=starts_at, ends_at=ends_at, reason=reason, tenant_id=tenant_id
    )
    done = ReRated()
    owners = rows.order_by("tenant_id").values_list("tenant_id", flat=True).distinct()
    for owner in list(owners):
        for ids in _batches(rows.filter(tenant_id=owner)):
            _rate_batch(owner, ids, price, done, count, reason=reason, actor=actor, now=now or datetime.now(UTC))
    after = {"price": version, "from": starts_at.isoformat(), "to": ends_at.isoformat(), "requests": done.requests}
    after |= {"adjusted": done.adjusted, "amount_usd": picos_to_usd(done.amount_picos), "reason": reason}
    record_audit(actor=actor, action="usage.re_rate", target=model, after=after)
    return done


def rows_of_span(
    *, model: str, version: int, starts_at: datetime, ends_at: datetime, reason: str, tenant_id: UUID | None
) -> tuple[Price, QuerySet[UsageRecord]]:
    """The price, and the requests that it is of. Raises NotFound, InvalidInput."""
    if starts_at >= ends_at:
        raise InvalidInput("a span ends after it begins", param="ends_at")
    if not reason.strip():
        raise InvalidInput("say why: it is shown beside the amounts", param="reason")
    price = Price.objects.filter(model=model, version=version).first()
    if price is None:
        raise NotFound(f"{model!r} has no price version {version}", param="version")
    rows = UsageRecord.objects.filter(model=model, ended_at__gte=starts_at, ended_at__lt=ends_at)
    if price.tier:
        rows = rows.filter(tier=price.tier)
    if tenant_id is not None:
        rows = rows.filter(tenant_id=tenant_id)
    return price, rows


def _rate_batch(
    tenant_id: UUID,
    ids: Sequence[int],
    price: Price,
    done: ReRated,
    count: Callable[[int, int], None],
    *,
    reason: str,
    actor: str,
    now: datetime,
) -> None:
    with transaction.atomic():
        wait_for_writers([tenant_id])
        rated, net = _sums(ids, kind=AdjustmentKind.RE_RATE), _sums(ids)
        changes = []
        for record in UsageRecord.objects.filter(id__in=ids).order_by("id"):
            before = record.amount_picos or 0
            wanted = amount_of(record.end_state, record, unit_price(price, record.discount_percent))
            more = max(wanted - before - rated.get(record.id, 0), -(before + net.get(record.id, 0)))
            if more:
                changes.append(Change(tenant_id, record, more))
        if changes:
            add_adjustments(changes, kind=AdjustmentKind.RE_RATE, reason=reason, actor=actor, now=now)
            count(len(changes), sum(change.amount_picos for change in changes))
    done.requests += len(ids)
    done.adjusted += len(changes)
    done.amount_picos += sum(change.amount_picos for change in changes)


def _sums(ids: Sequence[int], **of: str) -> dict[int, int]:
    """What was adjusted so far, by record."""
    rows = Adjustment.objects.filter(record__in=ids, **of).values_list("record_id").annotate(sum=Sum("amount_picos"))
    return {record_id: int(picos) for record_id, picos in rows}


def _batches(rows: QuerySet[UsageRecord]) -> Iterator[list[int]]:
    """Ids, in their order."""
    last = 0
    while ids := list(rows.filter(id__gt=last).order_by("id").values_list("id", flat=True)[:BATCH]):
        yield ids
        last = ids[-1]

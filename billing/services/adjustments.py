"""Correct what a request cost, or give something for nothing: never an edit, always a further line of the ledger."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Sum

from billing.errors import ReferenceUsed
from billing.models import Adjustment, AdjustmentKind, UsageRecord
from billing.services.month_spend import MonthSums, Spent
from billing.services.open_months import OpenMonths
from billing.services.references import tidy_reference
from billing.services.usage_rows import wait_for_writers
from billing.services.usage_slots import SlotSums
from headway.errors import InvalidInput, NotFound
from headway.money import picos_to_usd
from tenants.selectors import tenant_with_id, time_zones
from tenants.services.audit import record_audit

MAX_REASON_CHARS = 500
MAX_PICOS = 2**62
"""Of one adjustment: more than four million dollars are somebody's mistake in the unit."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be added to one record's cost; `record` None: goodwill, for nothing."""

    tenant_id: UUID
    record: UsageRecord | None
    amount_picos: int


def adjust_usage(
    *,
    tenant_id: UUID,
    request_id: str | None,
    amount_picos: int,
    kind: str,
    reason: str,
    actor: str,
    reference: str = "",
    now: datetime | None = None,
) -> Adjustment:
    """Add `amount_picos` (below zero: take off) to what a request costs; without a request it is goodwill, below zero.

    It is on the statement of the request's month, or, where that is closed, of the month that runs. The same `reference`
    again, with the same wish, is the adjustment that was made then. Raises InvalidInput for what would take a request's cost
    below zero, NotFound for a request that is not this tenant's, ReferenceUsed.
    """
    _check(request_id, amount_picos, kind, reason)
    tenant, reference = tenant_with_id(tenant_id), tidy_reference(reference)
    if tenant is None:
        raise NotFound("there is no such organisation", param="tenant_id")
    now, wish = now or datetime.now(UTC), (tenant_id, request_id or "", amount_picos, kind, reason)
    try:
        with transaction.atomic():
            wait_for_writers([tenant_id])
            known = Adjustment.objects.filter(reference=reference).first() if reference else None
            if known is not None:
                return _same(known, wish)
            record = _record_of(tenant_id, request_id) if request_id is not None else None
            if record is not None:
                _check_net(record, amount_picos)
            change = Change(tenant_id, record, amount_picos)
            made = add_adjustments([change], kind=kind, reason=reason, actor=actor, reference=reference, now=now)
            after = {"amount_usd": picos_to_usd(amount_picos), "kind": kind, "reason": reason, "month": made[0].billing_month}
            after |= {"reference": reference} if reference else {}
            record_audit(actor=actor, action="usage.adjust", target=request_id or tenant.name, tenant=tenant, after=after)
            return made[0]
    except IntegrityError:
        # Two at once, of two tenants: those of one wait for each other.
        if not Adjustment.objects.filter(reference=reference).exclude(reference="").exists():
            raise
        raise _used(reference) from None


def _same(known: Adjustment, wish: tuple[UUID, str, int, str, str]) -> Adjustment:
    """Raises ReferenceUsed where it was made for another wish."""
    if (known.tenant_id, known.request_id, known.amount_picos, known.kind, known.reason) != wish:
        raise _used(known.reference)
    return known


def _used(reference: str) -> ReferenceUsed:
    return ReferenceUsed(f"the reference {reference!r} was used for another adjustment", param="reference")


def add_adjustments(
    changes: Iterable[Change], *, kind: str, reason: str, actor: str, now: datetime, reference: str = ""
) -> list[Adjustment]:
    """Insert them with their months and slots. Call it in a transaction, after `wait_for_writers` of their tenants.

    `reference`: of a single one.
    """
    changes = list(changes)
    tenant_ids = {change.tenant_id for change in changes}
    zones = time_zones(tenant_ids)
    months, slots, sums = OpenMonths(zones, tenant_ids, now=now), SlotSums(zones), MonthSums(zones, now=now)
    made = [adjustment_of(change, months, kind=kind, reason=reason, actor=actor, reference=reference) for change in changes]
    sums.hold(spent_of(each) for each in made)
    Adjustment.objects.bulk_create(made, batch_size=500)
    for each in made:
        count(each, sums, slots)
    slots.write()
    sums.write()
    return made


def adjustment_of(change: Change, months: OpenMonths, *, kind: str, reason: str, actor: str, reference: str = "") -> Adjustment:
    record = change.record
    usage_at = record.ended_at if record is not None else months.now
    copied: dict[str, Any] = {}
    if record is not None:
        copied = {name: getattr(record, name) for name in ("request_id", "key_id", "member_id", "model", "version", "tier")}
    return Adjustment(
        tenant_id=change.tenant_id,
        record=record,
        kind=kind,
        amount_picos=change.amount_picos,
        reason=reason[:MAX_REASON_CHARS],
        reference=reference,
        actor=actor[:200],
        usage_at=usage_at,
        billing_month=months.month_of(change.tenant_id, usage_at),
        created_at=months.now,
        **copied,
    )


def spent_of(adjustment: Adjustment) -> Spent:
    return Spent(
        tenant_id=adjustment.tenant_id,
        key_id=adjustment.key_id,
        model=adjustment.model,
        month=adjustment.billing_month,
        amount_picos=adjustment.amount_picos,
        corrected_month=adjustment.record.billing_month if adjustment.record is not None else "",
    )


def count(adjustment: Adjustment, sums: MonthSums, slots: SlotSums) -> None:
    """Amounts alone: it is no request, and has no tokens."""
    sums.add(spent_of(adjustment))
    names = ("tenant_id", "key_id", "member_id", "model", "version", "tier")
    fields = {name: getattr(adjustment, name) for name in names} | {"ended_at": adjustment.usage_at}
    slots.add_amount(fields, adjustment.amount_picos)


def net_picos(record: UsageRecord) -> int:
    """What it costs with all that was adjusted so far."""
    adjusted = Adjustment.objects.filter(record=record).aggregate(sum=Sum("amount_picos"))["sum"]
    return (record.amount_picos or 0) + int(adjusted or 0)


def _check(request_id: str | None, amount_picos: int, kind: str, reason: str) -> None:
    if kind not in AdjustmentKind.values or kind == AdjustmentKind.LATE_RECORD:
        raise InvalidInput("an adjustment is a correction, re_rate or goodwill", param="kind")
    if request_id is None and (kind != AdjustmentKind.GOODWILL or amount_picos > 0):
        raise InvalidInput("without a request only goodwill is given, and it takes something off", param="request_id")
    if not amount_picos or abs(amount_picos) > MAX_PICOS:
        most = picos_to_usd(MAX_PICOS // 10**12 * 10**12)
        raise InvalidInput(f"an adjustment changes something, by at most {most} US dollars", param="amount")
    if not reason.strip() or len(reason) > MAX_REASON_CHARS:
        raise InvalidInput(f"say why, in 1 to {MAX_REASON_CHARS} characters: it is shown beside the amount", param="reason")


def _record_of(tenant_id: UUID, request_id: str) -> UsageRecord:
    record = UsageRecord.objects.filter(tenant_id=tenant_id, request_id=request_id).first()
    if record is None:
        raise NotFound(f"there is no request {request_id[:64]!a} of this organisation in the ledger", param="request_id")
    return record


def _check_net(record: UsageRecord, amount_picos: int) -> None:
    net = net_picos(record)
    if net + amount_picos < 0:
        raise InvalidInput(f"this request costs {picos_to_usd(net)} US dollars: no more can be taken off", param="amount")

"""Write usage records. The door through which the gateway's journal reaches the ledger."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from django.db import transaction

from billing.errors import UsageRefused
from billing.models import Adjustment, AdjustmentKind, UsageRecord
from billing.services.adjustments import Change, adjustment_of, count, net_picos, spent_of
from billing.services.attempt_rows import AttemptDraft, write_attempts
from billing.services.month_spend import MonthSums, Spent
from billing.services.open_months import OpenMonths
from billing.services.usage_rows import insert_new, wait_for_writers
from billing.services.usage_slots import FIELDS as SLOT_FIELDS
from billing.services.usage_slots import SlotSums
from tenants.selectors import time_zones


class UsageDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A usage record on its way: what the gateway knows at the end of a request. Times are unix seconds (UTC)."""

    request_id: str
    tenant_id: str
    key_id: str
    member_id: int | None
    route: str
    model: str
    tier: str
    end_state: str
    gateway: str
    started_at_s: float
    ended_at_s: float
    version: str = ""
    pool: str = ""
    replica: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    usage_source: str = "none"  # engine: final figures; partial: running ones; counted: by us; none: not known
    queue_ms: int = 0
    ttft_ms: int | None = None
    total_ms: int = 0
    finish_reason: str = ""
    attempts: int = 0
    journal_sequence: int = 0
    route_reason: str = ""
    resumes: int = 0
    is_resumed_exactly: bool = True
    parks: int = 0
    price_version: str = ""
    discount_percent: int = 0  # off the list price: in the amount already
    amount_picos: int | None = None  # None: there was no price
    replica_epoch: int = 0
    attempt_rows: tuple[AttemptDraft, ...] = ()  # none where it was answered whole at the first attempt


GATEWAY_LOST = "gateway_lost"

_SPENT = ("tenant_id", "key_id", "model", "billing_month", "amount_picos", "started_at")
_DIRECT = tuple(name for name in UsageDraft.__struct_fields__ if name not in {"started_at_s", "ended_at_s", "attempt_rows"})
# Text that a client or an engine wrote, and how much of it the ledger has room for. Everything else is ours and must fit.
_FOREIGN_TEXT_CHARS = {"route": 64, "model": 200, "finish_reason": 32}


def record_usage(*, drafts: list[UsageDraft], now: datetime | None = None) -> int:
    """Insert all, and add them to their tenants' months and hours, in one transaction. Returns how many were given.

    One whose request id is in the ledger already is left out, but what is there says `gateway_lost` (we thought its
    gateway had died with it): a final record takes that one's place, and one that knows how far the request had come that
    of one that does not; so it is the same in whatever order they come. Raises UsageRefused when a record is not valid; a
    database may say so with a DataError or IntegrityError of its own.
    """
    # In one order everywhere, so that two who write the same requests wait for each other and do not deadlock.
    given = {draft.request_id: draft for draft in sorted(drafts, key=lambda draft: _rank(draft.end_state, draft.usage_source))}
    fields = {request_id: _fields(draft) for request_id, draft in given.items()}
    rows = [fields[request_id] for request_id in sorted(fields)]
    now = now or datetime.now(UTC)
    tenant_ids = {each["tenant_id"] for each in rows}
    with transaction.atomic():
        wait_for_writers(tenant_ids)
        zones = time_zones(tenant_ids)
        months = OpenMonths(zones, tenant_ids, now=now)
        for each in rows:
            each["billing_month"] = months.month_of(each["tenant_id"], each["ended_at"])
        slots, sums = SlotSums(zones), MonthSums(zones, now=now)
        sums.hold(_spent(each) for each in fields.values())
        before = _ranks_in_ledger(fields)
        insert_new(rows, recorded_at=now)
        found = _ranks_in_ledger(fields)
        # SQLite's OR IGNORE passes over a row that breaks any rule, not only the unique request id.
        if len(found) < len(fields):
            raise UsageRefused("the ledger did not take a usage record", missing=sorted(fields.keys() - found.keys()))
        replaced = sorted(name for name, its in found.items() if its < _rank_of(fields[name]))
        lost = _in_ledger(replaced) if replaced else {}
        adjusted: list[Adjustment] = []
        for request_id in replaced:
            late = _replace_lost(lost[request_id], fields[request_id], months, sums, slots)
            adjusted += [late] if late is not None else []
        for request_id in sorted(found.keys() - before.keys() - lost.keys()):
            sums.add(_spent(fields[request_id]))
            slots.add(fields[request_id])
        Adjustment.objects.bulk_create(adjusted)
        attempts = {request_id: given[request_id].attempt_rows for request_id in fields.keys() - before.keys()}
        attempts |= {request_id: _attempts_of(given[request_id]) for request_id in replaced}
        write_attempts(attempts, replaced=replaced)
        slots.write()
        sums.write()
    return len(drafts)


def _ranks_in_ledger(request_ids: Iterable[str]) -> dict[str, int]:
    rows = UsageRecord.objects.filter(request_id__in=list(request_ids))
    told = rows.values_list("request_id", "end_state", "usage_source")
    return {request_id: _rank(end_state, usage_source) for request_id, end_state, usage_source in told}


def _in_ledger(request_ids: Iterable[str]) -> dict[str, UsageRecord]:
    rows = UsageRecord.objects.filter(request_id__in=list(request_ids))
    return {row.request_id: row for row in rows.only("request_id", "usage_source", "billing_month", "started_at", *SLOT_FIELDS)}


def _replace_lost(
    lost: UsageRecord, fields: dict[str, Any], months: OpenMonths, sums: MonthSums, slots: SlotSums
) -> Adjustment | None:
    """One that is on a statement already, or was corrected, stays as it is: what it cost more (or less) is adjusted."""
    if months.is_closed(lost.tenant_id, lost.billing_month) or lost.adjustments.exists():
        return _adjust_lost(lost, fields, months, sums, slots)
    if UsageRecord.objects.filter(request_id=lost.request_id, end_state=GATEWAY_LOST).update(**fields):
        sums.replace(_spent({name: getattr(lost, name) for name in _SPENT}), _spent(fields))
        slots.add({name: getattr(lost, name) for name in SLOT_FIELDS}, times=-1)
        slots.add(fields)
    return None


def _adjust_lost(
    lost: UsageRecord, fields: dict[str, Any], months: OpenMonths, sums: MonthSums, slots: SlotSums
) -> Adjustment | None:
    if lost.adjustments.filter(kind=AdjustmentKind.LATE_RECORD).exists():
        return None  # it has come before
    # No record costs less than nothing, whatever was taken off what we thought it had cost.
    more = max((fields["amount_picos"] or 0) - (lost.amount_picos or 0), -net_picos(lost))
    if not more:
        return None
    reason = f"its final record came after its statement or a correction: it ended as {fields['end_state']}"
    change = Change(lost.tenant_id, lost, more)
    late = adjustment_of(change, months, kind=AdjustmentKind.LATE_RECORD, reason=reason, actor="system")
    sums.hold([spent_of(late)])
    count(late, sums, slots)
    return late


def _attempts_of(final: UsageDraft) -> tuple[AttemptDraft, ...]:
    """Always rows, for a record that may go on saying `gateway_lost`."""
    if final.attempt_rows or not final.attempts:
        return final.attempt_rows
    only = AttemptDraft(
        number=1,
        replica=final.replica,
        replica_epoch=final.replica_epoch,
        ending=final.end_state,
        model=final.model,
        version=final.version,
        ttft_ms=None if final.ttft_ms is None else max(0, final.ttft_ms - final.queue_ms),
        started_at_s=final.started_at_s,
        ended_at_s=final.ended_at_s,
        prompt_tokens=final.prompt_tokens,
        completion_tokens=final.completion_tokens,
        max_prompt_tokens=final.prompt_tokens,
        max_completion_tokens=final.completion_tokens,
    )
    return (only,)


def _spent(fields: dict[str, Any]) -> Spent:
    return Spent(
        tenant_id=UUID(str(fields["tenant_id"])),
        key_id=fields["key_id"],
        model=fields["model"],
        month=fields["billing_month"],
        began_at=fields["started_at"],
        amount_picos=fields["amount_picos"] or 0,
    )


def _rank(end_state: str, usage_source: str) -> int:
    """The higher takes the place of the lower: lost and nothing known, lost and known how far it had come, final."""
    return 2 if end_state != GATEWAY_LOST else int(usage_source != "none")


def _rank_of(fields: dict[str, Any]) -> int:
    return _rank(fields["end_state"], fields["usage_source"])


def _fields(draft: UsageDraft) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(draft, name) for name in _DIRECT}
    for name, max_chars in _FOREIGN_TEXT_CHARS.items():
        fields[name] = fields[name].replace("\0", "\ufffd")[:max_chars]
    fields["tenant_id"] = UUID(draft.tenant_id)
    fields["started_at"] = datetime.fromtimestamp(draft.started_at_s, UTC)
    fields["ended_at"] = datetime.fromtimestamp(draft.ended_at_s, UTC)
    return fields

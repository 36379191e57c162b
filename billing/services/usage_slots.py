"""Usage by quarters of an hour and by hours: what the ledger says, added up in the transaction that changes it.

So a page over a million records reads some thousand rows, and shows what the ledger holds, at once and exactly.
"""

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from billing.models import TTFT_BOUNDS_MS, TTFT_BUCKETS, UsageHour, UsageQuarter

QUARTER_S = 900
HOUR_S = 3600
SLOTS = ((UsageQuarter, QUARTER_S), (UsageHour, HOUR_S))
SUCCESSES = frozenset({"done", "client_gone_after_first_token", "client_gone_before_first_token"})
"""Everything else is an error: of ours, of an engine, or of the request."""

SUMS = (
    "requests",
    "errors",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "amount_micros",
    "ttft_count",
    "ttft_ms_sum",
    *TTFT_BUCKETS,
)
_GROUPED = ("tenant_id", "key_id", "member_id", "model", "tier", "ended_at", "end_state", "amount_micros", "ttft_ms")
FIELDS = (*_GROUPED, "prompt_tokens", "cached_tokens", "completion_tokens")
"""Of a usage record: what is needed to add it."""


class _Slot(NamedTuple):
    tenant_id: UUID
    starts_at: datetime
    key_id: str
    member_id: int
    model: str
    tier: str


class SlotSums:
    """Records to be added (or, replaced by better ones, taken away) in one transaction, then `write`."""

    def __init__(self) -> None:
        self._tables = [_TableSums(model, seconds) for model, seconds in SLOTS]

    def add(self, record: Mapping[str, Any], *, times: int = 1) -> None:
        """`times` -1 takes it away."""
        numbers = _numbers_of(record)
        for table in self._tables:
            table.add(record, numbers, times)

    def write(self) -> None:
        for table in self._tables:
            table.write()


class _TableSums:
    def __init__(self, model: type[UsageQuarter] | type[UsageHour], seconds: int) -> None:
        self._model, self._seconds = model, seconds
        self._sums: defaultdict[_Slot, dict[str, int]] = defaultdict(lambda: dict.fromkeys(SUMS, 0))
        self._newest: dict[_Slot, datetime] = {}

    def add(self, record: Mapping[str, Any], numbers: Mapping[str, int], times: int) -> None:
        slot = _slot_of(record, self._seconds)
        sums = self._sums[slot]
        for name, number in numbers.items():
            sums[name] += times * number
        if times > 0:
            self._newest[slot] = max(record["ended_at"], self._newest.get(slot, record["ended_at"]))

    def write(self) -> None:
        """In one order, so that two who write do not wait for each other in a ring."""
        if not self._sums:
            return
        names = [*_Slot._fields, "newest_at", *SUMS]
        table, quote = self._model._meta.db_table, connection.ops.quote_name
        newer = f"CASE WHEN excluded.newest_at > {table}.newest_at THEN excluded.newest_at ELSE {table}.newest_at END"
        changes = ", ".join(f"{quote(name)} = {table}.{quote(name)} + excluded.{quote(name)}" for name in SUMS)
        sql = (
            f"INSERT INTO {table} ({', '.join(map(quote, names))}) VALUES ({', '.join(['%s'] * len(names))}) "
            f"ON CONFLICT ({', '.join(map(quote, _Slot._fields))}) DO UPDATE SET newest_at = {newer}, {changes}"
        )
        with connection.cursor() as cursor:
            cursor.executemany(sql, [self._row(slot) for slot in sorted(self._sums)])

    def _row(self, slot: _Slot) -> list[Any]:
        at = connection.ops.adapt_datetimefield_value
        tenant_id = slot.tenant_id if connection.features.has_native_uuid_field else slot.tenant_id.hex
        newest = self._newest.get(slot, slot.starts_at)
        rest = [slot.key_id, slot.member_id, slot.model, slot.tier]
        return [tenant_id, at(slot.starts_at), *rest, at(newest), *(self._sums[slot][name] for name in SUMS)]


def bucket_of(ttft_ms: int) -> str:
    """The name of the column that counts it: the first whose bound it does not pass."""
    return next((name for bound, name in zip(TTFT_BOUNDS_MS, TTFT_BUCKETS, strict=False) if ttft_ms <= bound), TTFT_BUCKETS[-1])


def _slot_of(record: Mapping[str, Any], width_s: int) -> _Slot:
    seconds = int(record["ended_at"].timestamp()) // width_s * width_s
    return _Slot(
        tenant_id=UUID(str(record["tenant_id"])),
        starts_at=datetime.fromtimestamp(seconds, UTC),
        key_id=record["key_id"],
        member_id=record["member_id"] or 0,
        model=record["model"],
        tier=record["tier"],
    )


def _numbers_of(record: Mapping[str, Any]) -> dict[str, int]:
    ttft_ms: int | None = record["ttft_ms"]
    numbers = {
        "requests": 1,
        "errors": int(record["end_state"] not in SUCCESSES),
        "prompt_tokens": record["prompt_tokens"],
        "cached_tokens": record["cached_tokens"],
        "completion_tokens": record["completion_tokens"],
        "amount_micros": record["amount_micros"] or 0,
    }
    if ttft_ms is not None:
        numbers |= {"ttft_count": 1, "ttft_ms_sum": ttft_ms, bucket_of(ttft_ms): 1}
    return numbers

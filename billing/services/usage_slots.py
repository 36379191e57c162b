"""Usage by quarters of an hour, by hours and by days: what the ledger says, added up in the transaction that changes it.

So a page over a million records reads some thousand rows, and shows what the ledger holds, at once and exactly.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from billing.models import TTFT_BOUNDS_MS, TTFT_BUCKETS, UsageDay, UsageHour, UsageQuarter, UsageSlot
from headway.months import UTC_NAME, day_start

QUARTER_S = 900
HOUR_S = 3600
SUCCESSES = frozenset({"done", "client_gone_after_first_token", "client_gone_before_first_token"})
"""Everything else is an error: of ours, of an engine, or of the request."""

TTFT_TARGET_MS = 500
"""Met when the first token came within it."""
GAP_TARGET_MS = 50
"""Met when the tokens after the first came less than so far apart, on average over the answer."""
ON_TARGET = ("ttft_on_target", "gap_count", "gap_on_target")

SUMS = (
    "requests",
    "errors",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "amount_picos",
    "ttft_count",
    "ttft_ms_sum",
    *TTFT_BUCKETS,
    *ON_TARGET,
)
_GROUPED = ("tenant_id", "key_id", "member_id", "model", "version", "tier", "ended_at", "end_state", "amount_picos", "ttft_ms")
FIELDS = (*_GROUPED, "prompt_tokens", "cached_tokens", "completion_tokens", "total_ms")
"""Of a usage record: what is needed to add it."""


class _Slot(NamedTuple):
    tenant_id: UUID
    starts_at: datetime
    key_id: str
    member_id: int
    model: str
    version: str
    tier: str


class SlotSums:
    """Records to be added (or, replaced by better ones, taken away) in one transaction, then `write`."""

    def __init__(self, zones: Mapping[UUID, str]) -> None:
        """`zones`: the tenants' time zones, whose days are theirs."""
        self._zones = zones
        self._tables = [_TableSums(model) for model in (UsageQuarter, UsageHour, UsageDay)]

    def add(self, record: Mapping[str, Any], *, times: int = 1) -> None:
        """`times` -1 takes it away."""
        self._add(record, _numbers_of(record), times)

    def add_amount(self, fields: Mapping[str, Any], picos: int) -> None:
        """Of an adjustment. `fields`: of what it corrects; `ended_at` among them."""
        self._add(fields, {"amount_picos": picos}, 1)

    def _add(self, fields: Mapping[str, Any], numbers: Mapping[str, int], times: int) -> None:
        at, tenant_id = fields["ended_at"], UUID(str(fields["tenant_id"]))
        day = day_start(at, self._zones.get(tenant_id, UTC_NAME))
        rest = (fields["key_id"], fields["member_id"] or 0, fields["model"], fields["version"], fields["tier"])
        for table, starts_at in zip(self._tables, (_floor(at, QUARTER_S), _floor(at, HOUR_S), day), strict=True):
            table.add(_Slot(tenant_id, starts_at, *rest), at, numbers, times)

    def write(self) -> None:
        for table in self._tables:
            table.write()


class _TableSums:
    def __init__(self, model: type[UsageSlot]) -> None:
        self._model = model
        self._sums: defaultdict[_Slot, dict[str, int]] = defaultdict(lambda: dict.fromkeys(SUMS, 0))
        self._newest: dict[_Slot, datetime] = {}

    def add(self, slot: _Slot, at: datetime, numbers: Mapping[str, int], times: int) -> None:
        sums = self._sums[slot]
        for name, number in numbers.items():
            sums[name] += times * number
        if times > 0:
            self._newest[slot] = max(at, self._newest.get(slot, at))

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
        rest = [slot.key_id, slot.member_id, slot.model, slot.version, slot.tier]
        return [tenant_id, at(slot.starts_at), *rest, at(newest), *(self._sums[slot][name] for name in SUMS)]


def bucket_of(ttft_ms: int) -> str:
    """The name of the column that counts it: the first whose bound it does not pass."""
    return TTFT_BUCKETS[bisect_left(TTFT_BOUNDS_MS, ttft_ms)]


def _floor(at: datetime, width_s: int) -> datetime:
    return datetime.fromtimestamp(int(at.timestamp()) // width_s * width_s, UTC)


def _numbers_of(record: Mapping[str, Any]) -> dict[str, int]:
    ttft_ms: int | None = record["ttft_ms"]
    numbers = {
        "requests": 1,
        "errors": int(record["end_state"] not in SUCCESSES),
        "prompt_tokens": record["prompt_tokens"],
        "cached_tokens": record["cached_tokens"],
        "completion_tokens": record["completion_tokens"],
        "amount_picos": record["amount_picos"] or 0,
    }
    if ttft_ms is not None:
        numbers |= {"ttft_count": 1, "ttft_ms_sum": ttft_ms, bucket_of(ttft_ms): 1}
        numbers["ttft_on_target"] = int(ttft_ms <= TTFT_TARGET_MS)
        gaps = record["completion_tokens"] - 1
        if gaps > 0:
            numbers |= {"gap_count": 1, "gap_on_target": int(record["total_ms"] - ttft_ms < GAP_TARGET_MS * gaps)}
    return numbers

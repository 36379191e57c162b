"""Quarters, hours and days always say what the ledger says, whatever comes in which order, twice or replaced."""

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, time
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from billing.models import TTFT_BUCKETS, Adjustment, MonthSpend, UsageDay, UsageHour, UsageQuarter, UsageRecord, UsageSlot
from billing.services.adjustments import adjust_usage, net_picos
from billing.services.ledger import UsageDraft, record_usage
from billing.services.open_months import close_month
from billing.services.usage_slots import HOUR_S, QUARTER_S, SUCCESSES, SUMS, bucket_of
from headway.errors import InvalidInput
from tenants.models import Tenant
from tenants.services.terms import set_limits
from tests.inference.gateway.usage_drafts import draft

NOW = datetime(2027, 4, 2, tzinfo=UTC)
OTHER_TENANT = "99999999-9999-4999-8999-999999999999"


def quarter(at: datetime, _tenant_id: str) -> float:
    return int(at.timestamp()) // QUARTER_S * QUARTER_S


def hour(at: datetime, _tenant_id: str) -> float:
    return int(at.timestamp()) // HOUR_S * HOUR_S


def day(at: datetime, tenant_id: str) -> float:
    """Of the tenant's own calendar."""
    zone = Tenant.objects.filter(id=tenant_id).values_list("time_zone", flat=True).first() or "UTC"
    return datetime.combine(at.astimezone(ZoneInfo(zone)).date(), time(), ZoneInfo(zone)).timestamp()


SLOTS: tuple[tuple[type[UsageSlot], Callable[[datetime, str], float]], ...] = (
    (UsageQuarter, quarter),
    (UsageHour, hour),
    (UsageDay, day),
)


def from_ledger(start_of: Callable[[datetime, str], float]) -> dict[Any, dict[str, int]]:
    """The ledger added up the slow way."""
    sums: dict[Any, dict[str, int]] = defaultdict(lambda: dict.fromkeys(SUMS, 0))
    for record in UsageRecord.objects.all():
        into = sums[_group(record, start_of(record.ended_at, str(record.tenant_id)))]
        into["requests"] += 1
        into["errors"] += record.end_state not in SUCCESSES
        into["amount_picos"] += record.amount_picos or 0
        for name in ("prompt_tokens", "cached_tokens", "completion_tokens"):
            into[name] += getattr(record, name)
        if record.ttft_ms is not None:
            into["ttft_count"] += 1
            into["ttft_ms_sum"] += record.ttft_ms
            into[bucket_of(record.ttft_ms)] += 1
            into["ttft_on_target"] += record.ttft_ms <= 500
            if record.completion_tokens >= 2:
                into["gap_count"] += 1
                into["gap_on_target"] += (record.total_ms - record.ttft_ms) / (record.completion_tokens - 1) < 50
    for adjustment in Adjustment.objects.all():
        into = sums[_group(adjustment, start_of(adjustment.usage_at, str(adjustment.tenant_id)))]
        into["amount_picos"] += adjustment.amount_picos
    return dict(sums)


def _group(row: Any, starts_s: float) -> tuple[Any, ...]:
    return str(row.tenant_id), starts_s, row.key_id, row.member_id or 0, row.model, row.version, row.tier


def from_table(model: type[UsageSlot]) -> dict[Any, dict[str, int]]:
    found = {}
    for row in model._default_manager.all():
        key = _group(row, row.starts_at.timestamp())
        assert key not in found
        found[key] = {name: getattr(row, name) for name in SUMS}
    return {key: sums for key, sums in found.items() if any(sums.values())}


def assert_equal() -> None:
    for model, start_of in SLOTS:
        assert from_table(model) == from_ledger(start_of)


def assert_months_equal() -> None:
    """What months say is the sum of what has their billing month."""
    expected: dict[Any, int] = defaultdict(int)
    lines: list[Any] = [*UsageRecord.objects.all(), *Adjustment.objects.all()]
    for row in lines:
        for scope in {("", ""), (row.key_id, ""), ("", row.model)}:
            expected[str(row.tenant_id), row.billing_month, *scope] += row.amount_picos or 0
    rows = MonthSpend.objects.values_list("tenant_id", "month", "key_id", "model", "amount_picos")
    told = {(str(tenant), *scope): picos for tenant, *scope, picos in rows if picos}
    assert told == {key: picos for key, picos in expected.items() if picos}


ZONES = ("UTC", "Europe/Berlin", "Asia/Kathmandu", "America/Los_Angeles", "Pacific/Chatham")
TIMES_S = [
    1_800_000_000.0,
    1_800_000_899.9,
    1_800_000_900.0,
    1_800_090_000.0,
    datetime(2027, 3, 28, 1, tzinfo=UTC).timestamp(),  # clocks change in Berlin
    datetime(2027, 3, 31, 22, 30, tzinfo=UTC).timestamp(),  # April there already
]
drafts = st.builds(
    lambda number, end_state, **values: draft(f"r{number}", end_state, **values),
    number=st.integers(0, 12),
    end_state=st.sampled_from(["done", "gateway_lost", "engine_error", "refused"]),
    tenant_id=st.sampled_from([draft("x").tenant_id, OTHER_TENANT]),
    key_id=st.sampled_from(["k1", "k2"]),
    member_id=st.sampled_from([None, 7]),
    model=st.sampled_from(["m", "n"]),
    version=st.sampled_from(["", "v1"]),
    tier=st.sampled_from(["standard", "batch"]),
    ended_at_s=st.sampled_from(TIMES_S),
    prompt_tokens=st.integers(0, 50),
    cached_tokens=st.integers(0, 9),
    completion_tokens=st.integers(0, 50),
    ttft_ms=st.sampled_from([None, 0, 50, 51, 500, 501, 12_800, 99_999]),
    total_ms=st.sampled_from([0, 100, 549, 550, 1_000, 13_000]),
    amount_picos=st.sampled_from([None, 0, 17]),
)


TENANTS = (draft("x").tenant_id, OTHER_TENANT)
steps = st.one_of(
    st.lists(drafts, min_size=1, max_size=8),
    st.tuples(st.just("adjust"), st.integers(0, 12), st.integers(-20, 20).filter(bool)),
    st.tuples(st.just("move"), st.sampled_from(TENANTS), st.sampled_from(ZONES)),
    st.tuples(st.just("close"), st.sampled_from(TENANTS), st.sampled_from(["2027-01", "2027-03", "2027-04"])),
)


class AnyOrder(TestCase):
    @settings(max_examples=60, deadline=None)
    @given(all_steps=st.lists(steps, max_size=7))
    def test_the_sums_are_the_ledgers(self, all_steps: list[Any]) -> None:
        """Records in any order, corrected, late; zones and months that change under them."""
        for number, tenant_id in enumerate(TENANTS):
            Tenant.objects.create(id=tenant_id, name=f"tenant-{number}")
        closed: dict[Any, int] = {}
        for step in all_steps:
            match step:
                case ("adjust", int(number), int(picos)):
                    _adjust(number, picos)
                case ("move", tenant_id, zone):
                    set_limits(tenant=Tenant.objects.get(id=tenant_id), limits={}, time_zone=zone, actor="test")
                case ("close", tenant_id, month):
                    close_month(tenant_id=UUID(tenant_id), month=month)
                    closed.setdefault((tenant_id, month), _billed(tenant_id, month))
                case batch:
                    _record(batch)
            assert_equal()
            assert_months_equal()
            assert closed == {key: _billed(*key) for key in closed}, "what is on a statement stays as it was"


def _record(batch: list[UsageDraft]) -> None:
    # One request is one tenant's.
    owned = [each for each in batch if each.tenant_id == OTHER_TENANT] or batch
    tenant = owned[0].tenant_id
    record_usage(drafts=[_renamed(each, tenant) for each in owned if each.tenant_id == tenant], now=NOW)


def _adjust(number: int, picos: int) -> None:
    """Of the record in that place; one that would cost less than nothing is refused."""
    record = UsageRecord.objects.order_by("id")[number : number + 1].first()
    if record is None:
        return
    asked: dict[str, Any] = {"kind": "correction", "reason": "test", "actor": "test", "now": NOW}
    before = net_picos(record)
    with suppress(InvalidInput):
        adjust_usage(tenant_id=record.tenant_id, request_id=record.request_id, amount_picos=picos, **asked)
    assert net_picos(record) == (before + picos if before + picos >= 0 else before)


def _billed(tenant_id: str, month: str) -> int:
    of_month = {"tenant_id": tenant_id, "billing_month": month}
    rows: list[Any] = [*UsageRecord.objects.filter(**of_month), *Adjustment.objects.filter(**of_month)]
    return sum(row.amount_picos or 0 for row in rows)


def _renamed(one: UsageDraft, tenant: str) -> UsageDraft:
    import msgspec

    return msgspec.structs.replace(one, request_id=f"{tenant[:4]}-{one.request_id}")


@pytest.mark.django_db
def test_when_the_newest_ended_is_kept_though_an_older_one_comes_later() -> None:
    for request_id, ended_at_s in (("r1", 1_800_000_100.0), ("r2", 1_800_000_500.0), ("r3", 1_800_000_300.0)):
        record_usage(drafts=[draft(request_id, "done", ended_at_s=ended_at_s)])
    assert UsageQuarter.objects.get().newest_at == datetime.fromtimestamp(1_800_000_500, UTC)


@pytest.mark.parametrize(
    ("ttft_ms", "bucket"), [(0, "ttft_le_50"), (50, "ttft_le_50"), (51, "ttft_le_100"), (12_801, "ttft_more")]
)
def test_each_first_token_is_in_one_bucket(ttft_ms: int, bucket: str) -> None:
    assert bucket_of(ttft_ms) == bucket
    assert bucket in TTFT_BUCKETS


@pytest.mark.django_db(transaction=True)
def test_two_that_carry_the_same_records_at_once_add_them_once() -> None:
    """Free ones too: no month's row stands between the two writers then."""
    batch = [draft(f"r{number}", "done", prompt_tokens=3, amount_picos=None) for number in range(40)]
    errors: list[BaseException] = []

    def carry() -> None:
        try:
            for start in range(0, 40, 10):
                record_usage(drafts=batch[start : start + 10])
        except BaseException as error:  # noqa: BLE001  shown by the test
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=carry) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert_equal()
    assert UsageRecord.objects.count() == 40

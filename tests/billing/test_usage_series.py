"""Usage over time: half-open ranges in a zone, exactly what the ledger holds, also where clocks change."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from django.db import connection

from billing.models import UsageDay, UsageHour, UsageQuarter, UsageRecord
from billing.selectors import spent_picos
from billing.services.ledger import record_usage
from billing.services.usage_series import UsageQuery, UsageSeries, aligned, usage_series
from headway.errors import InvalidInput
from tenants.models import Tenant
from tenants.services.tenants import create_tenant
from tenants.services.terms import set_limits
from tests.inference.gateway.usage_drafts import TENANT_ID, draft

pytestmark = pytest.mark.django_db
TENANT = UUID(TENANT_ID)
_number = iter(range(10**9))


def at(text: str, zone: str = "UTC") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


def used(when: datetime, **values: Any) -> None:
    values = {"prompt_tokens": 1, **values}
    record_usage(drafts=[draft(f"r{next(_number)}", values.pop("end_state", "done"), ended_at_s=when.timestamp(), **values)])


def series(start: datetime, end: datetime, granularity: str, zone: str = "UTC", **more: Any) -> UsageSeries:
    return usage_series(TENANT, aligned(UsageQuery(start, end, zone, granularity, **more)))


def requests(found: UsageSeries) -> list[tuple[str, int]]:
    zone = ZoneInfo(found.query.time_zone)
    return [(bucket.starts_at.astimezone(zone).isoformat()[:16], bucket.sums["requests"]) for bucket in found.buckets]


@pytest.mark.parametrize("granularity", ["minute", "hour", "day"])
def test_a_range_is_half_open(granularity: str) -> None:
    for when in ("2026-11-01 00:00", "2026-11-01 23:59:59.999", "2026-11-02 00:00", "2026-10-31 23:59:59.999"):
        used(at(when))
    found = series(at("2026-11-01"), at("2026-11-02"), granularity)
    assert sum(number for _, number in requests(found)) == 2
    assert found.totals()["requests"] == 2


def test_days_are_of_the_zones_calendar() -> None:
    for when in ("2026-11-01 18:29", "2026-11-01 18:30", "2026-11-02 18:29"):  # Kolkata is at +05:30
        used(at(when))
    found = series(at("2026-11-01", "Asia/Kolkata"), at("2026-11-04", "Asia/Kolkata"), "day", "Asia/Kolkata")
    assert requests(found) == [("2026-11-01T00:00", 1), ("2026-11-02T00:00", 2)]


def test_hours_begin_where_the_zones_do() -> None:
    for when in ("2026-11-01 10:14", "2026-11-01 10:15", "2026-11-01 11:14"):  # Kathmandu is at +05:45
        used(at(when))
    found = series(at("2026-11-01 10:00"), at("2026-11-01 12:00"), "hour", "Asia/Kathmandu")
    assert requests(found) == [("2026-11-01T15:00", 1), ("2026-11-01T16:00", 2)]


def test_days_of_23_and_25_hours() -> None:
    zone = "Europe/Berlin"
    for day, hours in (("2026-03-29", 23), ("2026-10-25", 25)):
        start = at(day, zone)
        end = datetime.fromtimestamp(start.timestamp(), UTC) + timedelta(hours=hours)
        used(end - timedelta(seconds=1))
        used(end)
        found = series(start, start + timedelta(hours=12), "day", zone)
        assert requests(found) == [(f"{day}T00:00", 1)]
        assert found.query.ends_at == end


def test_both_hours_of_the_night_the_clocks_go_back_are_there() -> None:
    for when in ("2026-10-25 00:30", "2026-10-25 01:30"):  # both 02:30 in Berlin
        used(at(when))
    found = series(at("2026-10-25 00:00"), at("2026-10-25 02:00"), "hour", "Europe/Berlin")
    assert [bucket.sums["requests"] for bucket in found.buckets] == [1, 1]


@pytest.mark.parametrize("granularity", ["minute", "day"])
def test_groups_and_filters(granularity: str) -> None:
    when = at("2026-11-01 10:00")
    used(when, model="a", key_id="k1", member_id=7, tier="batch", version="v1")
    used(when, model="b", key_id="k2", member_id=None)
    used(when, model="b", key_id="k1", member_id=7)
    day = (at("2026-11-01"), at("2026-11-02"), granularity)

    def groups(**more: Any) -> dict[str, int]:
        return {bucket.group: bucket.sums["requests"] for bucket in series(*day, **more).buckets}

    assert groups(group_by="model") == {"a": 1, "b": 2}
    assert groups(group_by="key") == {"k1": 2, "k2": 1}
    assert groups(group_by="member") == {"7": 2, "0": 1}
    assert groups(group_by="tier") == {"batch": 1, "standard": 2}
    assert groups(group_by="version") == {"v1": 1, "": 2}
    assert groups(group_by="model", filters=(("key", "k1"),)) == {"a": 1, "b": 1}
    assert groups(filters=(("member", "0"),)) == {"": 1}
    assert groups(filters=(("member", "7"), ("model", "b"))) == {"": 1}


@pytest.mark.parametrize("granularity", ["minute", "hour", "day"])
def test_every_figure_is_the_ledgers(granularity: str) -> None:
    when = at("2026-11-01 10:00")
    used(when, prompt_tokens=10, cached_tokens=4, completion_tokens=5, amount_picos=7, ttft_ms=100)
    used(when, prompt_tokens=1, end_state="engine_error", ttft_ms=None, amount_picos=None)
    used(when, prompt_tokens=2, end_state="client_gone_after_first_token", ttft_ms=300)
    totals = series(at("2026-11-01"), at("2026-11-02"), granularity).totals()
    names = ("requests", "errors", "prompt_tokens", "cached_tokens", "completion_tokens", "amount_picos", "ttft_count")
    assert [totals[name] for name in names] == [3, 1, 13, 4, 5, 7, 2]
    assert (totals["ttft_ms_mean"], totals["ttft_ms_p50"]) == (200.0, 100.0)
    assert 200 < totals["ttft_ms_p95"] <= 400


def test_another_tenants_usage_is_not_in_it() -> None:
    used(at("2026-11-01 10:00"), tenant_id="99999999-9999-4999-8999-999999999999")
    for granularity in ("minute", "hour", "day"):
        assert series(at("2026-11-01"), at("2026-11-02"), granularity).buckets == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"granularity": "week"},
        {"time_zone": "Mars/Olympus"},
        {"group_by": "colour"},
        {"ends_at": at("2026-11-01")},
        {"granularity": "minute", "ends_at": at("2026-11-03")},
        {"ends_at": at("2030-11-01")},
        {"starts_at": datetime.min.replace(tzinfo=UTC), "time_zone": "America/New_York"},
        {"ends_at": datetime.max.replace(tzinfo=UTC), "time_zone": "Asia/Tokyo"},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    fields = {"starts_at": at("2026-11-01"), "ends_at": at("2026-11-02"), "time_zone": "UTC", "granularity": "hour"}
    with pytest.raises(InvalidInput):
        aligned(UsageQuery(**{**fields, **wrong}))


def test_b69_what_is_read_is_the_durable_store() -> None:
    """Whoever asks, and however often: there is nothing in any process's memory to disagree."""
    for _ in range(100):
        used(at("2026-11-01 10:00"))
    answers = {series(at("2026-11-01"), at("2026-11-02"), "day").totals()["requests"] for _ in range(20)}
    assert answers == {100}


# Days of the tenant's own calendar


@pytest.fixture
def berlin() -> Tenant:
    tenant = create_tenant(name="acme", actor="test")
    set_limits(tenant=tenant, limits={}, time_zone="Europe/Berlin", actor="test")
    return tenant


def half_hours(zone: str, day: str) -> list[datetime]:
    """Of that local day and of the hours beside it, as instants."""
    start = at(day, zone).astimezone(UTC) - timedelta(hours=2)
    return [start + n * timedelta(minutes=30) for n in range(58)]


def by_day(tenant: Tenant, start: str, end: str, zone: str) -> dict[str, int]:
    query = aligned(UsageQuery(at(start, zone), at(end, zone), zone, "day"))
    return {day[:10]: number for day, number in requests(usage_series(tenant.id, query))}


def only_days_are_left() -> None:
    UsageHour.objects.all().delete()
    UsageQuarter.objects.all().delete()


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/St_Johns", "Europe/Berlin", "America/Havana", "Pacific/Chatham"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-02-28", "2026-12-31"])
def test_b65_a_day_and_a_month_begin_at_local_midnight_also_where_clocks_change(zone: str, day: str) -> None:
    """Havana's clocks change at midnight itself."""
    tenant = create_tenant(name="acme", actor="test")
    set_limits(tenant=tenant, limits={}, time_zone=zone, actor="test")
    expected: dict[str, int] = {}
    for when in half_hours(zone, day):
        used(when, tenant_id=str(tenant.id))
        local = when.astimezone(ZoneInfo(zone)).date().isoformat()
        expected[local] = expected.get(local, 0) + 1
    for record in UsageRecord.objects.all():
        assert record.billing_month == record.ended_at.astimezone(ZoneInfo(zone)).strftime("%Y-%m")
    before = (at(day) - timedelta(days=2)).date().isoformat()
    after = (at(day) + timedelta(days=3)).date().isoformat()
    from_hours = by_day(tenant, before, after, "UTC")
    assert sum(from_hours.values()) == 58
    only_days_are_left()
    assert by_day(tenant, before, after, zone) == expected
    changes = {"Europe/Berlin": {"2026-03-29": 46, "2026-10-25": 50}, "America/St_Johns": {"2026-03-08": 46, "2026-11-01": 50}}
    assert expected[day] == changes.get(zone, {}).get(day, expected[day])


def test_days_are_made_anew_when_the_zone_changes_and_say_the_same_as_hours(berlin: Tenant) -> None:
    for when in half_hours("Europe/Berlin", "2026-10-25"):
        used(when, tenant_id=str(berlin.id), amount_picos=3, ttft_ms=100)
    used(at("2026-10-25 10:00"), tenant_id="99999999-9999-4999-8999-999999999999")
    set_limits(tenant=berlin, limits={}, time_zone="Asia/Kathmandu", actor="test")
    assert UsageDay.objects.exclude(tenant_id=berlin.id).count() == 1, "others keep theirs"
    range_ = ("2026-10-20", "2026-10-30")
    slow = usage_series(berlin.id, aligned(UsageQuery(at("2026-10-20"), at("2026-10-30"), "UTC", "day"))).totals()
    only_days_are_left()
    assert sum(by_day(berlin, *range_, "Asia/Kathmandu").values()) == 58
    query = aligned(UsageQuery(at(range_[0], "Asia/Kathmandu"), at(range_[1], "Asia/Kathmandu"), "Asia/Kathmandu", "day"))
    assert usage_series(berlin.id, query).totals() | {"starts_at": None} == slow | {"starts_at": None}


def test_b150_a_month_on_the_page_is_the_month_that_is_billed(berlin: Tenant) -> None:
    for when in ("2026-10-31 22:59", "2026-10-31 23:00", "2026-11-15 12:00", "2026-11-30 22:59:59.999", "2026-11-30 23:00"):
        used(at(when), tenant_id=str(berlin.id), amount_picos=1_500_001)
    zone = "Europe/Berlin"
    for granularity in ("hour", "day"):
        query = aligned(UsageQuery(at("2026-11-01", zone), at("2026-12-01", zone), zone, granularity))
        assert usage_series(berlin.id, query).totals()["amount_picos"] == spent_picos(berlin.id, "2026-11") == 3 * 1_500_001


def test_b150_a_range_that_begins_within_a_bucket_is_widened_and_says_so() -> None:
    for when in ("10:00:00", "10:00:00.122", "10:00:00.123", "10:29:59", "10:30:00.122", "10:30:00.124", "10:31:00"):
        used(at(f"2026-11-01 {when}"))
    found = series(at("2026-11-01 10:00:00.123"), at("2026-11-01 10:30:00.123"), "minute")
    assert (found.query.starts_at, found.query.ends_at) == (at("2026-11-01 10:00"), at("2026-11-01 10:31"))
    in_range = UsageRecord.objects.filter(ended_at__gte=found.query.starts_at, ended_at__lt=found.query.ends_at).count()
    assert found.totals()["requests"] == in_range == 6


@pytest.mark.soak
def test_a_million_records_on_postgresql_are_read_within_100_ms() -> None:
    """Over 30 days, of 8 keys, 3 models, 2 tiers: the rows such a ledger has are made by the database itself."""
    assert connection.vendor == "postgresql", "storms run on PostgreSQL"
    buckets, day = ", ".join(["1"] * 10), "'2026-11-01'::timestamptz"
    for table, step, count, each in ((UsageHour, "1 hour", 720, 29), (UsageDay, "1 day", 30, 24 * 29)):
        names = [str(field.column) for field in table._meta.concrete_fields if field.name != "id"]
        with connection.cursor() as cursor:
            cursor.execute(
                f"""INSERT INTO {table._meta.db_table} ({", ".join(names)})
                SELECT %s, {day} + n * interval '{step}', 'key' || k, 7, 'm' || m, 'v1',
                CASE t WHEN 0 THEN 'standard' ELSE 'batch' END, {day}, {each}, 0, 100, 10, 50, 70, {each}, 800, {buckets}
                FROM generate_series(0, {count - 1}) n, generate_series(1, 8) k, generate_series(1, 3) m,
                generate_series(0, 1) t""",
                [TENANT],
            )
            cursor.execute(f"ANALYZE {table._meta.db_table}")
    took_s = {}
    for granularity, group_by in (("day", ""), ("day", "model"), ("day", "key"), ("hour", ""), ("hour", "model")):
        times = []
        for _ in range(5):
            started_s = time.perf_counter()
            found = series(at("2026-11-01"), at("2026-12-01"), granularity, group_by=group_by)
            times.append(time.perf_counter() - started_s)
        assert found.totals()["requests"] == 720 * 48 * 29
        took_s[granularity, group_by] = sorted(times)[2]
    print({name: round(s * 1000) for name, s in took_s.items()})  # noqa: T201
    assert max(took_s.values()) < 0.1, took_s

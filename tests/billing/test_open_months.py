"""A month that is closed takes nothing more: what comes late is on the next statement, and no row is on two or on none."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction

from billing.models import ClosedMonth, UsageRecord
from billing.services.ledger import record_usage
from billing.services.open_months import close_month, open_month
from headway.months import next_month_name
from tenants.models import Tenant
from tenants.services.tenants import create_tenant
from tenants.services.terms import set_limits
from tests.inference.gateway.usage_drafts import draft

LATE = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


def used(tenant: Tenant, request_id: str, ended_at: datetime, *, now: datetime) -> str:
    fields = {"tenant_id": str(tenant.id), "ended_at_s": ended_at.timestamp(), "amount_picos": 7, "price_version": "1"}
    record_usage(drafts=[draft(request_id, "done", **fields)], now=now)
    return UsageRecord.objects.get(request_id=request_id).billing_month


@pytest.mark.django_db
def test_late_usage_is_on_the_month_that_runs(acme: Tenant) -> None:
    assert used(acme, "r1", LATE, now=datetime(2026, 12, 3, tzinfo=UTC)) == "2026-11", "its month is open still"
    close_month(tenant_id=acme.id, month="2026-11")
    assert used(acme, "r2", LATE, now=datetime(2026, 12, 3, tzinfo=UTC)) == "2026-12"
    assert used(acme, "r3", LATE, now=datetime(2027, 2, 3, tzinfo=UTC)) == "2027-02"
    assert used(acme, "r1", LATE, now=datetime(2027, 2, 3, tzinfo=UTC)) == "2026-11", "told again it stays where it was"


@pytest.mark.django_db
def test_a_month_is_closed_for_one_tenant_and_once(acme: Tenant) -> None:
    globex = create_tenant(name="globex", actor="test")
    assert [close_month(tenant_id=acme.id, month="2026-11") for _ in range(2)] == [True, False]
    assert used(globex, "r1", LATE, now=datetime(2026, 12, 3, tzinfo=UTC)) == "2026-11"
    assert ClosedMonth.objects.count() == 1


@pytest.mark.django_db
def test_the_month_after_is_taken_where_the_one_that_runs_is_closed_too(acme: Tenant) -> None:
    """As where a tenant moves to a zone in which it is yesterday."""
    for month in ("2026-11", "2026-12"):
        close_month(tenant_id=acme.id, month=month)
    with transaction.atomic():
        assert open_month(acme.id, LATE, "UTC", now=LATE) == "2027-01"


@pytest.mark.django_db
@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Pacific/Chatham"])
def test_b149_at_a_months_edge_each_record_is_of_one_month(acme: Tenant, zone: str) -> None:
    """Half an hour before local midnight, at it, and half an hour after: wherever that is."""
    set_limits(tenant=acme, limits={}, time_zone=zone, actor="test")
    local = {"UTC": 0, "America/Los_Angeles": 8 * 60, "Pacific/Chatham": -(13 * 60 + 45)}[zone]
    midnight_s = datetime(2026, 12, 1, tzinfo=UTC).timestamp() + local * 60
    stamps = {
        name: used(acme, name, datetime.fromtimestamp(midnight_s + offset_s, UTC), now=datetime(2026, 12, 9, tzinfo=UTC))
        for name, offset_s in (("before", -1800), ("just before", -0.001), ("at", 0), ("after", 1800))
    }
    assert stamps == {"before": "2026-11", "just before": "2026-11", "at": "2026-12", "after": "2026-12"}


@pytest.mark.django_db
def test_b149_a_zone_that_changes_moves_no_record_to_another_statement(acme: Tenant) -> None:
    """23:30 in November in Los Angeles, then half past midnight in December, seen from Kiritimati a day later."""
    set_limits(tenant=acme, limits={}, time_zone="America/Los_Angeles", actor="test")
    now = datetime(2026, 12, 2, tzinfo=UTC)
    first = used(acme, "r1", datetime(2026, 12, 1, 7, 30, tzinfo=UTC), now=now)
    set_limits(tenant=acme, limits={}, time_zone="Pacific/Kiritimati", actor="test")
    second = used(acme, "r2", datetime(2026, 12, 1, 7, 30, tzinfo=UTC), now=now)
    assert (first, second) == ("2026-11", "2026-12")
    assert UsageRecord.objects.get(request_id="r1").billing_month == "2026-11"


@pytest.mark.parametrize(("month", "after"), [("2026-11", "2026-12"), ("2026-12", "2027-01"), ("2028-01", "2028-02")])
def test_b66_no_month_is_skipped(month: str, after: str) -> None:
    assert next_month_name(month) == after


# Two connections


@contextmanager
def in_a_thread(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Runs while the block does; what it returned is in the list after it."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001  shown by the test
            found.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        thread.join()


def somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return bool(cursor.fetchone()[0])


def wait_until_somebody_waits() -> None:
    pause = threading.Event()
    for _ in range(3000):
        if somebody_waits_for_a_lock():
            return
        pause.wait(0.01)
    raise AssertionError("nobody waited")


@pytest.mark.django_db(transaction=True)
@pytest.mark.on_postgresql
def test_what_is_written_while_a_month_is_closed_is_on_one_statement(acme: Tenant) -> None:
    """The statement's transaction is open; a record comes: it waits, and is on the next one."""
    with in_a_thread_of_records(acme) as found, transaction.atomic():
        close_month(tenant_id=acme.id, month="2026-11")
        found.begin.set()
        wait_until_somebody_waits()
        on_statement = UsageRecord.objects.filter(billing_month="2026-11").count()
    assert (on_statement, found.result) == (0, ["2026-12"])


@pytest.mark.django_db(transaction=True)
@pytest.mark.on_postgresql
def test_who_closes_a_month_waits_for_those_who_write(acme: Tenant) -> None:
    begin = threading.Event()

    def close_and_count() -> int:
        begin.wait()
        with transaction.atomic():
            close_month(tenant_id=acme.id, month="2026-11")
            return UsageRecord.objects.filter(billing_month="2026-11").count()

    with in_a_thread(close_and_count) as counted, transaction.atomic():
        assert used(acme, "r1", LATE, now=datetime(2026, 12, 3, tzinfo=UTC)) == "2026-11"
        begin.set()
        wait_until_somebody_waits()
    assert counted == [1]


class _Records:
    def __init__(self) -> None:
        self.begin = threading.Event()
        self.result: list[Any] = []


@contextmanager
def in_a_thread_of_records(tenant: Tenant) -> Iterator[_Records]:
    records = _Records()

    def write() -> str:
        records.begin.wait()
        return used(tenant, "r1", LATE, now=datetime(2026, 12, 3, tzinfo=UTC))

    with in_a_thread(write) as records.result:
        yield records

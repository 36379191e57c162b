"""A month that operators ask to be closed: by a worker, once, with progress, whoever dies in the middle."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from billing.closing_models import ClosingRun
from billing.errors import MonthNotOver
from billing.invoice_models import Invoice, Statement
from billing.models import UsageRecord
from billing.services import closing_runs
from billing.services.closing_runs import KIND, STUCK, ask_to_close, carry_on, closing_run
from billing.services.ledger import record_usage
from headway.errors import InvalidInput, NotFound
from tenants.models import AuditEntry, Tenant
from tenants.services.terms import set_limits
from tests.billing.priced_usage import price, used
from tests.tenants.cast import tenant_with
from tests.tenants.test_at_once import at_once
from tests.workers.broker import Broker
from tests.workers.outbox_work import work
from workers.models import OutboxEntry

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company", "broker")]
MONTH = "2026-08"
AT = datetime(2026, 8, 15, tzinfo=UTC)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setattr(closing_runs, "TENANTS_A_PART", 2)
    return Broker(monkeypatch)


@pytest.fixture
def tenants() -> list[Tenant]:
    each, made = price(1, 10**10, 0, 0), [tenant_with(f"tenant-{number}") for number in range(5)]
    record_usage(drafts=[used(tenant, f"r-{tenant.name}", AT, price=each) for tenant in made], now=AT)
    return made


def ask(month: str = MONTH, **others: Any) -> ClosingRun:
    return ask_to_close(month=month, actor="operator:op", **others)


def figures(run: ClosingRun) -> dict[str, Any]:
    run.refresh_from_db()
    names = ("state", "tenants_total", "tenants_done", "closed", "invoices", "closed_before", "num_failed")
    return {name: getattr(run, name) for name in names}


WHOLE = {
    "state": "done",
    "tenants_total": 5,
    "tenants_done": 5,
    "closed": 5,
    "invoices": 5,
    "closed_before": 0,
    "num_failed": 0,
}


def test_nothing_is_closed_until_a_worker_does_it_and_then_everything_in_parts(tenants: list[Tenant]) -> None:
    run = ask()
    assert not Statement.objects.exists() and run.ended_at is None
    assert work(KIND) == 3, "two tenants a part"
    assert figures(run) == WHOLE and closing_run(run.id).ended_at is not None
    assert set(Statement.objects.values_list("closed_by", flat=True)) == {"operator:op"}
    assert AuditEntry.objects.filter(action="month.close", actor="operator:op", target=MONTH).count() == 1


def test_progress_is_seen_while_it_runs(tenants: list[Tenant]) -> None:
    run = ask()
    carry_on({"run": run.id})
    assert figures(run) == WHOLE | {"state": "running", "tenants_done": 2, "closed": 2, "invoices": 2}


def test_two_clicks_are_one_run_and_close_once(tenants: list[Tenant]) -> None:
    assert ask().id == ask().id
    assert ClosingRun.objects.count() == OutboxEntry.objects.filter(kind=KIND).count() == 1
    work(KIND)
    again = ask()
    work(KIND)
    assert figures(again) == WHOLE | {"closed": 0, "invoices": 0, "closed_before": 5}
    assert Invoice.objects.count() == 5


@pytest.mark.django_db(transaction=True)
def test_two_that_click_in_the_same_instant_make_one_run(tenants: list[Tenant]) -> None:
    runs: list[int] = []
    at_once(lambda: runs.append(ask().id), lambda: runs.append(ask().id))
    assert len(runs) == 2 and len(set(runs)) == 1
    assert OutboxEntry.objects.filter(kind=KIND).count() == 1


@pytest.mark.parametrize("dies_at", range(1, 6))
def test_a_worker_that_dies_after_closing_one_and_before_it_says_so_loses_and_doubles_nothing(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    run, calls, note = ask(), 0, closing_runs._note

    def dying(*arguments: Any, **named: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == dies_at:
            raise KeyboardInterrupt
        return note(*arguments, **named)

    monkeypatch.setattr(closing_runs, "_note", dying)
    with pytest.raises(KeyboardInterrupt):
        work(KIND)
    # Its lease is over.
    OutboxEntry.objects.filter(kind=KIND, done_at=None).update(due_at=timezone.now() - timedelta(seconds=1))
    work(KIND)
    assert figures(run) == WHOLE
    assert sorted(str(invoice) for invoice in Invoice.objects.all()) == [f"INV-{number:06d}" for number in range(1, 6)]


def test_one_who_finds_that_another_worker_came_further_leaves_it_to_that_one(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, note = ask(), closing_runs._note

    def overtaken(mine: ClosingRun, *arguments: Any, **named: Any) -> bool:
        monkeypatch.setattr(closing_runs, "_note", note)
        carry_on({"run": run.id})
        return note(mine, *arguments, **named)

    monkeypatch.setattr(closing_runs, "_note", overtaken)
    carry_on({"run": run.id})
    assert figures(run)["tenants_done"] == 2
    work(KIND)
    assert figures(run) == WHOLE


def test_a_run_that_nobody_carries_on_any_more_is_when_it_is_asked_for_again(tenants: list[Tenant]) -> None:
    run = ask()
    OutboxEntry.objects.all().delete()
    ask()
    assert work(KIND) == 0, "it may still be under way"
    ClosingRun.objects.update(moved_at=timezone.now() - STUCK - timedelta(seconds=1))
    assert ask().id == run.id
    work(KIND)
    assert figures(run) == WHOLE


def test_what_cannot_be_closed_stays_open_and_is_named_and_whose_month_runs_is_left_out(tenants: list[Tenant]) -> None:
    UsageRecord.objects.filter(tenant_id=tenants[1].id).update(amount_picos=1)
    set_limits(tenant=tenants[4], limits={}, time_zone="Pacific/Pago_Pago", actor="test")
    run = ask()
    carry_on({"run": run.id}, now=datetime(2026, 9, 1, 1, tzinfo=UTC))
    carry_on({"run": run.id}, now=datetime(2026, 9, 1, 1, tzinfo=UTC))
    shown = figures(run)
    assert (shown["state"], shown["tenants_done"], shown["closed"], shown["num_failed"]) == ("done", 4, 3, 1)
    assert [each["tenant_id"] for each in run.failed] == [str(tenants[1].id)]
    assert Statement.objects.count() == 3


def test_what_is_no_month_or_not_over_or_without_a_company_is_refused_and_nothing_is_begun(company: Any) -> None:
    for wrong in ("soon", "2026-13", "2026-8", ""):
        with pytest.raises(InvalidInput):
            ask(wrong)
    with pytest.raises(MonthNotOver):
        ask("2026-08", now=datetime(2026, 8, 31, 9, tzinfo=UTC))
    assert ask("2026-08", now=datetime(2026, 8, 31, 11, tzinfo=UTC)), "it is over in Kiritimati"
    company.COMPANY_NAME = ""
    with pytest.raises(InvalidInput, match="HEADWAY_COMPANY_NAME"):
        ask("2026-07")
    with pytest.raises(NotFound):
        closing_run(10**9)
    assert ClosingRun.objects.count() == 1

"""Re-ratings on record: by a worker, in steps, once, whoever dies in the middle and whoever does it at the same moment."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from billing.models import Adjustment, UsageRecord
from billing.re_rating_models import ReRating
from billing.services import re_rating, re_rating_runs
from billing.services.adjustments import add_adjustments, net_picos
from billing.services.ledger import record_usage
from billing.services.re_rating import Span, step
from billing.services.re_rating_runs import KIND, STUCK, ask_to_re_rate, carry_on, carry_on_again, is_stuck, re_rate
from headway.errors import InvalidInput, NotFound
from tenants.models import AuditEntry, Tenant
from tests.billing.priced_usage import price, used
from tests.billing.test_usage_slots import assert_equal, assert_months_equal
from tests.tenants.cast import tenant_with
from tests.tenants.test_at_once import at_once
from tests.workers.broker import Broker
from tests.workers.outbox_work import work
from workers.models import OutboxEntry

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("broker")]
AT = datetime(2026, 8, 15, tzinfo=UTC)
SPAN = Span("tiny", 2, datetime(2026, 8, 1, tzinfo=UTC), datetime(2026, 9, 1, tzinfo=UTC))
OLD, NEW = 500_000, 300_000
A_REQUEST = 10 * (NEW - OLD)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setattr(re_rating, "BATCH", 2)
    monkeypatch.setattr(re_rating_runs, "STEPS_A_PART", 2)
    return Broker(monkeypatch)


@pytest.fixture
def tenants() -> list[Tenant]:
    """Five requests each; those of the first ended in the same instant, so that only their ids tell them apart."""
    old, made = price(1, OLD, 0, 0), [tenant_with(name) for name in ("acme", "globex")]
    drafts = []
    for tenant in made:
        apart_s = 0 if tenant is made[0] else 1
        ends = [AT + timedelta(seconds=number * apart_s) for number in (3, 1, 4, 2, 5)]
        drafts += [used(tenant, f"{tenant.name}-{at}", end, tokens=(10, 0, 0), price=old) for at, end in enumerate(ends)]
    record_usage(drafts=drafts, now=AT)
    price(2, NEW, 0, 0)
    return made


def ask(**others: Any) -> ReRating:
    given: dict[str, Any] = {"span": SPAN, "reason": "the price was wrong", "actor": "operator:op"}
    return ask_to_re_rate(**(given | others))


def assert_whole(run: ReRating) -> None:
    """Each request once, in the ledger, in the sums and in what the run says of itself."""
    run.refresh_from_db()
    assert run.ended_at is not None
    assert (run.requests_total, run.requests, run.adjusted, run.amount_picos) == (10, 10, 10, 10 * A_REQUEST)
    assert [net_picos(record) for record in UsageRecord.objects.all()] == [10 * NEW] * 10
    assert Adjustment.objects.count() == 10
    assert_equal()
    assert_months_equal()


def test_nothing_is_changed_until_a_worker_does_it_and_then_everything_in_parts(tenants: list[Tenant]) -> None:
    run = ask()
    assert not Adjustment.objects.exists() and run.moved_at is None
    carry_on({"run": run.id})
    run.refresh_from_db()
    assert (run.requests, run.requests_total, run.ended_at) == (4, 10, None), "two steps of two"
    work(KIND)
    assert_whole(run)
    audit = AuditEntry.objects.filter(target="tiny", actor="operator:op").order_by("id").values_list("action", flat=True)
    assert [each for each in audit if each.startswith("usage.")] == ["usage.re_rate", "usage.re_rated"]
    assert set(Adjustment.objects.values_list("actor", "reason")) == {("operator:op", "the price was wrong")}
    assert work(KIND) == 0 and not step(run.id)


def test_a_second_run_of_the_same_changes_nothing_more(tenants: list[Tenant]) -> None:
    first, second = ask(), ask()
    work(KIND)
    second.refresh_from_db()
    assert (second.requests, second.adjusted, second.amount_picos) == (10, 0, 0)
    assert_whole(first)


def lease_is_over() -> None:
    OutboxEntry.objects.filter(kind=KIND, done_at=None).update(due_at=timezone.now() - timedelta(seconds=1))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["in the middle of a step", "at the end of its transaction", "after it"])
@pytest.mark.parametrize("dies_at", range(1, 7))
def test_a_worker_that_is_killed_leaves_nothing_half_done_and_the_next_does_nothing_twice(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch, where: str, dies_at: int
) -> None:
    run, calls = ask(), 0
    module, name = {
        "in the middle of a step": (re_rating, "add_adjustments"),
        "at the end of its transaction": (ReRating, "save"),
        "after it": (re_rating_runs, "step"),
    }[where]
    whole: Any = {"add_adjustments": add_adjustments, "save": ReRating.save, "step": step}[name]

    def dying(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        done = whole(*arguments, **named)
        if calls == dies_at:
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patched:
        patched.setattr(module, name, dying)
        with pytest.raises(KeyboardInterrupt):
            work(KIND)
    run.refresh_from_db()
    assert run.adjusted == Adjustment.objects.count() == 2 * (dies_at - (where != "after it")) - _odd_ones(run)
    assert_months_equal()
    lease_is_over()
    work(KIND)
    assert_whole(run)


def _odd_ones(run: ReRating) -> int:
    """The last batch of a tenant with five is of one."""
    return int(run.requests >= 5) + int(run.requests == 10)


@pytest.mark.django_db(transaction=True)
def test_workers_at_the_same_moment_take_turns(tenants: list[Tenant]) -> None:
    run = ask()
    ids = {"run": run.id}

    def all_of_it() -> None:
        while not ReRating.objects.get(id=run.id).ended_at:
            carry_on(ids)

    assert at_once(all_of_it, all_of_it, all_of_it) == {"done": 3}
    assert_whole(run)
    assert AuditEntry.objects.filter(action="usage.re_rated").count() == 1


def test_what_comes_to_the_ledger_meanwhile_is_not_lost_before_it_and_left_to_the_next_run_behind_it(
    tenants: list[Tenant],
) -> None:
    run = ask()
    step(run.id)
    run.refresh_from_db()
    (behind, before) = sorted(tenants, key=lambda tenant: tenant.id)
    early, old = AT - timedelta(days=1), UsageRecord.objects.first()
    assert run.last_tenant_id == behind.id and old is not None
    drafts = [
        used(tenant, f"late-{tenant.name}", early, tokens=(10, 0, 0), price_version="1", amount_picos=10 * OLD)
        for tenant in tenants
    ]
    record_usage(drafts=drafts, now=AT)
    work(KIND)
    run.refresh_from_db()
    assert run.adjusted == 11
    left = [record for record in UsageRecord.objects.all() if net_picos(record) != 10 * NEW]
    assert [record.request_id for record in left] == [f"late-{behind.name}"]
    assert re_rate(span=SPAN, reason="the rest", actor="test").adjusted == 1
    assert before.id > behind.id


def test_one_that_nobody_carries_on_any_more_is_given_to_a_worker_again(tenants: list[Tenant]) -> None:
    run = ask()
    OutboxEntry.objects.all().delete()
    assert not carry_on_again(run.id, actor="operator:op"), "it may be under way"
    ReRating.objects.update(created_at=timezone.now() - STUCK - timedelta(seconds=1))
    run.refresh_from_db()
    assert is_stuck(run, timezone.now())
    assert carry_on_again(run.id, actor="operator:op") and not carry_on_again(run.id, actor="operator:op")
    work(KIND)
    assert_whole(run)
    assert not carry_on_again(run.id, actor="operator:op") and not is_stuck(run, timezone.now() + STUCK)
    with pytest.raises(NotFound):
        carry_on_again(10**9, actor="operator:op")


def test_the_command_does_all_at_once_and_is_carried_on_by_its_reference(
    tenants: list[Tenant], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(re_rating_runs, "MAX_REQUESTS", 3)
    asked: dict[str, Any] = {"span": SPAN, "reason": "wrong", "actor": "cli:ann", "reference": "TICKET-1"}
    with monkeypatch.context() as patched:
        left = [True, True, False]
        patched.setattr(re_rating_runs, "step", lambda run_id, now: step(run_id) and left.pop(0))
        assert re_rate(**asked).ended_at is None
    run = re_rate(**asked)
    assert_whole(run)
    assert ReRating.objects.count() == 1 and not OutboxEntry.objects.filter(kind=KIND).exists()


@pytest.mark.parametrize("reason", ["", " ", "x" * 501])
def test_without_a_reason_nothing_is_begun(tenants: list[Tenant], reason: str) -> None:
    with pytest.raises(InvalidInput):
        ask(reason=reason)
    assert not ReRating.objects.exists() and not OutboxEntry.objects.filter(kind=KIND).exists()

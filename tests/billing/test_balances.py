"""Credit is given and taken away; two who do it at once, and what runs meanwhile."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from billing.credit_models import BalanceEntry, Grant, Hold
from billing.errors import BalanceBusy, BalanceTooSmall, ReferenceUsed
from billing.services.balance_reads import balance_of, unbalanced_grants
from billing.services.balances import debit_balance, expire_grants, grant_credit, refund_credit, release_stale_holds
from billing.services.top_ups import due_top_ups, set_top_up
from headway.errors import HeadwayError, InvalidInput
from headway.money import PICOS_A_MICRO
from inference.models import ControlChange
from inference.services.feed_progress import acknowledge
from tenants.errors import UnknownTenant
from tenants.models import AuditEntry, Tenant, WebhookEvent
from tenants.services.balance_alerts import check_balances, raise_balance_alerts
from tenants.services.tenants import create_tenant
from tenants.services.terms import define_plan
from tests.billing.credit_cast import NOVEMBER, check, grant, lefts, prepaid, record, told, used

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    return prepaid()


def nobody() -> None:
    """No dispatcher answers, and no gateway lives."""


def seen(
    tenant: Tenant, *, reserved: int = 0, is_open: bool = True, told_by: int | None = None
) -> Callable[[], dict[str, Any]]:
    """A dispatcher that counts what it was told last, with so much reserved (micro-dollars)."""

    def look() -> dict[str, Any]:
        change = ControlChange.objects.filter(kind="balance", key=str(tenant.id)).latest("id")
        payload = change.payload or {}
        balance = {
            "credit_picos": payload["credit_picos"],
            "spent_picos": payload["spent_picos"],
            "reserved_picos": str(reserved * PICOS_A_MICRO),
            "told_by": change.id if told_by is None else told_by,
        }
        return {"is_open": is_open, "limits": {"balances": {str(tenant.id): balance}}}

    return look


def debit(tenant: Tenant, micros: int, look: Any = nobody, **others: Any) -> Hold:
    given: dict[str, Any] = {"reason": "a chargeback", "actor": "user:ann", "now": NOVEMBER, "wait_s": 0.0} | others
    return debit_balance(tenant_id=tenant.id, amount_micros=micros, look=look, **given)


# Given


def test_a_grant_is_told_audited_and_entered(acme: Tenant) -> None:
    given = grant(acme, 1_500_000, reference="pay-1")
    assert told(acme) == {"left": 1_500_000, "spent": 0, "expiring": []}
    entry = AuditEntry.objects.get(action="balance.grant")
    assert entry.after is not None
    assert (entry.tenant, entry.actor, entry.after["amount_usd"]) == (acme, "user:ann", "1.50")
    assert BalanceEntry.objects.get().amount_picos == given.left_picos == 1_500_000 * PICOS_A_MICRO


def test_b64_a_payment_that_is_told_again_grants_once_whatever_else_its_words_say(acme: Tenant) -> None:
    first = grant(acme, 100, reference="pay-1", reason="first")
    assert grant(acme, 100, reference="pay-1", reason="again", now=NOVEMBER + timedelta(days=1)) == first
    assert lefts(acme) == [100]
    globex = create_tenant(name="globex", actor="t")
    later = {"expires_at": NOVEMBER + timedelta(days=9)}
    for changes in ({"amount_micros": 101}, {"kind": "goodwill"}, {"tenant_id": globex.id}, later):
        fact: dict[str, Any] = {"tenant_id": acme.id, "amount_micros": 100, "kind": "prepaid"} | changes
        with pytest.raises(ReferenceUsed):
            grant_credit(**fact, reference="pay-1", reason="other", actor="user:ann", now=NOVEMBER)
    assert Grant.objects.count() == 1
    ends = {"expires_at": NOVEMBER + timedelta(hours=1), "reference": "pay-2"}
    short = grant(acme, 100, **ends)
    assert grant(acme, 100, **ends, now=NOVEMBER + timedelta(days=1)) == short  # told again after it has expired


@pytest.mark.parametrize(
    "changes",
    [{"amount_micros": 0}, {"amount_micros": 10**13}, {"reason": " "}, {"kind": "gift"}, {"expires_at": NOVEMBER}],
)
def test_a_grant_that_makes_no_sense_is_refused(acme: Tenant, changes: dict[str, Any]) -> None:
    given: dict[str, Any] = {"amount_micros": 10, "reason": "why", "actor": "user:ann", "now": NOVEMBER} | changes
    with pytest.raises(InvalidInput):
        grant_credit(tenant_id=acme.id, **given)
    assert not Grant.objects.exists()


def test_nobody_is_given_what_nobody_has(acme: Tenant) -> None:
    acme_id = acme.id
    acme.delete()
    with pytest.raises(UnknownTenant):
        grant_credit(tenant_id=acme_id, amount_micros=1, reason="why", actor="user:ann")


def test_a_plan_that_becomes_prepaid_tells_the_balances_of_its_tenants(acme: Tenant) -> None:
    globex = create_tenant(name="globex", actor="test")
    grant(globex, 50)
    record(used(globex, "a", 80))
    define_plan(name="default", is_prepaid=True, actor="test")
    assert told(globex)["left"] == 0, "what it was invoiced for is no debt of its balance"


# Taken away


def test_a_debit_is_held_first_and_taken_when_everybody_counts_it(acme: Tenant) -> None:
    grant(acme, 100)

    def look() -> dict[str, Any]:
        assert told(acme)["left"] == 40, "counted before it is taken"
        assert Hold.objects.get().state == "asked"
        return seen(acme)()

    assert debit(acme, 60, look).state == "taken"
    assert (lefts(acme), told(acme)["left"]) == ([40], 40)
    assert BalanceEntry.objects.get(kind="debit").amount_picos == -60 * PICOS_A_MICRO
    assert AuditEntry.objects.filter(action="balance.debit", tenant=acme).count() == 1
    check(acme)


def test_what_running_requests_may_need_is_not_taken(acme: Tenant) -> None:
    grant(acme, 100)
    with pytest.raises(BalanceBusy, match=r"requests that run may need \$0.00001 of it"):
        debit(acme, 60, seen(acme, reserved=50))
    assert (lefts(acme), told(acme)["left"], Hold.objects.get().state) == ([100], 100, "released")
    assert debit(acme, 50, seen(acme, reserved=50)).state == "taken"
    check(acme)


@pytest.mark.parametrize("dispatcher", [{"told_by": 0}, {"is_open": False}])
def test_a_dispatcher_that_does_not_know_of_it_yet_is_waited_for(acme: Tenant, dispatcher: dict[str, Any]) -> None:
    grant(acme, 100)
    with pytest.raises(BalanceBusy):
        debit(acme, 60, seen(acme, **dispatcher))
    assert lefts(acme) == [100]


def test_while_gateways_live_and_no_dispatcher_answers_nothing_is_taken(acme: Tenant) -> None:
    grant(acme, 100)
    acknowledge(gateway="g1", applied_change_id=10**9, now=timezone.now())
    with pytest.raises(BalanceBusy, match="the dispatcher does not answer"):
        debit(acme, 60, nobody)
    acknowledge(gateway="g1", applied_change_id=0, now=timezone.now())
    with pytest.raises(BalanceBusy, match="g1 did not hear of it in time"):
        debit(acme, 60, seen(acme))
    assert lefts(acme) == [100]


def test_what_runs_while_a_debit_is_asked_for_is_paid_from_what_it_gives_back(acme: Tenant) -> None:
    grant(acme, 100)

    def look() -> dict[str, Any]:
        record(used(acme, "a", 70))
        return seen(acme, reserved=10)()

    with pytest.raises(BalanceBusy):
        debit(acme, 60, look)
    assert (lefts(acme), told(acme)["left"]) == ([30], 30)
    assert check_balances() == 0
    check(acme)


def test_no_more_is_taken_than_is_left(acme: Tenant) -> None:
    grant(acme, 100)
    record(used(acme, "a", 70))
    with pytest.raises(BalanceTooSmall):
        debit(acme, 31)
    assert not Hold.objects.exists()


def test_a_debit_with_a_reference_is_taken_once(acme: Tenant) -> None:
    grant(acme, 100)
    first = debit(acme, 30, reference="dispute-1")
    assert debit(acme, 30, reference="dispute-1") == first
    with pytest.raises(ReferenceUsed):
        debit(acme, 31, reference="dispute-1")
    assert lefts(acme) == [70]


def test_only_what_was_paid_in_advance_is_paid_back_and_of_that_grant(acme: Tenant) -> None:
    gift, money = grant(acme, 50, kind="promotion"), grant(acme, 100)
    given: dict[str, Any] = {"reason": "asked for", "actor": "user:ann", "now": NOVEMBER, "look": nobody}
    with pytest.raises(InvalidInput):
        refund_credit(tenant_id=acme.id, grant=gift, amount_micros=10, **given)
    with pytest.raises(BalanceTooSmall):
        refund_credit(tenant_id=acme.id, grant=money, amount_micros=101, **given)
    refund_credit(tenant_id=acme.id, grant=money, amount_micros=100, **given)
    assert lefts(acme) == [50, 0]
    other = grant(acme, 100, now=NOVEMBER + timedelta(hours=1))
    third = grant(acme, 100, now=NOVEMBER + timedelta(hours=2))
    first = refund_credit(tenant_id=acme.id, grant=other, amount_micros=10, reference="back-1", **given)
    assert refund_credit(tenant_id=acme.id, grant=other, amount_micros=10, reference="back-1", **given) == first
    with pytest.raises(ReferenceUsed):
        refund_credit(tenant_id=acme.id, grant=third, amount_micros=10, reference="back-1", **given)
    assert lefts(acme) == [50, 0, 90, 100]
    check(acme)


def test_what_the_dead_have_set_aside_is_given_back(acme: Tenant) -> None:
    grant(acme, 100)

    class Dies(BaseException):
        pass

    def look() -> None:
        raise Dies

    with pytest.raises(Dies):
        debit(acme, 60, look)
    assert (balance_of(acme.id, now=NOVEMBER).held_picos, told(acme)["left"]) == (60 * PICOS_A_MICRO, 40)
    assert release_stale_holds(NOVEMBER + timedelta(minutes=9)) == 0
    assert release_stale_holds(NOVEMBER + timedelta(minutes=11)) == 1
    assert (lefts(acme), told(acme)["left"]) == ([100], 100)


# At once


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What each returned, or raised."""
    results: list[Any] = []
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> None:
        try:
            start.wait(30)
            results.append(call())
        except HeadwayError as error:
            results.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(results) == len(calls)
    return results


@pytest.mark.django_db(transaction=True)
def test_of_two_debits_at_once_that_do_not_fit_together_one_is_taken(acme: Tenant) -> None:
    grant(acme, 100)
    results = at_once(*[lambda: debit(acme, 60)] * 2)
    assert sorted(type(result).__name__ for result in results) == ["BalanceTooSmall", "Hold"]
    assert lefts(acme) == [40]
    assert unbalanced_grants() == []


@pytest.mark.django_db(transaction=True)
def test_b64_a_payment_that_is_told_three_times_at_once_grants_once(acme: Tenant) -> None:
    results = at_once(*[lambda: grant(acme, 100, reference="pay-1")] * 3)
    assert [type(result) for result in results] == [Grant] * 3
    assert lefts(acme) == [100]


@pytest.mark.django_db(transaction=True)
def test_b64_three_sweeps_at_once_expire_a_grant_once_and_release_a_hold_once(acme: Tenant) -> None:
    grant(acme, 100, expires_at=NOVEMBER + timedelta(hours=1))
    grant(acme, 70)
    Hold.objects.create(tenant_id=acme.id, kind="debit", amount_micros=1, reason="dead", actor="user:ann", created_at=NOVEMBER)
    later = NOVEMBER + timedelta(hours=2)
    assert sorted(at_once(*[lambda: expire_grants(later, look=nobody)] * 3)) == [0, 0, 1]
    assert sorted(at_once(*[lambda: release_stale_holds(later)] * 3)) == [0, 0, 1]
    assert BalanceEntry.objects.get(kind="expiry").amount_picos == -100 * PICOS_A_MICRO
    assert lefts(acme) == [70, 0]
    assert unbalanced_grants() == []


# Said and shown


def test_a_low_balance_is_told_at_a_fifth_and_at_nothing_once_for_each_grant(acme: Tenant) -> None:
    grant(acme, 100)
    steps = [(79, 0), (1, 1), (19, 0), (1, 1)]
    for number, (micros, is_told) in enumerate(steps):
        record(used(acme, f"r{number}", micros))
        assert raise_balance_alerts(NOVEMBER) == is_told
        assert raise_balance_alerts(NOVEMBER) == 0
    assert [event.data["percent"] for event in WebhookEvent.unscoped.order_by("created_at")] == [20, 0]
    grant(acme, 100, now=NOVEMBER + timedelta(hours=1))
    record(used(acme, "last", 90))
    assert raise_balance_alerts(NOVEMBER + timedelta(hours=1)) == 1


def test_top_ups_are_due_below_the_threshold_until_the_months_cap(acme: Tenant) -> None:
    limits = {"threshold_micros": 50, "amount_micros": 100, "monthly_cap_micros": 250}
    set_top_up(tenant_id=acme.id, is_enabled=True, actor="user:ann", **limits)
    for number in (1, 2):
        (due,) = due_top_ups(NOVEMBER)
        assert (due.amount_micros, due.reference) == (100, f"top-up:{acme.id}:2026-11:{number}")
        assert due_top_ups(NOVEMBER) == [due], "the same until it is granted"
        grant(acme, due.amount_micros, reference=due.reference)
        assert due_top_ups(NOVEMBER) == []
        record(used(acme, f"r{number}", 80))
    record(used(acme, "more", 30))
    assert due_top_ups(NOVEMBER) == [], "the month's cap is reached"
    assert len(due_top_ups(NOVEMBER + timedelta(days=30))) == 1


def test_the_commands_grant_show_and_take(acme: Tenant, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("grant_credit", "acme", usd="10", reason="a good start", expires="2099-01-31")
    assert "$10.00 granted" in capsys.readouterr().out
    call_command("debit_credit", "acme", usd="2.5", reason="a mistake")
    assert capsys.readouterr().out == "acme: $2.50 taken, $7.5 left\n"
    call_command("balance", "acme")
    shown = capsys.readouterr().out
    assert shown.startswith("acme pays in advance: $7.5 left\n")
    assert "2099-01-31 00:00:00 UTC" in shown

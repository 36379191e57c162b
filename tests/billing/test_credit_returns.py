"""What corrections take off goes back to the grants that paid it, also where their month is closed: once, and exactly."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models import Sum

from billing.invoice_models import InvoiceState, Statement
from billing.models import Adjustment, Balance, BalanceEntry, Grant, GrantReturn, Price, UsageRecord
from billing.services.adjustments import adjust_usage, net_picos
from billing.services.balance_reads import unbalanced_grants
from billing.services.balances import debit_balance, expire_grants
from billing.services.billed_months import billed_months, carried_over
from billing.services.closing import close_statement
from billing.services.ledger import record_usage
from billing.services.reports import credits_of_months
from headway.errors import InvalidInput
from headway.months import month_of
from tenants.models import Tenant
from tenants.services.tenants import create_tenant
from tests.billing.credit_cast import check, grant, lefts, paid, prepaid, told
from tests.billing.priced_usage import price, used

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]
OCTOBER, NOVEMBER, DECEMBER = (datetime(2026, month, 15, 12, tzinfo=UTC) for month in (10, 11, 12))
DAY, CENT = timedelta(days=1), 10**10
NOBODY: dict[str, Any] = {"wait_s": 0.0, "look": lambda: None}


@pytest.fixture
def acme() -> Tenant:
    return prepaid()


def use(tenant: Tenant, request_id: str, cents: int, at: datetime) -> None:
    """A cent a token."""
    each = Price.objects.first() or price(1, CENT, 0, 0)
    record_usage(drafts=[used(tenant, request_id, at, tokens=(cents, 0, 0), price=each)], now=at)


def correct(tenant: Tenant, request_id: str | None, picos: int, at: datetime, kind: str = "correction") -> Adjustment:
    return adjust_usage(
        tenant_id=tenant.id, request_id=request_id, amount_picos=picos, kind=kind, reason="a fault", actor="test", now=at
    )


def close(tenant: Tenant, month: str) -> Statement:
    now = datetime.fromisoformat(f"{month}-28T12:00:00+00:00") + 10 * DAY
    return close_statement(tenant_id=tenant.id, month=month, actor="test", now=now).statement


def cents(tenant: Tenant) -> list[int]:
    return [micros // 10_000 for micros in lefts(tenant)]


def test_a_correction_of_a_closed_month_goes_back_to_the_grant_that_paid_it(acme: Tenant) -> None:
    grant(acme, 100_000, now=OCTOBER - DAY)
    use(acme, "a", 10, OCTOBER)
    grant(acme, 50_000, now=OCTOBER)
    assert close(acme, "2026-10").total_minor == 0
    correct(acme, "a", -3 * CENT, NOVEMBER)
    assert (cents(acme), told(acme)["left"]) == ([3, 5], 80_000)
    november = close(acme, "2026-11")
    assert [(line.kind, line.amount_minor) for line in november.lines.all()] == [("adjustment", -3), ("credit", 3)]
    assert "given back of 2026-10" in november.lines.get(kind="credit").label
    assert (november.carried_out_picos, november.total_minor, november.invoice.state) == (0, 0, InvoiceState.PAID)
    use(acme, "b", 5, DECEMBER)
    assert (cents(acme), paid("2026-12"), close(acme, "2026-12").carried_out_picos) == ([0, 3], 50_000, 0)
    assert credits_of_months(["2026-10", "2026-11", "2026-12"]) == {acme.id: 12 * CENT}
    check(acme)


def test_a_second_correction_gets_back_what_the_first_has_left(acme: Tenant) -> None:
    grant(acme, 60_000, now=OCTOBER - DAY)
    grant(acme, 60_000, now=OCTOBER)
    use(acme, "a", 10, OCTOBER)
    close(acme, "2026-10")
    use(acme, "b", 2, NOVEMBER)
    correct(acme, "a", -3 * CENT, NOVEMBER)
    assert cents(acme) == [0, 3], "the last that was used is the first that gets back"
    correct(acme, "a", -7 * CENT, NOVEMBER)
    assert cents(acme) == [6, 4]
    assert sum(GrantReturn.objects.values_list("amount_picos", flat=True)) == 10 * CENT
    with pytest.raises(InvalidInput):
        correct(acme, "a", -1, NOVEMBER)
    assert close(acme, "2026-11").carried_out_picos == 0
    check(acme)


def test_what_goes_back_to_a_grant_that_has_ended_is_gone_with_it_and_on_record(acme: Tenant) -> None:
    over = grant(acme, 100_000, now=OCTOBER - DAY, expires_at=OCTOBER + DAY)
    use(acme, "a", 10, OCTOBER)
    close(acme, "2026-10")
    assert expire_grants(OCTOBER + 2 * DAY, **NOBODY) == 1
    grant(acme, 50_000, now=NOVEMBER - DAY)
    correct(acme, "a", -3 * CENT, NOVEMBER)
    assert (cents(acme), told(acme)["left"]) == ([0, 5], 50_000)
    gone = BalanceEntry.objects.get(kind="expiry", grant=over)
    assert (gone.amount_picos, gone.reason) == (-3 * CENT, "given back after it had expired")
    assert close(acme, "2026-11").carried_out_picos == 0
    check(acme)


def test_what_was_taken_back_of_a_grant_stays_taken_and_what_it_paid_comes_back(acme: Tenant) -> None:
    grant(acme, 100_000, now=OCTOBER - DAY)
    use(acme, "a", 4, OCTOBER)
    close(acme, "2026-10")
    debit_balance(tenant_id=acme.id, amount_micros=60_000, reason="refund", actor="test", now=NOVEMBER, **NOBODY)
    correct(acme, "a", -3 * CENT, NOVEMBER)
    assert cents(acme) == [3]
    check(acme)


def test_what_nothing_covered_goes_first_and_the_next_grant_pays_only_the_rest(acme: Tenant) -> None:
    grant(acme, 50_000, now=OCTOBER - DAY)
    use(acme, "a", 8, OCTOBER)
    correct(acme, "a", -1 * CENT, NOVEMBER)
    check(acme, overdrawn=20_000)
    grant(acme, 50_000, now=NOVEMBER)
    assert (paid("2026-10"), paid("2026-11")) == (70_000, 0), "it is on the open statement that lacked it"
    correct(acme, "a", -7 * CENT, NOVEMBER)
    assert (cents(acme), told(acme)["left"]) == ([5, 5], 100_000)
    assert close(acme, "2026-10").total_minor == 0
    check(acme)


def test_what_is_covered_after_its_month_was_closed_comes_back_too(acme: Tenant) -> None:
    grant(acme, 50_000, now=OCTOBER - DAY)
    use(acme, "a", 8, OCTOBER)
    close(acme, "2026-10")
    grant(acme, 50_000, now=NOVEMBER)
    correct(acme, "a", -7 * CENT, NOVEMBER)
    assert (cents(acme), told(acme)["left"]) == ([5, 4], 90_000)
    check(acme)


def test_goodwill_for_nothing_fills_what_grants_have_paid_and_what_is_more_is_carried_over(acme: Tenant) -> None:
    grant(acme, 50_000, now=OCTOBER - DAY)
    use(acme, "a", 4, OCTOBER)
    close(acme, "2026-10")
    use(acme, "b", 1, NOVEMBER)
    correct(acme, None, -7 * CENT, NOVEMBER, kind="goodwill")
    assert cents(acme) == [5]
    assert close(acme, "2026-11").carried_out_picos == 2 * CENT
    check(acme)


def test_of_one_who_pays_later_a_correction_of_a_closed_month_is_taken_off_the_next_invoice() -> None:
    globex = create_tenant(name="globex", actor="test")
    use(globex, "a", 10, OCTOBER)
    close(globex, "2026-10")
    grant(globex, 10_000, kind="promotion", now=NOVEMBER)
    correct(globex, "a", -3 * CENT, NOVEMBER)
    use(globex, "b", 9, NOVEMBER)
    assert (cents(globex), close(globex, "2026-11").total_minor) == ([0], 5)
    check(globex)


@pytest.mark.parametrize(("seed", "granted"), [(0, 900_000), (1, 900_000), (2, 60_000)])
def test_the_balance_is_what_was_granted_less_what_usage_and_corrections_took_in_any_order(
    acme: Tenant, seed: int, granted: int
) -> None:
    """To the pico-dollar, after each step; and where all was covered no statement ever carries anything over."""
    rng, now, closed, a_token = random.Random(seed), datetime(2026, 10, 2, tzinfo=UTC), [], price(1, 1_234_567, 0, 0)
    grant(acme, granted, now=now)
    overdrawn = 0
    for number in range(90):
        now += timedelta(hours=rng.randint(1, 30))
        month = month_of(now - 6 * DAY, "UTC").name
        if month < month_of(now, "UTC").name and month not in closed:
            closed.append(month)
            statement = close_statement(tenant_id=acme.id, month=month, actor="test", now=now).statement
            assert granted < 900_000 or statement.carried_out_picos == 0
        step = rng.choice(("use", "use", "use", "correct", "correct", "raise", "grant", "expire", "debit"))
        requests = list(UsageRecord.objects.filter(tenant_id=acme.id))
        if step == "use":
            draft = used(acme, f"r{number}", now, tokens=(rng.randint(1, 30_000), 0, 0), price=a_token)
            record_usage(drafts=[draft], now=now)
        elif step in ("correct", "raise") and requests:
            chosen = rng.choice(requests)
            most = net_picos(chosen)
            if picos := -rng.randint(0, most) if step == "correct" else rng.randint(1, 10**9):
                correct(acme, chosen.request_id, picos, now)
        elif step == "grant":
            expires_at = rng.choice((None, now + timedelta(days=rng.randint(1, 20))))
            grant(acme, rng.randint(1, 60_000), now=now, expires_at=expires_at)
        elif step == "expire":
            expire_grants(now, **NOBODY)
        elif step == "debit" and sum(lefts(acme)) > 500_000:
            debit_balance(tenant_id=acme.id, amount_micros=1_000, reason="x", actor="test", now=now, **NOBODY)
        assert_it_adds_up(acme)
        assert_months_are_what_statements_say(acme, [*closed, month_of(now, "UTC").name])
        overdrawn += Balance.objects.filter(overdrawn_picos__gt=0).exists()
    assert len(closed) >= 2 and GrantReturn.objects.exists() and bool(overdrawn) == (granted < 900_000)


def assert_months_are_what_statements_say(tenant: Tenant, months: list[str]) -> None:
    found = billed_months(tenant.id, months)
    for each in found[:-1]:
        lines = Statement.objects.get(tenant_id=tenant.id, month=each.month).lines.exclude(kind="tax")
        assert each.is_closed and each.invoiced_picos == sum(line.amount_picos or 0 for line in lines)
    closed = found[:-1]
    invoiced = sum(each.used_picos for each in closed) - credits_of_months(months[:-1]).get(tenant.id, 0)
    assert invoiced + carried_over(months[:-1]).get(tenant.id, 0) == sum(each.invoiced_picos for each in closed)


def assert_it_adds_up(tenant: Tenant) -> None:
    def sum_of(rows: Any, name: str = "amount_picos") -> int:
        return int(rows.aggregate(sum=Sum(name))["sum"] or 0)

    mine: dict[str, Any] = {"tenant_id": tenant.id}
    grants, balance = Grant.objects.filter(**mine), Balance.objects.get(**mine)
    left = sum_of(grants, "left_picos") + sum_of(grants, "held_picos") - balance.overdrawn_picos
    ledger = sum_of(UsageRecord.objects.filter(**mine)) + sum_of(Adjustment.objects.filter(**mine))
    assert left == sum_of(BalanceEntry.objects.filter(**mine)) - ledger
    assert unbalanced_grants() == []

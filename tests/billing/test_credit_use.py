"""What usage uses of grants, in whatever order records come."""

import random
from datetime import timedelta

import pytest

from billing.models import Balance
from billing.selectors_credit import credit_used
from billing.services.adjustments import adjust_usage
from billing.services.balances import expire_grants
from headway.money import PICOS_A_MICRO
from tenants.models import Tenant
from tenants.services.tenants import create_tenant
from tests.billing.credit_cast import NOVEMBER, check, grant, lefts, paid, prepaid, record, told, used

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def acme() -> Tenant:
    return prepaid()


@pytest.fixture
def globex() -> Tenant:
    """Pays later."""
    return create_tenant(name="globex", actor="test")


def test_usage_uses_the_grant_that_expires_soonest_then_the_oldest(acme: Tenant) -> None:
    grant(acme, 100, now=NOVEMBER - 3 * HOUR)
    grant(acme, 101, now=NOVEMBER - 2 * HOUR)
    grant(acme, 102, now=NOVEMBER - HOUR, expires_at=NOVEMBER + HOUR)
    record(used(acme, "a", 150))
    assert lefts(acme) == [52, 101, 0]
    record(used(acme, "b", 60))
    assert lefts(acme) == [0, 93, 0]
    lines = credit_used(acme.id, "2026-11")
    assert [line.amount_picos // PICOS_A_MICRO for line in lines] == [102, 100, 8]
    assert lines[0].label == "Prepaid credit: a payment"
    assert told(acme) == {"left": 93, "spent": 210, "expiring": []}
    check(acme)


def test_a_record_that_comes_again_uses_nothing_again(acme: Tenant) -> None:
    grant(acme, 100)
    for _ in range(3):
        record(used(acme, "a", 40))
    assert (lefts(acme), told(acme)["spent"]) == ([60], 40)


def test_a_final_record_gives_back_what_the_lost_one_used(acme: Tenant) -> None:
    grant(acme, 100)
    record(used(acme, "a", 40, "gateway_lost", usage_source="partial"), used(acme, "b", 5))
    record(used(acme, "a", 30))
    assert (lefts(acme), told(acme)) == ([65], {"left": 65, "spent": 35, "expiring": []})
    check(acme)


def test_of_one_who_pays_later_what_no_grant_covers_is_left_for_the_invoice(globex: Tenant) -> None:
    grant(globex, 100, kind="promotion")
    record(used(globex, "a", 130))
    assert (lefts(globex), paid()) == ([0], 100)
    check(globex)
    adjust_usage(
        tenant_id=globex.id,
        request_id="a",
        amount_picos=-50 * PICOS_A_MICRO,
        kind="correction",
        reason="an engine counted wrong",
        actor="user:ann",
        now=NOVEMBER,
    )
    assert (lefts(globex), paid()) == ([20], 80), "the invoice's part goes first"
    check(globex)


def test_who_never_had_credit_has_no_balance(globex: Tenant) -> None:
    record(used(globex, "a", 130))
    assert not Balance.objects.exists()


def test_what_no_grant_covers_of_one_who_pays_in_advance_is_overdrawn_and_the_next_grant_pays_it(acme: Tenant) -> None:
    grant(acme, 100)
    record(used(acme, "a", 130))
    check(acme, overdrawn=30)
    assert told(acme)["left"] == -30
    grant(acme, 50)
    check(acme)
    assert (lefts(acme), told(acme)["left"], paid()) == ([20, 0], 20, 130)


def test_a_grant_pays_for_what_began_before_it_expired_and_for_nothing_later(acme: Tenant) -> None:
    over = NOVEMBER + HOUR
    grant(acme, 100, expires_at=over)
    grant(acme, 50)
    assert told(acme) == {"left": 150, "spent": 0, "expiring": [(over.timestamp(), 100)]}
    record(used(acme, "late", 10, began_at=over), now=over + HOUR / 60)
    assert lefts(acme) == [40, 100]
    record(used(acme, "before", 10, began_at=over - HOUR / 60), now=over + HOUR / 30)
    assert lefts(acme) == [40, 90]
    assert told(acme) == {"left": 40, "spent": 20, "expiring": []}
    nobody = {"wait_s": 0.0, "look": lambda: None}
    assert expire_grants(over + HOUR / 60, **nobody) == 0, "what began before may still come"  # type: ignore[arg-type]
    assert expire_grants(over + HOUR, **nobody) == 1  # type: ignore[arg-type]
    assert lefts(acme) == [40, 0]
    check(acme)


def test_b53_in_any_order_and_any_batches_the_balance_is_what_was_granted_less_the_ledger(acme: Tenant) -> None:
    rng = random.Random(5)
    drafts = [used(acme, f"r{number}", rng.randint(1, 90), began_at=NOVEMBER + timedelta(days=number)) for number in range(30)]
    lost = [used(acme, f"r{number}", rng.randint(0, 9), "gateway_lost", usage_source="partial") for number in range(0, 30, 3)]
    todo = drafts + lost + rng.sample(drafts, 10)
    rng.shuffle(todo)
    for _ in range(4):
        grant(acme, 700)
    while todo:
        batch, todo = todo[:4], todo[4:]
        record(*batch, now=NOVEMBER + timedelta(days=31))
    total = sum(draft.amount_picos or 0 for draft in drafts) // PICOS_A_MICRO
    assert sum(lefts(acme)) == 2800 - total
    assert (told(acme)["left"], told(acme)["spent"]) == (2800 - total, total)
    assert paid("2026-11") + paid("2026-12") == total
    check(acme)

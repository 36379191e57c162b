"""What a month comes to after credits and what is carried over: on the usage page and in reports as on the invoice."""

from datetime import UTC, datetime
from typing import Any

import pytest

from billing.models import Price
from billing.services.adjustments import adjust_usage
from billing.services.balances import grant_credit
from billing.services.billed_months import BilledMonth, billed_months, carried_over
from billing.services.closing import close_statement
from billing.services.ledger import record_usage
from billing.services.statements import draft_statement
from dashboard.operator_reports import report_page
from dashboard.usage_page import billed_in
from dashboard.usage_query import usage_query
from tenants.models import Tenant
from tenants.services.tenants import create_tenant
from tests.billing.priced_usage import price, used

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]
CENT = 10**10
MONTHS = ["2026-10", "2026-11", "2026-12", "2027-01"]
JANUARY = datetime(2027, 1, 20, 12, tzinfo=UTC)


@pytest.fixture
def acme() -> Tenant:
    """October owes 25 cents; in November nothing was used; December takes 10 of it and 3 of a grant; January runs."""
    tenant = create_tenant(name="acme", actor="test")
    adjust_usage(
        tenant_id=tenant.id,
        request_id=None,
        amount_picos=-25 * CENT,
        kind="goodwill",
        reason="sorry",
        actor="test",
        now=datetime(2026, 10, 5, tzinfo=UTC),
    )
    close(tenant, "2026-10")
    close(tenant, "2026-11")
    december = datetime(2026, 12, 5, tzinfo=UTC)
    grant_credit(tenant_id=tenant.id, amount_micros=30_000, reason="x", actor="test", now=december)
    use(tenant, 13, december)
    close(tenant, "2026-12")
    use(tenant, 40, JANUARY)
    return tenant


def close(tenant: Tenant, month: str) -> Any:
    now = datetime.fromisoformat(f"{month}-28T12:00:00+00:00").replace(day=28)
    later = now.replace(year=now.year + now.month // 12, month=now.month % 12 + 1)
    return close_statement(tenant_id=tenant.id, month=month, actor="test", now=later)


def use(tenant: Tenant, cents: int, at: datetime) -> None:
    each = Price.objects.first() or price(1, CENT, 0, 0)
    record_usage(drafts=[used(tenant, f"r-{at}", at, tokens=(cents, 0, 0), price=each)], now=at)


def cents(each: BilledMonth) -> tuple[int, ...]:
    names = ("used_picos", "credit_picos", "carried_in_picos", "carried_out_picos", "invoiced_picos")
    return tuple(getattr(each, name) // CENT for name in names)


def test_each_month_is_what_its_statement_or_its_draft_says(acme: Tenant) -> None:
    found = billed_months(acme.id, MONTHS)
    assert [cents(each) for each in found] == [
        (-25, 0, 0, 25, 0),
        (0, 0, 25, 25, 0),
        (13, 3, 25, 15, 0),
        (40, 0, 15, 0, 25),
    ]
    assert [each.is_closed for each in found] == [True, True, True, False]
    assert [each.invoice is not None for each in found] == [True, False, True, False]
    draft = draft_statement(acme.id, "2027-01", now=JANUARY)
    assert sum(line.amount_picos or 0 for line in draft.lines) == found[-1].invoiced_picos
    assert draft.subtotal_minor == 25
    assert (draft.carried_in_picos, draft.carried_out_picos) == (found[-1].carried_in_picos, found[-1].carried_out_picos)


def test_a_month_that_runs_and_owes_says_so_as_its_draft_does(acme: Tenant) -> None:
    given: dict[str, Any] = {"amount_picos": -60 * CENT, "kind": "goodwill", "reason": "x", "actor": "test", "now": JANUARY}
    adjust_usage(tenant_id=acme.id, request_id=None, **given)
    (running,) = billed_months(acme.id, ["2027-01"])
    assert cents(running) == (-20, 0, 15, 35, 0)
    assert draft_statement(acme.id, "2027-01", now=JANUARY).carried_out_picos == running.carried_out_picos


def test_months_of_others_and_none_at_all_are_nothing(acme: Tenant) -> None:
    globex = create_tenant(name="globex", actor="test")
    assert [cents(each) for each in billed_months(globex.id, MONTHS)] == [(0, 0, 0, 0, 0)] * 4
    assert billed_months(acme.id, []) == [] and carried_over([]) == {}


def test_what_is_carried_over_is_what_later_months_keep_less_what_they_took(acme: Tenant) -> None:
    assert carried_over(["2026-10"]) == {acme.id: 25 * CENT}
    assert carried_over(["2026-11"]) == {}, "as much as it took over"
    assert carried_over(["2026-12", "2027-01"]) == {acme.id: -10 * CENT}
    assert carried_over(MONTHS[:3]) == {acme.id: 15 * CENT}


def test_the_report_shows_it_beside_credits_so_that_it_comes_to_the_invoices(acme: Tenant) -> None:
    whole = report_page({"range": "custom", "from": "2026-10-01", "to": "2026-12-31", "zone": "own"}, JANUARY)
    (line,) = whole.lines
    assert (line.sums["amount_picos"], line.credit_picos, line.carried_picos) == (-12 * CENT, 3 * CENT, 15 * CENT)
    assert (whole.credit_picos, whole.carried_picos) == (3 * CENT, 15 * CENT)
    invoiced = sum(each.invoiced_picos for each in billed_months(acme.id, MONTHS[:3]))
    assert line.sums["amount_picos"] - whole.credit_picos + whole.carried_picos == invoiced
    for more in ({"from": "2026-10-02", "to": "2026-10-31"}, {"from": "2026-10-01", "to": "2026-10-31", "model": "tiny"}):
        part = report_page({"range": "custom", "zone": "own", **more}, JANUARY)
        assert part.carried_picos == 0 and all(line.carried_picos is None for line in part.lines)
    other = create_tenant(name="globex", actor="test")
    of_other = report_page({"range": "custom", "from": "2026-10-01", "to": "2026-10-31", "tenant": other.name}, JANUARY)
    assert of_other.carried_picos == 0


@pytest.mark.parametrize(
    ("asked", "months"),
    [
        ({"range": "month"}, ["2027-01"]),
        ({"range": "7d"}, []),
        ({"range": "30d"}, ["2027-01"]),
        ({"range": "custom", "from": "2026-10-01", "to": "2027-01-21"}, ["2027-01", "2026-12", "2026-11", "2026-10"]),
        ({"range": "custom", "from": "2026-10-02", "to": "2026-12-31"}, ["2026-12", "2026-11"]),
        ({"range": "custom", "from": "2026-12-01", "to": "2026-12-30"}, []),
        ({"range": "custom", "from": "2027-01-01", "to": "2027-01-19"}, []),
        ({"range": "custom", "from": "2027-01-01", "to": "2027-08-19"}, ["2027-01"]),
        ({"range": "custom", "from": "2027-02-01", "to": "2027-08-19"}, []),
        ({"range": "month", "model": "tiny"}, []),
        ({"range": "month", "key": "k"}, []),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/New_York"])
def test_the_usage_page_shows_months_that_lie_wholly_in_its_range(
    acme: Tenant, asked: dict[str, str], months: list[str], zone: str
) -> None:
    query = usage_query(asked, zone, JANUARY)
    assert [each.month for each in billed_in(acme, query, JANUARY)] == months

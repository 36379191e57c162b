"""Months become statements and invoices: all of the ledger, once, in the tenant's own time."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.db.models import Sum

from billing.errors import MonthNotOver, RateMissing, StatementDiffers
from billing.invoice_models import Invoice, InvoiceState, LineKind, NumberSeries, Statement
from billing.models import Adjustment, ClosedMonth, MonthSpend, UsageRecord
from billing.selectors_credit import CreditLine
from billing.services import closing, statements
from billing.services.accounts import set_billing_account
from billing.services.adjustments import adjust_usage
from billing.services.closing import close_all, close_due, close_statement
from billing.services.ledger import record_usage
from billing.services.month_sums import adjustments_of_line, requests_of_line
from billing.services.numbering import take_number
from billing.services.rates import set_exchange_rate, set_tax_rate
from billing.services.statements import draft_statement
from headway.errors import ConfigurationError, HeadwayError, InvalidInput
from tenants.models import Tenant
from tenants.services.tenants import create_tenant
from tenants.services.terms import set_limits
from tests.billing.priced_usage import price, used
from tests.tenants.test_at_once import at_once
from workers.models import OutboxEntry

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]
NOV = "2026-11"
DEC_5 = datetime(2026, 12, 5, 12, tzinfo=UTC)
CENT = 10**10


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


def at(day: int, hour: int = 12, month: int = 11, minute: int = 0, zone: str = "UTC") -> datetime:
    return datetime(2026, month, day, hour, minute, tzinfo=ZoneInfo(zone))


def close(tenant: Tenant, month: str = NOV, now: datetime = DEC_5) -> closing.Closed:
    return close_statement(tenant_id=tenant.id, month=month, actor="test", now=now)


def invoice_of(closed: closing.Closed) -> Invoice:
    assert closed.invoice is not None
    return closed.invoice


def adjust(tenant: Tenant, amount_picos: int, request_id: str | None = None, kind: str = "goodwill") -> Adjustment:
    return adjust_usage(
        tenant_id=tenant.id,
        request_id=request_id,
        amount_picos=amount_picos,
        kind=kind,
        reason="an outage: two hours",
        actor="test",
        now=at(20),
    )


def test_a_month_becomes_a_statement_whose_lines_are_the_ledger(acme: Tenant) -> None:
    one, two = price(1, 150_000, 15_000, 600_000), price(2, 300_000, 30_000, 1_200_000)
    record_usage(
        drafts=[
            used(acme, "a", at(3), tokens=(2_000_000, 1_000_000, 500_000), price=one),
            used(acme, "b", at(4), tokens=(10, 0, 3), price=one, tier="batch"),
            used(acme, "c", at(20), tokens=(10, 4, 3), price=two, discount_percent=15),
            used(acme, "d", at(21), tokens=(10, 4, 3), price=two, end_state="engine_died"),
            used(acme, "e", at(21), tokens=(10, 4, 3), price=two, end_state="client_gone_before_first_token"),
            used(acme, "f", at(22)),  # there was no price
        ]
    )
    closed = close(acme)
    lines = list(closed.statement.lines.all())
    assert [line.position for line in lines] == list(range(1, len(lines) + 1))
    ledger = UsageRecord.objects.aggregate(all=Sum("amount_picos"))["all"]
    assert closed.statement.ledger_picos == ledger == sum(line.amount_picos or 0 for line in lines)
    assert closed.statement.total_minor == sum(line.amount_minor for line in lines) == 47
    assert {line.kind for line in lines} == {LineKind.USAGE, LineKind.DISCOUNT}
    invoice = invoice_of(closed)
    assert (invoice.number, invoice.state, invoice.total_minor) == ("INV-000001", "open", 47)
    assert (invoice.issued_on, invoice.due_on) == (date(2026, 12, 5), date(2026, 12, 19))


def test_x12_each_record_has_the_price_and_the_plan_of_its_own_time(acme: Tenant) -> None:
    one, two = price(1, 100, 100, 100), price(2, 1_000, 1_000, 1_000)
    drafts = [used(acme, "a", at(1), price=one), used(acme, "b", at(16), price=two)]
    drafts += [used(acme, "c", at(17), price=two, discount_percent=50), used(acme, "d", at(18), price=two, discount_percent=20)]
    record_usage(drafts=drafts)
    lines = close(acme).statement.lines.all()
    assert {(line.price_version, line.token_kind): line.quantity_tokens for line in lines if line.kind == "usage"} == {
        ("1", "input"): 100,
        ("1", "output"): 10,
        ("2", "input"): 300,
        ("2", "output"): 30,
    }
    assert {line.discount_percent: line.amount_picos for line in lines if line.kind == "discount"} == {
        50: -110 * 500,
        20: -110 * 200,
    }


def test_x11_tiny_rows_add_up_before_anything_is_rounded(acme: Tenant) -> None:
    each = price(1, 15_000, 15_000, 0)
    record_usage(drafts=[used(acme, f"r{n}", at(2), tokens=(100, 0, 0), price=each) for n in range(2_000)])
    adjust(acme, -(CENT // 2))
    closed = close(acme)
    assert [(line.amount_picos, line.amount_minor) for line in closed.statement.lines.all()] == [
        (2_000 * 1_500_000, 0),
        (-CENT // 2, -1),
        (CENT, 1),  # a tenth of a cent is owed: half a cent, rounded, is carried over whole
    ]


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Pacific/Chatham"])
def test_b149_at_the_months_edge_each_record_is_on_one_invoice_in_the_tenants_zone(acme: Tenant, zone: str) -> None:
    set_limits(tenant=acme, limits={}, time_zone=zone, actor="test")
    each = price(1, 10**8, 0, 0)
    times = {
        "oct": at(31, 23, month=10, minute=30, zone=zone),
        "first": at(1, 0, minute=0, zone=zone),
        "early": at(1, 0, minute=30, zone=zone),
        "late": at(30, 23, minute=30, zone=zone),
        "last": at(1, 0, month=12, zone=zone) - timedelta(microseconds=1),
        "dec": at(1, 0, month=12, zone=zone),
        "dec late": at(1, 0, month=12, minute=30, zone=zone),
    }
    record_usage(
        drafts=[used(acme, name, when, tokens=(100 * 2**n, 0, 0), price=each) for n, (name, when) in enumerate(times.items())]
    )
    made = [close(acme, month, now=datetime(2027, 1, 9, tzinfo=UTC)).statement for month in ("2026-10", NOV, "2026-12")]
    found = [[row.request_id for line in each.lines.all() for row in requests_of_line(line)] for each in made]
    assert found == [["oct"], ["first", "early", "late", "last"], ["dec", "dec late"]]
    assert sum(each.ledger_picos for each in made) == UsageRecord.objects.aggregate(all=Sum("amount_picos"))["all"]
    assert [each.total_minor for each in made] == [1, 30, 96]
    assert made[1].starts_at == times["first"] and made[1].ends_at == times["dec"]


def test_b149_a_zone_that_is_changed_loses_no_row_and_bills_none_twice(acme: Tenant) -> None:
    each = price(1, 10**9, 0, 0)
    set_limits(tenant=acme, limits={}, time_zone="Pacific/Chatham", actor="test")
    edge = datetime(2026, 11, 30, 10, 15, tzinfo=UTC)  # December begins there
    times = [edge + timedelta(hours=hours) for hours in range(-20, 40, 3)]
    record_usage(drafts=[used(acme, f"a{n}", when, tokens=(100, 0, 0), price=each) for n, when in enumerate(times)])
    set_limits(tenant=acme, limits={}, time_zone="America/Los_Angeles", actor="test")
    record_usage(drafts=[used(acme, f"b{n}", when, tokens=(100, 0, 0), price=each) for n, when in enumerate(times)])
    made = [close(acme, month, now=datetime(2027, 1, 9, tzinfo=UTC)).statement for month in (NOV, "2026-12")]
    found = [row.request_id for each_made in made for line in each_made.lines.all() for row in requests_of_line(line)]
    assert sorted(found) == sorted(UsageRecord.objects.values_list("request_id", flat=True))
    assert sum(each_made.ledger_picos for each_made in made) == 2 * len(times) * 100 * 10**9


def test_a_month_that_is_not_over_where_the_tenant_is_stays_open(acme: Tenant) -> None:
    set_limits(tenant=acme, limits={}, time_zone="America/Los_Angeles", actor="test")
    with pytest.raises(MonthNotOver):
        close(acme, now=datetime(2026, 12, 1, 7, 59, 59, tzinfo=UTC))
    assert not ClosedMonth.objects.exists() and not Statement.objects.exists()
    assert close(acme, now=datetime(2026, 12, 1, 8, tzinfo=UTC)).is_new
    for month in ("2026-13", "november", "2026-1", ""):
        with pytest.raises(InvalidInput):
            close(acme, month)


def test_what_is_told_after_the_close_is_on_the_next_statement_and_marked(acme: Tenant) -> None:
    each = price(1, 10**8, 0, 0)
    record_usage(drafts=[used(acme, "a", at(3), price=each)], now=at(3))
    first = close(acme)
    record_usage(drafts=[used(acme, "late", at(30), price=each), used(acme, "b", at(6, month=12), price=each)], now=DEC_5)
    second = close(acme, "2026-12", now=datetime(2027, 1, 4, tzinfo=UTC))
    assert first.statement.ledger_picos == 100 * 10**8
    lines = {line.is_late: line for line in second.statement.lines.all()}
    assert [row.request_id for row in requests_of_line(lines[True])] == ["late"]
    assert [row.request_id for row in requests_of_line(lines[False])] == ["b"]
    assert any("Used earlier" in note for note in invoice_of(second).notes)


def test_the_requests_of_a_line_add_up_to_it(acme: Tenant) -> None:
    one, two = price(1, 150_000, 15_000, 600_000), price(2, 299_999, 30_001, 1)
    record_usage(
        drafts=[
            used(
                acme,
                f"r{n}",
                at(1 + n % 28),
                tokens=(n * 7, n % 5, n % 3),
                price=(one, two)[n % 2],
                discount_percent=(0, 15, 33)[n % 3],
                tier=("standard", "batch")[n % 7 == 0],
                end_state=("done", "engine_died", "refused", "client_gone_after_first_token")[n % 4],
            )
            for n in range(120)
        ]
    )
    adjust(acme, -77, "r8", "correction")
    prices = {"1": one, "2": two}
    kinds = set()
    for line in close(acme).statement.lines.all():
        rows = list(requests_of_line(line))
        kinds.add(line.kind)
        assert len(rows) == line.requests
        if line.kind == LineKind.ADJUSTMENT:
            assert sum(each.amount_picos for each in adjustments_of_line(line)) == line.amount_picos
            assert [row.request_id for row in rows] == ["r8"]
            continue
        listed = {row.id: listed_picos(row, prices[row.price_version]) for row in rows}
        if line.kind == LineKind.DISCOUNT:
            assert sum((row.amount_picos or 0) - sum(listed[row.id].values()) for row in rows) == line.amount_picos
        else:
            assert sum(listed[row.id][line.token_kind] for row in rows) == line.amount_picos
    assert kinds == {LineKind.USAGE, LineKind.DISCOUNT, LineKind.ADJUSTMENT}


def listed_picos(row: UsageRecord, of: Any) -> dict[str, int]:
    is_whole = row.end_state in {"done", "client_gone_after_first_token"}
    return {
        "input": (row.prompt_tokens - row.cached_tokens) * of.input_micros * is_whole,
        "cached_input": row.cached_tokens * of.cached_micros * is_whole,
        "output": row.completion_tokens * of.output_micros,
    }


def spoil_an_amount(_tenant: Tenant) -> None:
    UsageRecord.objects.filter(request_id="a").update(amount_picos=1)


def spoil_one_that_is_not_billed(_tenant: Tenant) -> None:
    UsageRecord.objects.filter(request_id="free").update(amount_picos=5, end_state="refused")


def spoil_the_months_sum(_tenant: Tenant) -> None:
    MonthSpend.objects.filter(key_id="", model="").update(amount_picos=7)


def adjust_past_the_months_sum(tenant: Tenant) -> None:
    adjust(tenant, -5)
    MonthSpend.objects.filter(key_id="", model="").update(amount_picos=10**11)


@pytest.mark.parametrize(
    "spoil", [spoil_an_amount, spoil_one_that_is_not_billed, spoil_the_months_sum, adjust_past_the_months_sum]
)
def test_a_ledger_that_was_tampered_with_closes_nothing(acme: Tenant, spoil: Callable[[Tenant], None]) -> None:
    record_usage(drafts=[used(acme, "a", at(3), price=price(1, 10**9, 0, 0)), used(acme, "free", at(3))])
    spoil(acme)
    with pytest.raises(StatementDiffers):
        close(acme)
    assert not ClosedMonth.objects.exists() and not Invoice.objects.exists() and not NumberSeries.objects.exists()


def test_records_from_before_amounts_were_exact_are_billed_as_they_were_rated(acme: Tenant) -> None:
    each = price(1, 150_001, 0, 0)
    record_usage(
        drafts=[
            used(acme, "old", at(2), tokens=(7, 0, 0), price=each, amount_picos=2_000_000),  # 1.050007 micro-dollars, up
            used(acme, "new", at(3), tokens=(7, 0, 0), price=each),
        ]
    )
    lines = close(acme).statement.lines.all()
    assert [(line.kind, line.amount_picos) for line in lines] == [("usage", 2 * 1_050_007), ("rounding", 2_000_000 - 1_050_007)]


def test_closing_again_gives_the_same_statement_back(acme: Tenant) -> None:
    record_usage(drafts=[used(acme, "a", at(3), price=price(1, 10**9, 0, 0))])
    first, again = close(acme), close(acme)
    assert (first.is_new, again.is_new) == (True, False)
    assert again.statement == first.statement and again.invoice == first.invoice
    assert Invoice.objects.count() == OutboxEntry.objects.filter(kind="invoice").count() == 1


def test_nothing_used_is_a_statement_without_an_invoice(acme: Tenant) -> None:
    set_tax_rate(country="DE", name="MwSt", percent="19", effective_from=date(2026, 1, 1), actor="test")
    record_usage(drafts=[used(acme, "a", at(3), end_state="refused", tokens=(0, 0, 0), price=price(1, 10, 10, 10))])
    closed = close(acme)
    assert closed.invoice is None and closed.statement.total_minor == 0 and not closed.statement.lines.exists()
    assert not NumberSeries.objects.exists()


@pytest.mark.parametrize(("picos_a_token", "why"), [(0, "free"), (10, "less than the smallest unit")])
def test_what_comes_to_nothing_is_an_invoice_that_is_paid_and_says_why(acme: Tenant, picos_a_token: int, why: str) -> None:
    record_usage(drafts=[used(acme, "a", at(3), price=price(1, picos_a_token, 0, 0))])
    invoice = invoice_of(close(acme))
    assert (invoice.state, invoice.total_minor, invoice.paid_at) == (InvoiceState.PAID, 0, DEC_5)
    assert why in invoice.state_reason


def test_credits_pay_and_say_so(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    record_usage(drafts=[used(acme, "a", at(3), tokens=(100, 0, 0), price=price(1, 10**9, 0, 0))])
    credit = [CreditLine("g1", "welcome", 4 * CENT)]
    monkeypatch.setattr(statements, "credit_used", lambda _tenant, _month: credit)
    draft = draft_statement(acme.id, NOV, now=DEC_5)
    assert (draft.subtotal_minor, draft.credit_picos, draft.ledger_picos) == (6, 4 * CENT, 10 * CENT)
    credit[:] = [CreditLine("g1", "welcome", 10 * CENT)]
    invoice = invoice_of(close(acme))
    assert (invoice.state, invoice.total_minor) == (InvoiceState.PAID, 0)
    assert "credits" in invoice.state_reason


def test_what_is_owed_to_the_customer_is_taken_off_the_next_statement_with_use(acme: Tenant) -> None:
    each = price(1, 10**9, 0, 0)
    adjust(acme, -25 * CENT)
    first = close(acme)
    assert (first.statement.total_minor, first.statement.carried_out_picos) == (0, 25 * CENT)
    assert "carried over" in invoice_of(first).state_reason
    idle = close(acme, "2026-12", now=datetime(2027, 1, 5, tzinfo=UTC))
    assert idle.invoice is None and idle.statement.carried_out_picos == 25 * CENT
    january = datetime(2027, 1, 20, tzinfo=UTC)
    record_usage(drafts=[used(acme, "a", january, tokens=(400, 0, 0), price=each)], now=january)
    third = close(acme, "2027-01", now=datetime(2027, 2, 5, tzinfo=UTC))
    assert (third.statement.total_minor, third.statement.carried_in_picos, third.statement.carried_out_picos) == (
        15,
        25 * CENT,
        0,
    )
    assert [line.amount_minor for line in third.statement.lines.all()] == [40, -25]


def test_tax_is_a_line_over_the_rounded_ones(acme: Tenant) -> None:
    set_tax_rate(country="DE", name="MwSt", percent="19", effective_from=date(2026, 1, 1), actor="test")
    set_tax_rate(country="DE", name="MwSt", percent="50", effective_from=date(2026, 12, 1), actor="test")
    set_billing_account(tenant_id=acme.id, country="DE", actor="test")
    record_usage(drafts=[used(acme, "a", at(3), tokens=(100, 0, 50), price=price(1, 10**10, 0, 10**8))])
    closed = close(acme)
    assert [(line.label, line.amount_minor) for line in closed.statement.lines.all()][-1] == ("MwSt 19 %", 19)
    invoice = invoice_of(closed)
    assert (invoice.subtotal_minor, invoice.tax_minor, invoice.total_minor) == (101, 19, 120)
    assert (invoice.tax_treatment, invoice.tax_basis_points) == ("domestic", 1900)


@pytest.mark.parametrize(("currency", "rate", "minor"), [("EUR", "0.925", 93), ("JPY", "150.5", 151), ("USD", "", 100)])
def test_currencies_with_two_decimals_and_none(acme: Tenant, currency: str, rate: str, minor: int) -> None:
    set_billing_account(tenant_id=acme.id, currency=currency, country="US", actor="test")
    record_usage(drafts=[used(acme, "a", at(3), tokens=(100, 0, 0), price=price(1, 10**10, 0, 0))])
    if rate:
        with pytest.raises(RateMissing, match=currency):
            close(acme)
        assert not ClosedMonth.objects.exists()
        set_exchange_rate(currency=currency, units_per_usd=rate, effective_from=date(2026, 11, 30), actor="test")
    closed = close(acme)
    assert (closed.statement.total_minor, closed.statement.currency) == (minor, currency)
    assert closed.statement.ledger_picos == 10**12


def test_an_invoice_keeps_what_both_parties_were(acme: Tenant, company: Any) -> None:
    set_billing_account(
        tenant_id=acme.id, legal_name="Acme SA", address=["1 rue X", "75001 Paris"], country="FR",
        tax_id="FR 12 345678901", purchase_order="PO-1", actor="test",
    )  # fmt: skip
    record_usage(drafts=[used(acme, "a", at(3), price=price(1, 10**10, 0, 0))])
    number = invoice_of(close(acme)).number
    set_billing_account(tenant_id=acme.id, legal_name="Other", address=[], actor="test")
    company.COMPANY_NAME = "Another"
    invoice = Invoice.objects.get(number=number)
    assert (invoice.buyer["name"], invoice.buyer["tax_id"], invoice.buyer["address"][0]) == (
        "Acme SA",
        "FR12345678901",
        "1 rue X",
    )
    assert (invoice.seller["name"], invoice.seller["tax_id"]) == ("Example Inference GmbH", "DE123456789")
    assert invoice.tax_treatment == "reverse_charge" and "Reverse charge" in invoice.notes[0]


def test_without_a_name_of_our_own_nothing_is_closed(acme: Tenant, company: Any) -> None:
    company.COMPANY_NAME = ""
    record_usage(drafts=[used(acme, "a", at(3), price=price(1, 10**10, 0, 0))])
    with pytest.raises(ConfigurationError, match="HEADWAY_COMPANY_NAME"):
        close(acme)
    assert not ClosedMonth.objects.exists()
    assert close_due(now=DEC_5).closed == []


def test_numbers_have_no_gaps_when_a_transaction_fails(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    each = price(1, 10**10, 0, 0)
    tenants = [acme, create_tenant(name="other", actor="test"), create_tenant(name="third", actor="test")]
    record_usage(drafts=[used(tenant, f"r{tenant.name}", at(3), price=each) for tenant in tenants])

    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise HeadwayError("the disk is full")

    assert invoice_of(close(tenants[0])).number == "INV-000001"
    with monkeypatch.context() as patched:
        patched.setattr(closing, "audit_invoice", fail)  # the last step: the number is taken by then
        with pytest.raises(HeadwayError):
            close(tenants[1])
    assert invoice_of(close(tenants[2])).number == "INV-000002"
    assert invoice_of(close(tenants[1])).number == "INV-000003"


def test_closing_all_goes_on_past_one_that_fails_and_leaves_out_whose_month_runs(acme: Tenant) -> None:
    each = price(1, 10**10, 0, 0)
    broken, far = create_tenant(name="broken", actor="test"), create_tenant(name="far", actor="test")
    set_limits(tenant=far, limits={}, time_zone="Pacific/Pago_Pago", actor="test")
    record_usage(drafts=[used(tenant, f"r{tenant.name}", at(3), price=each) for tenant in (acme, broken, far)])
    UsageRecord.objects.filter(tenant_id=broken.id).update(amount_picos=1)
    made = close_all(NOV, actor="test", now=datetime(2026, 12, 1, 1, tzinfo=UTC))
    assert [each.statement.tenant_id for each in made.closed] == [acme.id]
    assert list(made.failed) == [(broken.id, NOV)]
    assert Statement.objects.count() == 1


def test_b137_every_month_that_is_due_is_closed_by_the_next_sweep_and_once(acme: Tenant, company: Any) -> None:
    each = price(1, 10**10, 0, 0)
    free = create_tenant(name="free", actor="test")
    record_usage(
        drafts=[
            used(acme, "sep", at(3, month=9), price=each),
            used(acme, "nov", at(3), price=each),
            used(free, "f", at(3), price=price(2, 0, 0, 0)),
        ]
    )
    company.STATEMENT_CLOSE_DAYS = 3
    early = close_due(now=datetime(2026, 12, 3, 23, 59, tzinfo=UTC))
    assert [(each.statement.month, each.is_new) for each in early.closed] == [("2026-09", True)]
    due = close_due(now=datetime(2026, 12, 4, tzinfo=UTC))
    assert {(each.statement.tenant_id, each.statement.month) for each in due.closed} == {(acme.id, NOV), (free.id, NOV)}
    assert close_due(now=datetime(2026, 12, 4, 1, tzinfo=UTC)).closed == []
    assert close_due(now=datetime(2026, 12, 20, tzinfo=UTC)).closed == [], "December still runs"


@pytest.mark.django_db(transaction=True)
def test_b135_b136_several_at_once_and_again_make_one_invoice(acme: Tenant) -> None:
    """A task that is delivered twice, or by several brokers' timeouts, while the first still runs."""
    others = [create_tenant(name=f"t{n}", actor="test") for n in range(3)]
    each = price(1, 10**10, 0, 0)
    record_usage(drafts=[used(tenant, f"r{tenant.name}", at(3), price=each) for tenant in (acme, *others)])
    ends = at_once(*[lambda: close_due(now=DEC_5)] * 4)
    assert ends == {"done": 4}
    assert Statement.objects.count() == Invoice.objects.count() == 4
    assert sorted(map(str, Invoice.objects.values_list("number", flat=True))) == [f"INV-{n:06d}" for n in range(1, 5)]
    assert OutboxEntry.objects.filter(kind="invoice").count() == 4


@pytest.mark.django_db(transaction=True)
def test_usage_that_comes_while_a_month_is_closed_is_on_it_or_on_the_next(acme: Tenant) -> None:
    each = price(1, 10**9, 0, 0)
    record_usage(drafts=[used(acme, "first", at(3), price=each)], now=at(3))

    def write(n: int) -> None:
        for m in range(10):
            record_usage(drafts=[used(acme, f"r{n}-{m}", at(30), price=each)], now=DEC_5)

    ends = at_once(lambda: close(acme), *[lambda n=n: write(n) for n in range(3)])
    assert ends == {"done": 4}
    rest = close(acme, "2026-12", now=datetime(2027, 1, 5, tzinfo=UTC))
    both = Statement.objects.aggregate(all=Sum("ledger_picos"))["all"]
    assert both == UsageRecord.objects.aggregate(all=Sum("amount_picos"))["all"] == 31 * 100 * 10**9
    assert rest.is_new


@pytest.mark.django_db(transaction=True)
def test_a_number_is_taken_inside_a_transaction_only() -> None:
    if connection.in_atomic_block:
        pytest.fail("this test runs outside of one")
    with pytest.raises(AssertionError):
        take_number("INV")

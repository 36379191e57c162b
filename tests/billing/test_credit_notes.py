from datetime import UTC, date, datetime
from functools import partial

import pytest
from django.db import transaction

from billing.errors import ReferenceUsed
from billing.invoice_models import CreditNote, Invoice, InvoiceState
from billing.services.credit_notes import issue_credit_note
from billing.services.invoice_states import TRANSITIONS, advance
from billing.services.invoices import invoice_numbered, write_off_invoice
from billing.services.payments import mark_paid
from billing.services.rates import set_tax_rate
from headway.errors import Conflict, InvalidInput, NotFound
from tenants.models import AuditEntry, Tenant
from tenants.services.tenants import create_tenant
from tests.billing.issued import issued
from tests.tenants.test_at_once import at_once

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]
NOW = datetime(2026, 12, 10, tzinfo=UTC)


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


def credit(invoice: Invoice, amounts: dict[int, int] | None = None) -> CreditNote:
    return issue_credit_note(number=str(invoice.number), reason="a mistake", actor="test", amounts=amounts, now=NOW)


def test_a_whole_credit_note_makes_an_open_invoice_void(acme: Tenant) -> None:
    invoice = issued(acme)
    note = credit(invoice)
    invoice.refresh_from_db()
    assert (note.number, note.total_minor) == ("CN-000001", 1_000)
    assert (invoice.state, invoice.due_minor) == (InvoiceState.VOID, 0)
    assert sum(each.amount_minor for each in note.lines.all()) == 1_000
    assert AuditEntry.objects.filter(action="invoice.credit", tenant=acme).count() == 1
    with pytest.raises(Conflict, match="nothing is left"):
        credit(invoice)


def test_parts_are_taken_back_by_line_and_never_more_than_is_left(acme: Tenant) -> None:
    invoice = issued(acme)
    assert [line.amount_minor for line in invoice.statement.lines.all()] == [300, 700]
    credit(invoice, {1: 200})
    for amounts in ({1: 101}, {2: 701}, {1: 0}, {1: -5}, {9: 1}, {}):
        with pytest.raises(InvalidInput):
            credit(invoice, amounts)
    assert CreditNote.objects.count() == 1
    credit(invoice, {1: 100, 2: 50})
    invoice.refresh_from_db()
    assert (invoice.state, invoice.credited_minor, invoice.due_minor) == (InvoiceState.OPEN, 350, 650)
    rest = credit(invoice)
    invoice.refresh_from_db()
    assert (rest.number, rest.total_minor, invoice.state) == ("CN-000003", 650, InvoiceState.VOID)


def test_tax_goes_along_and_the_last_of_it_with_the_last_note(acme: Tenant) -> None:
    set_tax_rate(country="DE", name="MwSt", percent="19", effective_from=date(2026, 1, 1), actor="test")
    invoice = issued(acme, cents=10, country="DE")
    assert (invoice.subtotal_minor, invoice.tax_minor, invoice.total_minor) == (10, 2, 12)
    notes = [credit(invoice, {2: 3}), credit(invoice, {2: 4}), credit(invoice)]
    assert [(note.subtotal_minor, note.tax_minor) for note in notes] == [(3, 1), (4, 1), (3, 0)]
    invoice.refresh_from_db()
    assert invoice.credited_minor == invoice.total_minor == 12


def test_what_is_taken_back_of_a_paid_invoice_is_owed_to_the_customer(acme: Tenant) -> None:
    invoice = issued(acme)
    mark_paid(number=str(invoice.number), reference="t1", actor="test")
    credit(invoice, {1: 120})
    invoice.refresh_from_db()
    assert (invoice.state, invoice.due_minor) == (InvoiceState.PAID, -120)


def test_an_invoice_of_which_the_rest_was_paid_is_paid(acme: Tenant) -> None:
    invoice = issued(acme)
    mark_paid(number=str(invoice.number), reference="t1", amount_minor=800, actor="test")
    credit(invoice, {1: 200})
    invoice.refresh_from_db()
    assert (invoice.state, invoice.due_minor) == (InvoiceState.PAID, 0)


def test_what_nobody_pays_is_written_off_and_may_still_be_paid(acme: Tenant) -> None:
    number = str(issued(acme).number)
    assert write_off_invoice(number=number, reason="insolvent", actor="test").state == InvoiceState.UNCOLLECTIBLE
    with pytest.raises(Conflict):
        write_off_invoice(number=number, reason="again", actor="test")
    mark_paid(number=number, reference="t1", actor="test")
    assert invoice_numbered(number).state == InvoiceState.PAID
    with pytest.raises(Conflict):
        write_off_invoice(number=number, reason="late", actor="test")
    with pytest.raises(NotFound):
        write_off_invoice(number="INV-999999", reason="none", actor="test")


def test_states_move_only_along_the_table_and_from_what_was_seen(acme: Tenant) -> None:
    invoice = issued(acme)
    stale = Invoice.objects.get(pk=invoice.pk)
    with transaction.atomic():
        advance(invoice, to=InvoiceState.UNCOLLECTIBLE)
        with pytest.raises(Conflict):
            advance(stale, to=InvoiceState.PAID)
        for to in InvoiceState:
            if to not in TRANSITIONS[InvoiceState.UNCOLLECTIBLE]:
                with pytest.raises(Conflict):
                    advance(invoice, to=to)
    assert Invoice.objects.get(pk=invoice.pk).state == InvoiceState.UNCOLLECTIBLE
    assert not TRANSITIONS[InvoiceState.PAID] and not TRANSITIONS[InvoiceState.VOID]


def test_a_reason_is_asked_for(acme: Tenant) -> None:
    invoice = issued(acme)
    for reason in ("", "   ", "x" * 301):
        with pytest.raises(InvalidInput):
            issue_credit_note(number=str(invoice.number), reason=reason, actor="test")
    assert not CreditNote.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_several_who_take_back_the_whole_at_once_take_it_back_once(acme: Tenant) -> None:
    invoice = issued(acme)
    assert at_once(*[lambda: credit(invoice)] * 4) == {"done": 1, "Conflict": 3}
    invoice.refresh_from_db()
    assert (invoice.credited_minor, CreditNote.objects.get().number) == (1_000, "CN-000001")


def again(invoice: Invoice, amounts: dict[int, int] | None = None, **changes: str) -> CreditNote:
    named = {"reason": "a mistake", "reference": "ticket 7"} | changes
    return issue_credit_note(number=str(invoice.number), actor="test", amounts=amounts, now=NOW, **named)


def test_a_reference_is_one_note_however_often_it_is_told_and_another_wish_is_refused(acme: Tenant) -> None:
    invoice, other = issued(acme), issued(create_tenant(name="globex", actor="test"), month=10)
    first = again(invoice, {1: 200})
    assert again(invoice, {1: 200}) == first
    assert again(invoice, {1: 200}, reference=" ticket  7 ") == first
    wishes: tuple[tuple[Invoice, dict[int, int] | None, str], ...] = (
        (invoice, {1: 201}, "a mistake"),
        (invoice, {1: 200, 2: 1}, "a mistake"),
        (invoice, None, "a mistake"),
        (invoice, {1: 200}, "another"),
        (other, {1: 200}, "a mistake"),
    )
    for of, amounts, reason in wishes:
        with pytest.raises(ReferenceUsed):
            again(of, amounts, reason=reason)
    with pytest.raises(InvalidInput):
        again(invoice, {1: 1}, reference="x" * 201)
    whole = again(invoice, reference="ticket 8")
    assert again(invoice, reference="ticket 8") == whole  # also when nothing is left
    with pytest.raises(ReferenceUsed):
        again(invoice, {2: 700}, reference="ticket 8")
    invoice.refresh_from_db()
    assert (CreditNote.objects.count(), invoice.credited_minor, other.credited_minor) == (2, 1_000, 0)
    assert AuditEntry.objects.filter(action="invoice.credit").count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_reference_told_by_several_at_once_is_one_note_of_one_invoice(acme: Tenant) -> None:
    invoice, other = issued(acme), issued(create_tenant(name="globex", actor="test"), month=10)
    assert at_once(*[lambda: again(invoice, {1: 200})] * 3) == {"done": 3}
    found = at_once(*[partial(again, each, {2: 5}, reference="ticket 9") for each in (invoice, other)])
    assert found == {"done": 1, "ReferenceUsed": 1}
    assert sorted(CreditNote.objects.values_list("number", "reference")) == [
        ("CN-000001", "ticket 7"),
        ("CN-000002", "ticket 9"),
    ]


def test_a_write_off_says_why(acme: Tenant) -> None:
    invoice = issued(acme)
    for reason in ("", "  ", "x" * 301):
        with pytest.raises(InvalidInput):
            write_off_invoice(number=str(invoice.number), reason=reason, actor="test")
    assert Invoice.objects.get().state == InvoiceState.OPEN

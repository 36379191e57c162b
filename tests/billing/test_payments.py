import json
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from billing.invoice_models import CreditNote, Invoice, InvoiceState, Payment
from billing.payments.in_memory import SIGNATURE, InMemoryProvider
from billing.payments.provider import CustomerFacts, InvoiceFacts, InvoiceItem, PaymentProvider
from billing.payments.transfer import TransferProvider
from billing.payments.wiring import payment_provider
from billing.services.credit_notes import issue_credit_note
from billing.services.invoice_reads import owed_back
from billing.services.payments import mark_paid, pay_back
from billing.services.presenting import carry_out, invoice_facts, present_credit_note, present_invoice
from headway.errors import ConfigurationError, Conflict, InvalidInput, NotFound
from tenants.models import Tenant
from tenants.services.tenants import create_tenant
from tests.billing.issued import issued
from tests.tenants.test_at_once import at_once
from workers.effects import EFFECTS
from workers.errors import TryLater
from workers.models import Mail, OutboxEntry
from workers.services import outbox

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


def pay(invoice: Invoice, reference: str = "t1", amount_minor: int | None = None) -> Payment:
    return mark_paid(number=str(invoice.number), reference=reference, amount_minor=amount_minor, actor="test")


def test_a_transfer_pays_an_invoice_once_however_often_it_is_told(acme: Tenant) -> None:
    invoice = issued(acme)
    assert pay(invoice, " t1 ") == pay(invoice, "t1")
    invoice.refresh_from_db()
    assert (invoice.state, invoice.paid_minor, Payment.objects.count()) == (InvoiceState.PAID, 1_000, 1)
    assert invoice.state_reason == "transfer t1"
    with pytest.raises(Conflict, match="nothing is due"):
        pay(invoice, "t2")


def test_a_reference_pays_one_invoice(acme: Tenant) -> None:
    one, two = issued(acme, month=10), issued(acme, month=11)
    pay(one, "t1")
    with pytest.raises(Conflict, match="another invoice"):
        pay(two, "t1")
    with pytest.raises(Conflict, match="another amount"):
        pay(one, "t1", 5)
    two.refresh_from_db()
    assert (two.state, two.paid_minor) == (InvoiceState.OPEN, 0)


def test_parts_are_counted_until_all_is_paid_and_no_more_than_is_due(acme: Tenant) -> None:
    invoice = issued(acme)
    pay(invoice, "t1", 400)
    for amount_minor in (601, 0, -1):
        with pytest.raises(InvalidInput):
            pay(invoice, "t2", amount_minor)
    for reference in ("", " ", "x" * 201):
        with pytest.raises(InvalidInput):
            pay(invoice, reference)
    with pytest.raises(NotFound):
        mark_paid(number="INV-000099", reference="t9", actor="test")
    invoice.refresh_from_db()
    assert (invoice.state, invoice.due_minor) == (InvoiceState.OPEN, 600)
    pay(invoice, "t2")
    invoice.refresh_from_db()
    assert (invoice.state, invoice.due_minor) == (InvoiceState.PAID, 0)


@pytest.mark.django_db(transaction=True)
def test_the_same_transfer_told_by_several_at_once_is_counted_once(acme: Tenant) -> None:
    invoice = issued(acme)
    assert at_once(*[lambda: pay(invoice, "t1", 250)] * 4) == {"done": 4}
    invoice.refresh_from_db()
    assert (invoice.paid_minor, Payment.objects.count()) == (250, 1)


def test_b151_a_retry_asks_the_provider_for_the_same_thing(acme: Tenant) -> None:
    """Its answer is lost, twice; each attempt is a new process with ids of its own."""
    invoice, provider = issued(acme), InMemoryProvider()
    provider.answers_to_lose = 2
    for _ in range(2):
        with pytest.raises(TryLater):
            present_invoice(Invoice.objects.get(pk=invoice.pk), provider)
    present_invoice(Invoice.objects.get(pk=invoice.pk), provider)
    present_invoice(Invoice.objects.get(pk=invoice.pk), provider)
    assert (len(provider.customers), len(provider.invoices)) == (1, 1)
    assert sorted(provider.items.values()) == [300, 700]
    assert list(provider.invoices) == [f"invoice:{acme.id}:2026-11"]
    invoice.refresh_from_db()
    assert (invoice.provider, invoice.provider_reference[:3]) == ("in_memory", "in_")
    assert Mail.objects.count() == 1


def test_b151_keys_name_what_is_billed_and_nothing_else() -> None:
    tenant_id = uuid.uuid4()

    def facts(**others: Any) -> InvoiceFacts:
        fields: dict[str, Any] = {"number": "INV-1", "currency": "USD", "total_minor": 5, "due_on": "2026-12-18"} | others
        return InvoiceFacts(tenant_id=tenant_id, month="2026-11", items=(InvoiceItem(1, "x", 5),), **fields)

    assert facts().idempotency_key == facts(number="INV-2", due_on="2027-01-01").idempotency_key
    assert facts().item_key(InvoiceItem(1, "x", 5)) == f"invoice:{tenant_id}:2026-11:1"
    customer = CustomerFacts(tenant_id=tenant_id, name="a", email="", country="", tax_id="")
    assert customer.idempotency_key == f"customer:{tenant_id}"


def test_what_a_provider_is_told_adds_up_to_the_invoice(acme: Tenant) -> None:
    facts = invoice_facts(issued(acme))
    assert sum(item.amount_minor for item in facts.items) == facts.total_minor == 1_000
    assert (facts.month, facts.due_on) == ("2026-11", "2026-12-18")


@pytest.mark.parametrize("provider", [InMemoryProvider(), TransferProvider(["Example Bank"])])
def test_every_provider_keeps_the_same_promises(provider: PaymentProvider) -> None:
    customer = CustomerFacts(tenant_id=uuid.UUID(int=7), name="Acme", email="", country="DE", tax_id="")
    invoice = InvoiceFacts(customer.tenant_id, "2026-11", "INV-000007", "USD", 5, "2026-12-18", (InvoiceItem(1, "x", 5),))
    name = provider.ensure_customer(customer)
    assert name and name == provider.ensure_customer(customer)
    assert provider.present_invoice(name, invoice) == provider.present_invoice(name, invoice)
    provider.cancel_invoice(provider.present_invoice(name, invoice).reference)
    with pytest.raises(InvalidInput):
        provider.read_webhook(b"{}", {})


def test_a_webhook_is_believed_when_it_is_signed() -> None:
    provider = InMemoryProvider()
    told = {"id": "ev_1", "invoice_number": "INV-1", "payment_reference": "p1", "amount_minor": 5, "currency": "USD"}
    body = json.dumps(told).encode()
    (event,) = provider.read_webhook(body, {SIGNATURE: provider.signature(body)})
    assert (event.payment_reference, event.amount_minor) == ("p1", 5)
    with pytest.raises(InvalidInput):
        provider.read_webhook(body + b" ", {SIGNATURE: provider.signature(body)})


def test_a_transfer_says_where_to_and_what_for(acme: Tenant) -> None:
    invoice = InvoiceFacts(acme.id, "2026-11", "INV-000007", "USD", 5, "2026-12-18", ())
    presented = TransferProvider(["Example Bank", "IBAN X"]).present_invoice("c", invoice)
    assert presented.instructions == ("Example Bank", "IBAN X", "Reference: INV-000007")


def test_an_unknown_provider_is_named(settings: Any) -> None:
    assert payment_provider().name == "transfer"
    settings.PAYMENT_PROVIDER = "stripe"
    with pytest.raises(ConfigurationError, match="HEADWAY_PAYMENT_PROVIDER"):
        payment_provider()


def test_the_outbox_mails_an_issued_invoice_once_with_its_link(acme: Tenant) -> None:
    invoice = issued(acme)
    entry = OutboxEntry.objects.get(kind="invoice")
    assert outbox.carry_out(entry.id, EFFECTS)
    carry_out({"invoice": invoice.id})  # a worker died before it could note the first
    mail = Mail.objects.get()
    assert (mail.to, mail.subject) == ("pay@acme.example", "[Headway] Invoice INV-000001 for 2026-11")
    assert "USD 10.00, due by 2026-12-18" in mail.text and "/t/acme/billing/invoices/INV-000001/" in mail.text


def test_nobody_is_mailed_where_no_address_is_known(acme: Tenant) -> None:
    carry_out({"invoice": issued(acme, email="").id})
    assert not Mail.objects.exists()


def test_a_credit_note_is_mailed_and_the_provider_asks_no_more(acme: Tenant) -> None:
    invoice, provider = issued(acme), InMemoryProvider()
    present_invoice(invoice, provider)
    note = issue_credit_note(
        number=str(invoice.number), reason="a mistake", actor="test", now=datetime(2026, 12, 10, tzinfo=UTC)
    )
    for _ in range(2):
        present_credit_note(CreditNote.objects.get(pk=note.pk), provider)
    invoice.refresh_from_db()
    assert provider.cancelled == {invoice.provider_reference}
    assert Mail.objects.filter(subject="[Headway] Credit note CN-000001").count() == 1


def refund(invoice: Invoice, reference: str = "b1", amount_minor: int | None = None, **others: Any) -> Payment:
    named: dict[str, Any] = {"amount_minor": amount_minor, "now": datetime(2026, 12, 20, 12, tzinfo=UTC), **others}
    return pay_back(number=str(invoice.number), reference=reference, actor="test", **named)


def test_what_is_owed_back_is_paid_out_once_in_parts_and_never_more(acme: Tenant) -> None:
    invoice = issued(acme)
    with pytest.raises(Conflict, match="nothing is owed back"):
        refund(invoice)
    pay(invoice)
    issue_credit_note(number=str(invoice.number), amounts={1: 300}, reason="x", actor="test")
    assert owed_back() == {"USD": 300}
    with pytest.raises(InvalidInput, match="300 is owed back"):
        refund(invoice, amount_minor=301)
    assert refund(invoice, "b1", 100) == refund(invoice, " b1", 100), "the same again"
    with pytest.raises(Conflict, match="another amount"):
        refund(invoice, "b1", 99)
    with pytest.raises(Conflict, match="the other way"):
        refund(invoice, "t1")
    with pytest.raises(Conflict, match="the other way"):
        pay(invoice, "b1")
    rest = refund(invoice, "b2", paid_on=date(2026, 12, 10))
    assert (rest.amount_minor, rest.paid_at) == (-200, datetime(2026, 12, 10, tzinfo=UTC))
    invoice.refresh_from_db()
    assert (invoice.due_minor, invoice.paid_minor, invoice.state, owed_back()) == (0, 700, InvoiceState.PAID, {})
    with pytest.raises(Conflict, match="nothing is owed back"):
        refund(invoice, "b3")
    issue_credit_note(number=str(invoice.number), reason="all of it", actor="test")
    assert owed_back() == {"USD": 700}, "what is taken back later is owed as well"


def test_what_was_paid_back_lies_between_the_invoice_and_today(acme: Tenant) -> None:
    invoice = issued(acme)
    pay(invoice)
    issue_credit_note(number=str(invoice.number), reason="x", actor="test")
    assert invoice.issued_on is not None
    for day in (invoice.issued_on - timedelta(days=1), date(2026, 12, 21)):
        with pytest.raises(InvalidInput):
            refund(invoice, paid_on=day)
    assert Payment.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_refunds_that_are_entered_at_once_no_more_is_counted_than_is_owed(acme: Tenant) -> None:
    invoice = issued(acme)
    pay(invoice)
    issue_credit_note(number=str(invoice.number), amounts={1: 300}, reason="x", actor="test")
    ends = at_once(*[lambda each=each: refund(invoice, f"b{each}", 200) for each in range(4)])
    invoice.refresh_from_db()
    assert (ends["done"], invoice.due_minor) == (1, -100)

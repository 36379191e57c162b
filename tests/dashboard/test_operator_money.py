"""The operators' pages of money: prices, invoices, credit, months."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from billing.account_models import BillingAccount
from billing.closing_models import ClosingRun
from billing.invoice_models import CreditNote, Invoice, Payment, Statement
from billing.models import Grant, Price
from billing.services.closing_runs import KIND as CLOSING
from billing.services.credit_notes import issue_credit_note
from billing.services.ledger import record_usage
from billing.services.payments import mark_paid
from dashboard.services.form_claims import FIELD, new_nonce
from tenants.models import AuditEntry
from tests.billing.issued import issued
from tests.billing.priced_usage import price, used
from tests.dashboard.furnished import MODELS, REQUEST_ID, Furnished, furnish
from tests.dashboard.operators import client, operator
from tests.tenants.cast import person, tenant_with
from tests.workers.broker import Broker
from tests.workers.outbox_work import work

__all__ = ["client", "operator"]  # fixtures
pytestmark = pytest.mark.django_db

MAX_QUERIES = 20
PRICE = {"model": MODELS[0], "tier": "", "input_micros": "4", "cached_micros": "1", "output_micros": "6", "effective_from": ""}


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


@pytest.fixture
def acme() -> Furnished:
    return furnish(num_requests=40)


def pages(acme: Furnished) -> list[str]:
    return [
        "/operator/prices/",
        f"/operator/prices/?model={MODELS[0]}",
        "/operator/prices/?model=nothing",
        "/operator/prices/new/",
        "/operator/invoices/",
        "/operator/invoices/?q=acm&state=open",
        "/operator/invoices/?state=void",
        f"/operator/invoices/{acme.invoice.number}/",
        "/operator/close/",
        f"/operator/close/?month={acme.invoice.statement.month}",
        "/operator/close/?month=soon",
        "/operator/tenants/acme/",
        "/operator/reconciliation/",
        "/operator/adjustments/",
        f"/operator/adjustments/?q={REQUEST_ID}",
        "/operator/adjustments/?q=req_nothing",
    ]


def text_of(response: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def fresh(posted: dict[str, str]) -> dict[str, str]:
    """As from a form that was drawn for it."""
    return {**posted, FIELD: new_nonce()}


def last_action() -> tuple[str, str]:
    entry = AuditEntry.objects.latest("id")
    return entry.action, entry.actor


def test_pages_open_with_few_queries_and_nothing_inline(acme: Furnished, client: Client) -> None:
    for address in pages(acme):
        with CaptureQueriesContext(connection) as queries:
            response = client.get(address)
        assert response.status_code == 200, address
        assert len(queries) <= MAX_QUERIES, (address, len(queries))
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", response.content.decode()), address
    assert client.get("/operator/invoices/INV-999999/").status_code == 404
    assert client.get(f"/operator/documents/{acme.invoice.number}.pdf").content[:5] == b"%PDF-"
    assert client.get("/operator/documents/CN-000001.pdf").content[:5] == b"%PDF-"


def test_the_lists_take_no_more_queries_for_more_rows(acme: Furnished, client: Client, settings: Any) -> None:
    settings.COMPANY_NAME = "Example Inference GmbH"

    def counts() -> list[int]:
        found = []
        for address in ("/operator/invoices/", "/operator/close/?month=2026-10", "/operator/prices/"):
            with CaptureQueriesContext(connection) as queries:
                client.get(address)
            found.append(len(queries))
        return found

    issued(tenant_with("first"), month=10)
    before = counts()
    Price.objects.filter(model__in=("big", "tiny")).delete()
    for number in range(3):
        issued(tenant_with(f"more-{number}"), month=10)
        Price.objects.filter(model__in=("big", "tiny")).delete()
    assert counts() == before


def test_nobody_but_an_operator_finds_them_or_changes_anything(acme: Furnished) -> None:
    number = acme.invoice.number
    posts = [f"/operator/invoices/{number}/{each}/" for each in ("pay", "credit", "void", "write-off")]
    posts += ["/operator/prices/new/", "/operator/close/now/?month=2026-01", "/operator/tenants/acme/grant/"]
    posts += ["/operator/tenants/acme/debit/", "/operator/reconciliation/now/", "/operator/adjustments/goodwill/"]
    posts.append(f"/operator/adjustments/{REQUEST_ID}/")
    posted = {"confirm": number, "reason": "x", "reference": "x", "amount_micros": "1", "kind": "goodwill", **PRICE}
    before = AuditEntry.objects.count()
    for user in (acme.people["owner"], person("stranger")):
        other = Client()
        other.force_login(user)
        for address in [*pages(acme), f"/operator/documents/{number}.pdf"]:
            assert other.get(address).status_code == 404, address
        for address in posts:
            assert other.post(address, posted).status_code == 404, address
    assert Client().post(posts[0], posted).status_code == 302
    assert (AuditEntry.objects.count(), Payment.objects.count(), CreditNote.objects.count()) == (before, 0, 1)


def test_a_price_is_tried_on_last_month_and_set_when_its_model_is_typed(acme: Furnished, client: Client) -> None:
    before = Price.objects.count()
    shown = client.post("/operator/prices/new/", PRICE)
    assert Price.objects.count() == before
    text = text_of(shown)
    assert "Nothing is changed yet" in text and re.search(r"Input \$2\.00 \$4\.00", text)
    client.post("/operator/prices/new/", {**fresh(PRICE), "confirm": "wrong"})
    assert Price.objects.count() == before
    assert client.post("/operator/prices/new/", {**fresh(PRICE), "confirm": MODELS[0]}).status_code == 302
    price = Price.objects.latest("id")
    assert (price.model, price.input_micros, price.cached_micros, price.output_micros) == (
        MODELS[0],
        4 * 10**6,
        10**6,
        6 * 10**6,
    )
    assert last_action() == ("price.set", "operator:operator")


def test_a_price_with_its_unit_mistaken_is_told_and_must_be_meant(acme: Furnished, client: Client) -> None:
    before = Price.objects.count()
    per_token = {**PRICE, "input_micros": "0.000004", "cached_micros": "", "output_micros": "0.000006"}
    assert "a hundred times off" in text_of(client.post("/operator/prices/new/", per_token))
    refused = client.post("/operator/prices/new/", {**fresh(per_token), "confirm": MODELS[0]})
    assert "look at the unit" in text_of(refused)
    for wrong in ({"cached_micros": "9"}, {"input_micros": "-1"}, {"model": "none"}, {"output_micros": "99999"}):
        assert client.post("/operator/prices/new/", {**fresh(PRICE), **wrong, "confirm": MODELS[0]}).status_code == 200
    assert Price.objects.count() == before
    client.post("/operator/prices/new/", {**fresh(per_token), "confirm": MODELS[0], "is_meant": "yes"})
    assert Price.objects.count() == before + 1


def test_a_payment_is_counted_once_and_on_record(acme: Furnished, client: Client) -> None:
    address = f"/operator/invoices/{acme.invoice.number}/"
    assert "decimal" in text_of(client.post(f"{address}pay/", {"reference": "T1", "amount": "1.005"}))
    client.post(f"{address}pay/", {"reference": "T1", "amount": "10.00"})
    client.post(f"{address}pay/", {"reference": "T1", "amount": "10.00"})
    assert Invoice.objects.get(pk=acme.invoice.pk).paid_minor == 1000
    client.post(f"{address}pay/", {"reference": "T2", "amount": "1000"})
    assert Invoice.objects.get(pk=acme.invoice.pk).paid_minor == 1000
    client.post(f"{address}pay/", {"reference": "T2", "amount": ""})
    invoice = Invoice.objects.get(pk=acme.invoice.pk)
    assert (invoice.state, invoice.due_minor) == ("paid", 0)
    assert last_action() == ("invoice.pay", "operator:operator")


def test_lines_and_then_the_rest_are_taken_back_when_the_number_is_typed(acme: Furnished, client: Client) -> None:
    number = acme.invoice.number
    address, before = f"/operator/invoices/{number}/", acme.invoice.credited_minor
    for posted in ({"reason": "x", "line_2": "0.50"}, {"reason": "x", "line_2": "99", "confirm": number}, {"confirm": number}):
        client.post(f"{address}credit/", fresh(posted))
        client.post(f"{address}void/", {"reason": "x", "confirm": "INV"})
        assert Invoice.objects.get(pk=acme.invoice.pk).credited_minor == before, posted
    sent = fresh({"reason": "slow", "line_2": "0.50", "line_1": "", "confirm": number})
    for _ in range(2):
        client.post(f"{address}credit/", sent)
    assert Invoice.objects.get(pk=acme.invoice.pk).credited_minor == before + 50
    client.post(f"{address}void/", {"reason": "wrong customer", "confirm": number})
    assert Invoice.objects.get(pk=acme.invoice.pk).state == "void"
    assert last_action() == ("invoice.credit", "operator:operator")
    assert "Take all back" not in text_of(client.get(address))


def test_an_invoice_is_written_off_when_its_number_is_typed(acme: Furnished, client: Client) -> None:
    address = f"/operator/invoices/{acme.invoice.number}/write-off/"
    client.post(address, {"reason": "insolvent"})
    assert Invoice.objects.get(pk=acme.invoice.pk).state == "open"
    client.post(address, {"reason": "insolvent", "confirm": acme.invoice.number})
    assert Invoice.objects.get(pk=acme.invoice.pk).state == "uncollectible"


def test_what_is_owed_back_is_shown_and_recorded_as_paid_out(acme: Furnished, client: Client) -> None:
    number = acme.invoice.number
    address = f"/operator/invoices/{number}/"
    mark_paid(number=number, reference="T1", actor="test")
    assert "Record refund" not in client.get(address).content.decode()
    issue_credit_note(number=number, reason="an outage", actor="test")
    assert "Record refund" in client.get(address).content.decode()
    assert "Owed back to customers" in text_of(client.get("/operator/invoices/"))
    assert "Enter a valid date" in text_of(client.post(f"{address}refund/", {"reference": "B1", "paid_on": "soon"}))
    client.post(f"{address}refund/", {"reference": "B1", "amount": "100000"})
    assert Payment.objects.count() == 1
    for _ in range(2):
        client.post(f"{address}refund/", {"reference": "B1"})
    acme.invoice.refresh_from_db()
    assert (acme.invoice.due_minor, Payment.objects.count(), last_action()[0]) == (0, 2, "invoice.pay_back")
    shown = client.get(address).content.decode()
    assert "Record refund" not in shown and "B1" in shown
    assert "B1" in client_of_owner(acme).get(f"/t/acme/billing/invoices/{number}/").content.decode(), "the customer sees it too"
    assert "Owed back to customers" not in text_of(client.get("/operator/invoices/"))


def client_of_owner(acme: Furnished) -> Client:
    owner = Client()
    owner.force_login(acme.people["owner"])
    return owner


def test_credit_is_granted_once_for_a_reference(acme: Furnished, client: Client) -> None:
    before = Grant.objects.count()
    granted = {"amount_micros": "12.5", "kind": "prepaid", "reason": "transfer", "reference": "BANK-1", "expires_on": ""}
    assert "must lie ahead" in text_of(
        client.post("/operator/tenants/acme/grant/", {**fresh(granted), "expires_on": "2020-01-01"})
    )
    assert client.post("/operator/tenants/acme/grant/", {**fresh(granted), "amount_micros": "0"}).status_code == 200
    for _ in range(2):
        assert client.post("/operator/tenants/acme/grant/", fresh(granted)).status_code == 302
    assert Grant.objects.count() == before + 1
    sent = fresh({**granted, "reference": ""})
    assert client.post("/operator/tenants/acme/grant/", sent).status_code == 302
    assert "sent already" in text_of(client.post("/operator/tenants/acme/grant/", sent))
    assert Grant.objects.count() == before + 2
    assert last_action() == ("balance.grant", "operator:operator")
    assert "$12.50" in text_of(client.get("/operator/tenants/acme/"))


def test_a_month_is_closed_when_it_is_typed_and_what_is_missing_is_told(client: Client, settings: Any) -> None:
    tenant = tenant_with("late")
    at = datetime(2026, 8, 15, tzinfo=UTC)
    record_usage(drafts=[used(tenant, "r1", at, tokens=(10**6, 0, 0), price=price(1, 5 * 10**6, 0, 0))], now=at)
    page = text_of(client.get("/operator/close/?month=2026-08"))
    assert "1 open of 1" in page and "billing details" in page and "HEADWAY_COMPANY_NAME" in page
    settings.COMPANY_NAME = "Example Inference GmbH"
    client.post("/operator/close/now/?month=2026-08", {"confirm": "2026-07"})
    assert not Statement.objects.exists()
    for _ in range(2):
        client.post("/operator/close/now/?month=2026-08", {"confirm": "2026-08"})
    shown = client.get("/operator/close/?month=2026-08")
    assert "Waiting for a worker" in text_of(shown) and 'hx-trigger="every 3s"' in shown.content.decode()
    assert not Statement.objects.exists() and ClosingRun.objects.count() == 1
    work(CLOSING)
    invoice = Invoice.objects.get(tenant_id=tenant.id)
    assert (invoice.total_minor, last_action()) == (500, ("invoice.issue", "operator:operator"))
    page = text_of(client.get("/operator/close/?month=2026-08"))
    assert "0 open of 1" in page and str(invoice.number) in page and "1 closed now, with 1 invoices" in page


def test_what_could_not_be_closed_is_told(client: Client, settings: Any) -> None:
    settings.COMPANY_NAME = "Example Inference GmbH"
    tenant = tenant_with("euro")
    BillingAccount.objects.create(tenant_id=tenant.id, currency="EUR", legal_name="Euro", country="FR")
    at = datetime(2026, 8, 15, tzinfo=UTC)
    record_usage(drafts=[used(tenant, "r1", at, tokens=(10**6, 0, 0), price=price(1, 5 * 10**6, 0, 0))], now=at)
    page = text_of(client.get("/operator/close/?month=2026-08"))
    assert "exchange rate of EUR" in page and "address" in page
    client.post("/operator/close/now/?month=2026-08", {"confirm": "2026-08"})
    work(CLOSING)
    done = client.get("/operator/close/?month=2026-08")
    assert "Not closed, of 1: there is no exchange rate of EUR" in text_of(done)
    assert not Invoice.objects.exists()

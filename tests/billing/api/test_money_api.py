"""Money over REST."""

import csv
import io
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing.account_models import BillingAccount
from billing.models import Price
from billing.services.adjustments import adjust_usage
from billing.services.balances import grant_credit
from billing.services.closing import close_statement
from billing.services.credit_notes import issue_credit_note
from billing.services.ledger import record_usage
from billing.services.payments import mark_paid
from tenants.access import Scope
from tenants.models import Tenant, User
from tests.billing.issued import CLOSED_AT, issued
from tests.billing.priced_usage import price, used
from tests.tenants.api.cast import Api, code_of, with_key
from tests.tenants.cast import full_tenant

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]
BILLING = "tenants/acme/billing"


@pytest.fixture
def acme() -> tuple[Tenant, dict[str, User]]:
    return full_tenant("acme")


@pytest.fixture
def owner(acme: tuple[Tenant, dict[str, User]]) -> Api:
    return Api(user=acme[1]["owner"])


def test_an_account_is_read_and_set_by_people_and_by_no_key(acme: tuple[Tenant, dict[str, User]], owner: Api) -> None:
    tenant, people = acme
    asked = {"legal_name": "Acme SARL", "country": "FR", "tax_id": "FR40303265045", "address": ["1 rue de la Paix"]}
    assert owner.call("PUT", f"{BILLING}/account/", asked).status_code == 200
    answer = owner.get(f"{BILLING}/account/").json()
    assert asked.items() <= answer.items()
    assert answer["currency"] == "USD"
    owner.call("PUT", f"{BILLING}/account/", {"email": "pay@acme.example"})
    before = BillingAccount.objects.values().get(tenant_id=tenant.id)
    assert (before["legal_name"], before["email"]) == ("Acme SARL", "pay@acme.example")
    for wrong, param in (({"tax_id": "FR1"}, "tax_id"), ({"currency": "EUR"}, "currency"), ({"country": "XX"}, "country")):
        refused = owner.call("PUT", f"{BILLING}/account/", wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    for scopes in ([Scope.MANAGE], list(Scope)):
        key = with_key(tenant, *scopes, member=people["owner"])
        assert code_of(key.call("PUT", f"{BILLING}/account/", {"legal_name": "Mallory"})) == "not_allowed"
    assert BillingAccount.objects.values().get(tenant_id=tenant.id) == before


def test_a_key_that_reads_usage_reads_no_bills(acme: tuple[Tenant, dict[str, User]]) -> None:
    reads, manages = with_key(acme[0], Scope.READ_USAGE), with_key(acme[0], Scope.MANAGE)
    for path in ("account/", "next-invoice/", "invoices/", "credit-notes/", "balance/", "grants/"):
        assert reads.get(f"{BILLING}/{path}").status_code == 403, path
        assert manages.get(f"{BILLING}/{path}").status_code == 200, path
    assert reads.get("tenants/acme/prices/").status_code == 200


def test_an_invoice_its_lines_their_requests_and_its_documents(acme: tuple[Tenant, dict[str, User]], owner: Api) -> None:
    invoice = issued(acme[0])
    note = issue_credit_note(number=str(invoice.number), reason="late", actor="test", amounts={1: 100})
    mark_paid(number=str(invoice.number), reference="R1", actor="test", amount_minor=300)
    assert [each["number"] for each in owner.get(f"{BILLING}/invoices/").json()["results"]] == [invoice.number]
    assert owner.get(f"{BILLING}/invoices/?state=void").json()["results"] == []
    found = owner.get(f"{BILLING}/invoices/{invoice.number}/").json()
    amounts = {name: found[name] for name in ("subtotal", "tax", "total", "credited", "paid", "due", "currency", "state")}
    assert amounts == {
        "subtotal": "10.00",
        "tax": "0.00",
        "total": "10.00",
        "credited": "1.00",
        "paid": "3.00",
        "due": "6.00",
        "currency": "USD",
        "state": "open",
    }
    lines = owner.get(f"{BILLING}/invoices/{invoice.number}/lines/").json()["results"]
    assert sum(Decimal(line["amount"]) for line in lines) == Decimal(found["total"])
    for line in lines:
        parts = owner.get(f"{BILLING}/invoices/{invoice.number}/lines/{line['position']}/requests/").json()["results"]
        assert sum(Decimal(part["amount_usd"]) for part in parts) == Decimal(line["amount_usd"])
        assert sum(part["tokens"] for part in parts) == line["tokens"]
    pdf = owner.call("GET", f"{BILLING}/invoices/{invoice.number}/pdf/", accept="application/pdf")
    assert (pdf.status_code, pdf["content-type"], pdf.content[:5]) == (200, "application/pdf", b"%PDF-")
    assert owner.get(f"{BILLING}/invoices/{invoice.number}/csv/").content.count(b"\n") == 1 + len(lines)
    notes = owner.get(f"{BILLING}/credit-notes/").json()["results"]
    assert [(each["number"], each["invoice"], each["total"]) for each in notes] == [(note.number, invoice.number, "1.00")]
    assert owner.get(f"{BILLING}/credit-notes/{note.number}/pdf/").content[:5] == b"%PDF-"


def test_another_tenants_invoice_is_not_found(acme: tuple[Tenant, dict[str, User]]) -> None:
    invoice = issued(acme[0])
    note = issue_credit_note(number=str(invoice.number), reason="late", actor="test", amounts={1: 100})
    _, people = full_tenant("globex")
    stranger = Api(user=people["owner"])
    one = f"tenants/globex/billing/invoices/{invoice.number}"
    for path in (f"{one}/", f"{one}/lines/", f"{one}/lines/1/requests/", f"{one}/pdf/", f"{one}/csv/"):
        assert stranger.get(path).status_code == 404, path
    refused = stranger.call("GET", f"tenants/globex/billing/credit-notes/{note.number}/pdf/", accept="application/pdf")
    assert (refused.status_code, code_of(refused)) == (404, "not_found")
    assert stranger.get("tenants/globex/billing/invoices/").json()["results"] == []


def test_requests_of_a_discount_line_take_as_few_queries_for_many(acme: tuple[Tenant, dict[str, User]], owner: Api) -> None:
    tenant, listed = acme[0], price(77, 10**6, 0, 0)
    at = CLOSED_AT.replace(month=11, day=20)
    drafts = [used(tenant, f"d{number}", at, tokens=(10, 0, 0), price=listed, discount_percent=10) for number in range(30)]
    record_usage(drafts=drafts, now=at)
    invoice = issued(tenant)
    line = invoice.statement.lines.get(kind="discount")
    path = f"{BILLING}/invoices/{invoice.number}/lines/{line.position}/requests/"

    def number(size: int) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert len(owner.get(f"{path}?page_size={size}").json()["results"]) == size
        return len(queries)

    assert number(2) == number(30)


def test_balance_grants_and_prices(acme: tuple[Tenant, dict[str, User]], owner: Api) -> None:
    tenant = acme[0]
    grant_credit(tenant_id=tenant.id, amount_micros=2_500_000, reason="welcome", actor="test")
    balance = owner.get(f"{BILLING}/balance/").json()
    assert (balance["left_usd"], balance["is_prepaid"], balance["next_expiry_at"]) == ("2.5", False, None)
    (grant,) = owner.get(f"{BILLING}/grants/").json()["results"]
    assert (grant["amount_usd"], grant["left_usd"], grant["reason"]) == ("2.5", "2.5", "welcome")
    assert owner.get("tenants/acme/prices/").json() == {"discount_percent": 0, "results": []}


def test_a_top_up_is_kept_by_who_manages_bills_and_amounts_are_text(acme: tuple[Tenant, dict[str, User]], owner: Api) -> None:
    path = f"{BILLING}/top-up/"
    nothing = {"is_enabled": False, "threshold_usd": None, "amount_usd": None, "monthly_cap_usd": None}
    assert owner.get(path).json() == nothing
    asked = {"is_enabled": True, "threshold_usd": "5", "amount_usd": "10.50", "monthly_cap_usd": "100"}
    for role in ("admin", "developer", "viewer"):
        assert Api(user=acme[1][role]).call("PUT", path, asked).status_code == 403, role
    wrongs = ({"amount_usd": "0"}, {"amount_usd": 5}, {"monthly_cap_usd": "1"}, {"threshold_usd": "-1"}, {"amount_usd": "NaN"})
    for wrong in wrongs:
        assert owner.call("PUT", path, asked | wrong).status_code == 400, wrong
    assert owner.get(path).json() == nothing
    kept = Api(user=acme[1]["billing"]).call("PUT", path, asked)
    assert (kept.status_code, kept.json()) == (200, asked | {"threshold_usd": "5.00", "monthly_cap_usd": "100.00"})
    assert owner.get(path).json() == kept.json()


def test_a_corrected_request_says_so_on_its_receipt_in_lists_and_in_files_and_adds_up_to_usage(
    acme: tuple[Tenant, dict[str, User]], owner: Api
) -> None:
    tenant, people = acme
    request_id, now = "req_" + "c" * 24, timezone.now()
    record_usage(drafts=[used(tenant, request_id, now, tokens=(3, 0, 0), price=price(1, 10**12, 0, 0))])
    for number, picos in enumerate((-(10**12), -(10**11))):
        adjust_usage(
            tenant_id=tenant.id, request_id=request_id, amount_picos=picos, kind="correction", reason=f"{number}", actor="test"
        )
    for path in (f"requests/{request_id}/", "requests/"):
        found = owner.get(f"tenants/acme/{path}").json()
        (shown,) = found.get("results", [found])
        assert (shown["amount_usd"], shown["corrections_usd"]) == ("3", "-1.1"), path
    assert owner.get("tenants/acme/usage/?granularity=day").json()["totals"]["amount_usd"] == "1.9"
    client = Client()
    client.force_login(people["owner"])
    for path in (f"requests/{request_id}/", "requests/"):
        text = re.sub(r"<[^>]+>", " ", client.get(f"/t/acme/{path}").content.decode())
        assert re.search(r"(?i)corrected by\s+.{0,3}\$?1\.10", text), path
    rows = list(csv.DictReader(io.StringIO(client.get("/t/acme/requests.csv?range=30d").getvalue().decode())))
    assert [(row["amount_usd"], row["corrections_usd"]) for row in rows] == [("3", "-1.1")]


@pytest.mark.parametrize(
    ("picos_a_token", "shown"),
    [(1_500_000, "0.0000015"), (1, "0.000000000001")],
)
def test_x11_b150_one_request_costs_the_same_everywhere(
    acme: tuple[Tenant, dict[str, User]], owner: Api, picos_a_token: int, shown: str
) -> None:
    """On the usage page, its file, the receipt's page, the request log, the billing page, and in four answers of the API."""
    tenant, people = acme
    request_id, tiny = "req_" + "e" * 24, price(1, picos_a_token, 0, 0)
    assert Price.objects.count() == 1
    record_usage(drafts=[used(tenant, request_id, timezone.now(), tokens=(1, 0, 0), price=tiny)])
    client = Client()
    client.force_login(people["owner"])
    pages = ("usage/?range=30d", "requests/", f"requests/{request_id}/", "billing/")
    for page in pages:
        text = re.sub(r"<[^>]+>", " ", client.get(f"/t/acme/{page}").content.decode())
        assert re.search(rf"\$\s*{re.escape(shown)}(?!\d)", text), page
    assert owner.get("tenants/acme/usage/?granularity=day").json()["totals"]["amount_usd"] == shown
    assert owner.get(f"tenants/acme/requests/{request_id}/").json()["amount_usd"] == shown
    coming: dict[str, Any] = owner.get(f"{BILLING}/next-invoice/").json()
    assert (coming["ledger_usd"], coming["lines"][0]["amount_usd"]) == (shown, shown)
    assert (coming["lines"][0]["tokens"], coming["lines"][0]["requests"]) == (1, 1)


def test_x11_many_tiny_requests_are_the_same_sum_on_pages_in_the_api_and_on_the_invoice(
    acme: tuple[Tenant, dict[str, User]], owner: Api
) -> None:
    """A thousand calls at $0.0000015 are $0.0015."""
    tenant, people = acme
    at = CLOSED_AT.replace(month=11, day=7)
    tiny = price(1, 1_500_000, 0, 0)
    record_usage(drafts=[used(tenant, f"r{number}", at, tokens=(1, 0, 0), price=tiny) for number in range(1000)], now=at)
    invoice = close_statement(tenant_id=tenant.id, month="2026-11", actor="test", now=CLOSED_AT).invoice
    assert invoice is not None
    days = "from=2026-11-01&to=2026-11-30"
    assert owner.get(f"tenants/acme/usage/?{days}&granularity=day").json()["totals"]["amount_usd"] == "0.0015"
    (line,) = owner.get(f"{BILLING}/invoices/{invoice.number}/lines/").json()["results"]
    assert (line["amount_usd"], line["amount"], line["requests"]) == ("0.0015", "0.00", 1000)
    assert ",0.0015,0.00,USD" in owner.get(f"{BILLING}/invoices/{invoice.number}/csv/").content.decode()
    client = Client()
    client.force_login(people["owner"])
    one = f"billing/invoices/{invoice.number}"
    for page in (f"usage/?range=custom&{days}", f"{one}/", f"{one}/lines/1/"):
        assert "$0.0015" in client.get(f"/t/acme/{page}").content.decode(), page


def test_b149_the_next_invoice_is_of_an_open_month_when_the_zone_goes_back_behind_a_closed_one(
    acme: tuple[Tenant, dict[str, User]], owner: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the closed month has is on its invoice: shown again it would look as if it was billed twice."""
    tenant, people = acme
    owner.call("PATCH", "tenants/acme/", {"time_zone": "Pacific/Kiritimati"})
    at = datetime(2026, 11, 30, 9, tzinfo=UTC)  # an hour before December there
    record_usage(drafts=[used(tenant, "a", at, tokens=(1, 0, 0), price=price(1, 7 * 10**12, 0, 0))], now=at)
    now = at.replace(hour=11)
    close_statement(tenant_id=tenant.id, month="2026-11", actor="test", now=now)
    owner.call("PATCH", "tenants/acme/", {"time_zone": "UTC"})
    monkeypatch.setattr(timezone, "now", lambda: now)
    coming = owner.get(f"{BILLING}/next-invoice/").json()
    assert (coming["month"], coming["lines"], coming["total"]) == ("2026-12", [], "0.00")
    client = Client()
    client.force_login(people["owner"])
    text = client.get("/t/acme/billing/").content.decode()
    assert "2026-12" in text and "input tokens" not in text
    record_usage(drafts=[used(tenant, "b", now, tokens=(1, 0, 0), price=price(2, 10**12, 0, 0))], now=now)
    assert [line["amount_usd"] for line in owner.get(f"{BILLING}/next-invoice/").json()["lines"]] == ["1"]

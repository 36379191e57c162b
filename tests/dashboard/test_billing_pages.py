"""Billing and invoices as customers see them."""

import io
import re
import zipfile
from typing import Any

import pytest
from django.test import Client

from billing.account_models import BillingAccount
from billing.invoice_models import LineKind, StatementLine
from billing.services.line_parts import parts_of_line
from billing.services.month_sums import requests_of_line
from billing.services.rates import set_exchange_rate
from billing.services.top_ups import top_up_of
from dashboard import paging
from headway.dates import day_named
from tenants.models import AuditEntry, Plan
from tenants.services.terms import define_plan, set_plan
from tests.dashboard.furnished import REQUEST_ID, Furnished, furnish
from tests.tenants.cast import full_tenant, person, tenant_with

pytestmark = pytest.mark.django_db

DETAILS = {
    "legal_name": "Acme SARL",
    "address": "1 rue de la Paix\n\n75002 Paris",
    "country": "FR",
    "tax_id": "fr 40 303265045",
    "email": "compta@acme.example",
    "purchase_order": "",
    "currency": "USD",
}


@pytest.fixture
def acme() -> Furnished:
    return furnish(num_requests=40)


def client_of(acme: Furnished, role: str = "owner") -> Client:
    client = Client()
    client.force_login(acme.people[role])
    return client


def text_of(response: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def test_who_is_billed_is_changed_and_on_record(acme: Furnished) -> None:
    client = client_of(acme, "billing")
    assert client.post("/t/acme/billing/", DETAILS).status_code == 302
    account = BillingAccount.objects.get(tenant_id=acme.tenant.id)
    assert (account.address, account.tax_id) == (["1 rue de la Paix", "75002 Paris"], "FR40303265045")
    entry = AuditEntry.objects.filter(tenant=acme.tenant, action="billing_account.set").latest("id")
    assert (entry.actor, entry.after["legal_name"]) == (f"user:{acme.people['billing']}", "Acme SARL")
    page = text_of(client.get("/t/acme/billing/"))
    assert "Acme SARL" in page and "France" in page


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("tax_id", "DE1", "another form"),
        ("email", "nobody", "valid email"),
        ("currency", "EUR", "Select a valid choice"),
        ("country", "XX", "Select a valid choice"),
        ("address", "\n".join("abcdefg"), "at most 6 lines"),
        ("legal_name", "株式会社", "fonts of invoices"),
    ],
)
def test_what_cannot_be_is_told_beside_its_field_and_nothing_is_lost(
    acme: Furnished, field: str, value: str, says: str
) -> None:
    before = BillingAccount.objects.values().get(tenant_id=acme.tenant.id)
    page = client_of(acme).post("/t/acme/billing/", {**DETAILS, field: value})
    assert page.status_code == 200
    text = page.content.decode()
    assert re.search(rf'(?s)id="id_{field}_error"[^>]*>.{{0,300}}{says}', text)
    assert "data-open" in text and (field == "legal_name" or 'value="Acme SARL"' in text)
    assert BillingAccount.objects.values().get(tenant_id=acme.tenant.id) == before


def test_a_currency_is_offered_once_it_has_a_rate(acme: Furnished) -> None:
    client = client_of(acme)
    set_exchange_rate(currency="EUR", units_per_usd="0.9", effective_from=day_named("2020-01-01", param="from"), actor="test")
    assert client.post("/t/acme/billing/", {**DETAILS, "currency": "EUR"}).status_code == 302
    assert "EUR" in text_of(client.get("/t/acme/billing/"))


def test_who_may_only_look_changes_nothing(acme: Furnished) -> None:
    admin = client_of(acme, "admin")
    before = BillingAccount.objects.values().get(tenant_id=acme.tenant.id)
    assert "Save details" not in admin.get("/t/acme/billing/").content.decode()
    assert admin.post("/t/acme/billing/", DETAILS).status_code == 403
    assert BillingAccount.objects.values().get(tenant_id=acme.tenant.id) == before


def test_requests_of_a_line_are_paged_and_add_up_to_it(acme: Furnished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging.by_time, "__kwdefaults__", {"size": 2})
    lines = StatementLine.objects.filter(statement=acme.invoice.statement).exclude(kind=LineKind.TAX)
    assert {line.kind for line in lines} == {"usage"} and lines.count() == 6
    for line in lines:
        parts = list(parts_of_line(line, requests_of_line(line)))
        assert len(parts) == line.requests == 3
        assert sum(part.amount_picos for part in parts) == line.amount_picos
        assert sum(part.tokens or 0 for part in parts) == line.quantity_tokens
    client, seen = client_of(acme, "billing"), []
    address = f"/t/acme/billing/invoices/{acme.invoice.number}/lines/1/"
    page = client.get(address).content.decode()
    older = re.search(r'href="(\?page=before-[\d-]+)"', page)
    assert older is not None
    for text in (page, client.get(address + older[1]).content.decode()):
        seen += re.findall(r"req_[0-9a-f]{24}", text)
    assert len(seen) == len(set(seen)) == 3, "the billing role is told ids, and no links to receipts"


def test_what_a_run_cost_is_what_its_receipt_says(acme: Furnished) -> None:
    client, address = client_of(acme), f"/t/acme/requests/{REQUEST_ID}/"
    cost = client.get(f"{address}cost/").json()["cost"]
    assert re.match(r"\$0\.\d{4}", cost) and f"<dd>{cost}</dd>" in client.get(address).content.decode()
    assert client.get(f"/t/acme/requests/req_{'b' * 24}/cost/").json() == {"cost": None}
    _, people = full_tenant("globex")
    other = Client()
    other.force_login(people["owner"])
    assert other.get(f"/t/globex/requests/{REQUEST_ID}/cost/").json() == {"cost": None}


def test_pdf_csv_and_all_of_them_as_a_zip(acme: Furnished) -> None:
    client, number = client_of(acme), acme.invoice.number
    pdf = client.get(f"/t/acme/billing/invoices/{number}/pdf/")
    assert (pdf["content-type"], pdf.content[:5]) == ("application/pdf", b"%PDF-")
    lines = client.get(f"/t/acme/billing/invoices/{number}/csv/").content.decode().splitlines()
    assert len(lines) == 1 + acme.invoice.statement.lines.count()
    streamed = b"".join(client.get("/t/acme/billing/invoices.zip").streaming_content)  # type: ignore[attr-defined]
    with zipfile.ZipFile(io.BytesIO(streamed)) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [f"{number}.pdf", f"{number}.csv", "CN-000001.pdf"]
        assert archive.read(f"{number}.pdf") == pdf.content
    assert client.get("/t/acme/billing/credit-notes/CN-000001/pdf/").content[:5] == b"%PDF-"


def test_another_tenants_invoice_looks_like_none(acme: Furnished) -> None:
    _, people = full_tenant("globex")
    client = Client()
    client.force_login(people["owner"])
    for path in (
        f"invoices/{acme.invoice.number}/",
        f"invoices/{acme.invoice.number}/lines/1/",
        f"invoices/{acme.invoice.number}/pdf/",
        f"invoices/{acme.invoice.number}/csv/",
        "credit-notes/CN-000001/pdf/",
    ):
        assert client.get(f"/t/globex/billing/{path}").status_code == 404, path
    assert acme.invoice.number not in client.get("/t/globex/billing/invoices/").content.decode()
    streamed = b"".join(client.get("/t/globex/billing/invoices.zip").streaming_content)  # type: ignore[attr-defined]
    assert zipfile.ZipFile(io.BytesIO(streamed)).namelist() == []
    own = client_of(acme)
    for position in ("0", "99", "9" * 30):
        assert own.get(f"/t/acme/billing/invoices/{acme.invoice.number}/lines/{position}/").status_code == 404


def test_a_new_tenant_is_told_what_comes(settings: Any) -> None:
    newcomer = person("newcomer")
    tenant_with("fresh", owner=newcomer)
    client = Client()
    client.force_login(newcomer)
    assert "has not said yet where money goes" in text_of(client.get("/t/fresh/billing/"))
    assert "No invoices yet" in text_of(client.get("/t/fresh/billing/invoices/"))
    settings.COMPANY_NAME, settings.BANK_DETAILS = "Example Inference GmbH", ["IBAN DE02 1203"]
    billing = text_of(client.get("/t/fresh/billing/"))
    assert "Nothing was used in" in billing and "No credit" in billing and "IBAN DE02 1203" in billing
    assert re.search(r"First invoice on \d{1,2} [A-Z][a-z]{2}", text_of(client.get("/t/fresh/billing/invoices/")))


def test_one_who_pays_in_advance_is_told_so(acme: Furnished) -> None:
    acme.tenant.plan = Plan.objects.create(name="in-advance", is_prepaid=True)
    acme.tenant.save()
    page = text_of(client_of(acme).get("/t/acme/billing/"))
    assert "You pay in advance" in page and "requests stop where it ends" in page


def test_who_pays_in_advance_says_what_it_wants_of_top_ups_and_is_told_that_nothing_charges(acme: Furnished) -> None:
    assert "Automatic top-ups" not in text_of(client_of(acme).get("/t/acme/billing/"))
    define_plan(name="prepaid", is_prepaid=True, actor="test")
    set_plan(tenant=acme.tenant, plan="prepaid", actor="test")
    client = client_of(acme, "billing")
    page = text_of(client.get("/t/acme/billing/"))
    assert "Not wanted" in page and "Nothing is charged by itself yet" in page
    wanted = {"is_enabled": "on", "threshold_micros": "5", "amount_micros": "20", "monthly_cap_micros": "60"}
    for wrong in ({"monthly_cap_micros": "19"}, {"amount_micros": "0"}, {"threshold_micros": "-1"}, {"amount_micros": ""}):
        refused = client.post("/t/acme/billing/top-up/", {**wanted, **wrong})
        assert refused.status_code == 200 and "field-error" in refused.content.decode(), wrong
    assert top_up_of(acme.tenant.id) is None
    assert client.post("/t/acme/billing/top-up/", wanted).status_code == 302
    page = text_of(client.get("/t/acme/billing/"))
    assert "$20.00 when less than $5.00 is left, and at most $60.00 in a month" in page
    entry = AuditEntry.objects.filter(action="balance.set_top_up").latest("id")
    assert entry.actor == f"user:{acme.people['billing']}"
    for role in ("viewer", "developer", "admin"):
        assert client_of(acme, role).post("/t/acme/billing/top-up/", {**wanted, "is_enabled": ""}).status_code in (403, 404)
    kept = top_up_of(acme.tenant.id)
    assert kept is not None and kept.is_enabled

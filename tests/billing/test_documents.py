"""PDF and CSV: what was issued, to the byte."""

import csv
import hashlib
import io
import re
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from billing import typesetting
from billing.errors import DocumentDiffers
from billing.invoice_models import BillingDocument, Invoice, StatementLine
from billing.services.accounts import set_billing_account
from billing.services.credit_notes import issue_credit_note
from billing.services.document_data import credit_note_data, invoice_data
from billing.services.documents import credit_note_pdf, invoice_pdf, invoice_pdf_made_again, lines_csv
from billing.services.payments import mark_paid
from billing.services.rates import set_exchange_rate, set_tax_rate
from headway.currencies import MINOR_DIGITS, minor_to_print, minor_to_text
from headway.errors import InvalidInput, NotFound
from tenants.models import Tenant
from tenants.services.tenants import create_tenant
from tests.billing.issued import issued

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("company")]


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


def number_of(invoice: Invoice) -> str:
    return str(invoice.number)


def test_a_pdf_is_the_same_to_the_byte_when_it_is_made_again(acme: Tenant) -> None:
    invoice = issued(acme)
    pdf = invoice_pdf(number_of(invoice))
    kept = BillingDocument.objects.get()
    assert pdf.startswith(b"%PDF-") and kept.sha256 == hashlib.sha256(pdf).hexdigest()
    mark_paid(number=number_of(invoice), reference="t1", actor="test")
    set_billing_account(tenant_id=acme.id, legal_name="Other", actor="test")
    assert invoice_pdf(number_of(invoice)) == invoice_pdf_made_again(number_of(invoice)) == pdf
    kept.delete()
    assert invoice_pdf(number_of(invoice)) == pdf


def test_a_pdf_is_tagged_and_accessible(acme: Tenant) -> None:
    pdf = invoice_pdf(number_of(issued(acme)))
    assert b"/StructTreeRoot" in pdf and b"/MarkInfo" in pdf
    assert b"<pdfuaid:part>1</pdfuaid:part>" in pdf


def test_bytes_that_are_not_those_issued_are_not_given_out(acme: Tenant) -> None:
    number = number_of(issued(acme))
    invoice_pdf(number)
    BillingDocument.objects.update(pdf=b"%PDF-1.7 of somebody else's")
    with pytest.raises(DocumentDiffers):
        invoice_pdf(number)
    BillingDocument.objects.update(sha256="0" * 64)
    with pytest.raises(DocumentDiffers, match="template"):
        invoice_pdf_made_again(number)
    with pytest.raises(NotFound):
        invoice_pdf("INV-000099")


def test_what_an_invoice_prints_names_both_parties_and_adds_up(acme: Tenant) -> None:
    set_tax_rate(country="DE", name="MwSt", percent="19", effective_from=date(2026, 1, 1), actor="test")
    data = invoice_data(
        issued(acme, country="DE", tax_id="DE999999999", address=["Weg 1", "20095 Hamburg"], purchase_order="PO-7")
    )
    assert data["seller"] == {
        "name": "Example Inference GmbH",
        "lines": ["Beispielstraße 1", "10115 Berlin", "Germany", "Tax no. DE123456789", "billing@example.com"],
    }
    assert data["buyer"]["name"] == "Acme SA"
    assert data["buyer"]["lines"] == ["Weg 1", "20095 Hamburg", "Germany", "Tax no. DE999999999", "pay@acme.example"]
    assert dict(data["facts"])["Your order"] == "PO-7" and dict(data["facts"])["Month"] == "November 2026"
    assert [(group["name"], [row["amount"] for row in group["rows"]]) for group in data["groups"]] == [
        ("big", ["3.00"]),
        ("tiny", ["7.00"]),
    ]
    assert data["groups"][1]["rows"][0]["quantity"] == "70,000" and data["groups"][1]["rows"][0]["unit"] == "100.00"
    assert [(row["label"], row["amount"]) for row in data["totals"]] == [
        ("Subtotal", "10.00"),
        ("MwSt 19 %", "1.90"),
        ("Total USD", "11.90"),
    ]
    assert data["payment"][-1] == "Reference: INV-000001" and data["headline"] == [
        "Amount due",
        "USD 11.90",
        "by 18 December 2026",
    ]


def test_currencies_without_decimals_print_none_and_the_rate_is_noted(acme: Tenant) -> None:
    set_exchange_rate(currency="JPY", units_per_usd="150.5", effective_from=date(2026, 11, 1), actor="test")
    invoice = issued(acme, currency="JPY", cents=100_000)
    data = invoice_data(invoice)
    assert data["headline"][1] == "JPY 150,500"
    assert "Prices are in US dollars; converted at USD 1 = JPY 150.5." in data["notes"]
    assert invoice_pdf(number_of(invoice)).startswith(b"%PDF-")


def test_long_invoices_break_over_pages(acme: Tenant) -> None:
    invoice = issued(acme)
    line = invoice.statement.lines.get(position=1)
    StatementLine.objects.bulk_create(
        [
            StatementLine(statement=invoice.statement, position=n, kind=line.kind, label=line.label, model=line.model,
                          quantity_tokens=1, unit_picos=1, amount_picos=1, amount_minor=0)
            for n in range(10, 210)
        ]
    )  # fmt: skip
    pdf = invoice_pdf(number_of(invoice))
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 5


def test_a_credit_note_has_a_document_of_its_own(acme: Tenant) -> None:
    invoice = issued(acme)
    note = issue_credit_note(
        number=number_of(invoice), reason="a mistake", actor="test", amounts={2: 150}, now=datetime(2026, 12, 10, tzinfo=UTC)
    )
    data = credit_note_data(note)
    assert (data["title"], data["headline"][1:]) == ("Credit note", ["USD 1.50", "for invoice INV-000001"])
    assert "Reason: a mistake" in data["notes"] and data["payment"] == []
    assert credit_note_pdf(note.number) == credit_note_pdf(note.number) != invoice_pdf(number_of(invoice))


@pytest.mark.parametrize(
    "name", ["Société Générale d’Exemple", "Ελληνική Α.Ε.", "ООО «Пример»", "Łódź Größe Ñandú", "#let x = 1 *b* $1$ @a"]
)
def test_names_are_printed_as_they_are_and_never_read_as_markup(acme: Tenant, name: str) -> None:
    invoice = issued(acme, legal_name=name)
    assert invoice_data(invoice)["buyer"]["name"] == name
    assert b"<pdfuaid:part>1</pdfuaid:part>" in invoice_pdf(number_of(invoice)), "PDF/UA has no glyph that is missing"


def test_one_endless_word_breaks_and_runs_over_nothing_beside_it(acme: Tenant) -> None:
    """Of a name and six lines of an address: unbroken they are seven lines, over the number and the order beside them."""
    invoice = issued(acme, legal_name="W" * 200, address=["W" * 100] * 6, purchase_order="W" * 64)
    pdf = invoice_pdf(number_of(invoice))
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 2
    assert b"<pdfuaid:part>1</pdfuaid:part>" in pdf
    assert "\u200b" not in invoice_data(invoice)["buyer"]["name"]


def test_letters_that_no_font_has_are_told_when_they_are_entered(acme: Tenant) -> None:
    assert typesetting.unprintable("株式会社") == "株"
    assert typesetting.unprintable("Acme & Søn") == ""
    with pytest.raises(InvalidInput, match="株") as refused:
        set_billing_account(tenant_id=acme.id, legal_name="株式会社サンプル", actor="test")
    assert refused.value.param == "legal_name"


def test_a_label_with_letters_that_no_font_has_still_makes_a_document(acme: Tenant) -> None:
    invoice = issued(acme)
    invoice.statement.lines.filter(position=1).update(label="big · 障害のお詫び")
    pdf = invoice_pdf(number_of(invoice))
    assert pdf.startswith(b"%PDF-") and b"<pdfuaid:part>" not in pdf and b"/StructTreeRoot" in pdf


def test_the_csv_has_every_line_exactly(acme: Tenant) -> None:
    invoice = issued(acme)
    invoice.statement.lines.filter(position=2).update(label="=HYPERLINK(1)")
    rows = list(csv.DictReader(io.StringIO(lines_csv(invoice))))
    assert [(row["tokens"], row["usd_per_million_tokens"], row["exact_usd"], row["amount"]) for row in rows] == [
        ("30000", "100", "3", "3.00"),
        ("70000", "100", "7", "7.00"),
    ]
    assert rows[1]["label"] == "'=HYPERLINK(1)"


def test_amounts_are_written_for_programs_and_for_people() -> None:
    cases: list[tuple[int, str, str, str]] = [
        (0, "USD", "0.00", "0.00"),
        (-5, "USD", "-0.05", "−0.05"),
        (123_456_789, "EUR", "1234567.89", "1,234,567.89"),
        (1_235, "JPY", "1235", "1,235"),
        (-1_235, "JPY", "-1235", "−1,235"),
    ]
    for minor, currency, text, printed in cases:
        assert (minor_to_text(minor, currency), minor_to_print(minor, currency)) == (text, printed)
    assert set(MINOR_DIGITS.values()) == {0, 2}


def test_the_template_is_a_file_of_the_checkout() -> None:
    assert Path(typesetting.__file__).parent / "typst" / "invoice.typ" == typesetting.TEMPLATE
    assert re.fullmatch(r"typst 0\.\d+\.\d+, template [0-9a-f]{16}", typesetting.made_with())

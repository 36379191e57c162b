"""PDF and CSV of what was issued. A PDF is made once and kept: its bytes are what is given out from then on."""

import csv
import hashlib
import io
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from billing import typesetting
from billing.errors import DocumentDiffers
from billing.invoice_models import BillingDocument, CreditNote, Invoice, StatementLine
from billing.services.credit_notes import credit_note_numbered
from billing.services.document_data import credit_note_data, invoice_data
from billing.services.invoices import invoice_numbered
from headway.currencies import minor_to_text
from headway.money import picos_to_usd
from headway.streaming import as_text

CSV_COLUMNS = (
    "position",
    "kind",
    "label",
    "model",
    "tier",
    "token_kind",
    "price_version",
    "used_earlier",
    "requests",
    "tokens",
    "usd_per_million_tokens",
    "exact_usd",
    "amount",
    "currency",
)


def invoice_pdf(number: str) -> bytes:
    """Of an issued invoice. Raises NotFound, DocumentFailed, DocumentDiffers."""
    return _kept(number) or _make(number, *_invoice_source(invoice_numbered(number)))


def credit_note_pdf(number: str) -> bytes:
    """Raises NotFound, DocumentFailed, DocumentDiffers."""
    return _kept(number) or _make(number, *_credit_note_source(credit_note_numbered(number)))


def invoice_pdf_made_again(number: str) -> bytes:
    """Set anew of what is stored, and held against what was issued.

    Raises DocumentDiffers where it is not the same to the byte: then the template, typst, its fonts or rows have changed.
    """
    issued = BillingDocument.objects.filter(number=number).first()
    data, at = _invoice_source(invoice_numbered(number))
    made = typesetting.set_pdf(data, at=at)
    if issued is not None and _sha256(made) != issued.sha256:
        raise DocumentDiffers(
            f"invoice {number} made again is not what was issued (that with {issued.made_with}; now {typesetting.made_with()})"
        )
    return made


def lines_csv(invoice: Invoice) -> str:
    """A row a line, with its exact amount in US dollars beside the rounded one."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(CSV_COLUMNS)
    writer.writerows(_csv_rows(invoice))
    return out.getvalue()


def _csv_rows(invoice: Invoice) -> Iterator[list[Any]]:
    for line in invoice.statement.lines.all():
        yield [
            line.position,
            line.kind,
            as_text(line.label),
            as_text(line.model),
            line.tier,
            line.token_kind,
            line.price_version,
            "yes" if line.is_late else "",
            line.requests or "",
            *_numbers(line),
            minor_to_text(line.amount_minor, invoice.currency),
            invoice.currency,
        ]


def _numbers(line: StatementLine) -> list[Any]:
    """Tokens, micro-dollars per million as dollars, exact dollars."""
    unit = picos_to_usd(line.unit_picos * 1_000_000) if line.unit_picos is not None else ""
    exact = picos_to_usd(line.amount_picos) if line.amount_picos is not None else ""
    return ["" if line.quantity_tokens is None else line.quantity_tokens, unit, exact]


def _invoice_source(invoice: Invoice) -> tuple[dict[str, Any], datetime]:
    assert invoice.issued_at is not None, "it has a number: it was issued"
    return invoice_data(invoice), invoice.issued_at


def _credit_note_source(note: CreditNote) -> tuple[dict[str, Any], datetime]:
    return credit_note_data(note), note.issued_at


def _kept(number: str) -> bytes | None:
    row = BillingDocument.objects.filter(number=number).first()
    if row is None:
        return None
    pdf = bytes(row.pdf)
    if _sha256(pdf) != row.sha256:
        raise DocumentDiffers(f"the PDF of {number} is not the one that was issued: its bytes have changed in the database")
    return pdf


def _make(number: str, data: dict[str, Any], at: datetime) -> bytes:
    """Of two who make it at once one keeps it; both made the same bytes, and what is kept is given out."""
    pdf = typesetting.set_pdf(data, at=at)
    row = BillingDocument(number=number, pdf=pdf, sha256=_sha256(pdf), made_with=typesetting.made_with())
    BillingDocument.objects.bulk_create([row], ignore_conflicts=True)
    return _kept(number) or pdf


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

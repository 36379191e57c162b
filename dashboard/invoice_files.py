"""Invoices and credit notes of a tenant as the files of one zip: of each its PDF, of invoices their lines as CSV too."""

from collections.abc import Iterator
from typing import Any

from billing.services.documents import credit_note_pdf, invoice_pdf, lines_csv
from billing.services.invoice_reads import credit_notes_of_tenant, invoices_of_tenant
from dashboard.zipped import Entry

MAX_DOCUMENTS = 240
"""The newest; of each kind: twenty years of months."""


def invoice_files(tenant: Any) -> Iterator[Entry]:
    """Made one after another, as they are taken. Raises DocumentFailed, DocumentDiffers."""
    for invoice in invoices_of_tenant(tenant.id).exclude(number=None)[:MAX_DOCUMENTS]:
        assert invoice.number is not None and invoice.issued_at is not None, "what has a number was issued"
        yield f"{invoice.number}.pdf", invoice.issued_at, invoice_pdf(invoice.number)
        yield f"{invoice.number}.csv", invoice.issued_at, lines_csv(invoice).encode()
    for note in credit_notes_of_tenant(tenant.id)[:MAX_DOCUMENTS]:
        yield f"{note.number}.pdf", note.issued_at, credit_note_pdf(note.number)

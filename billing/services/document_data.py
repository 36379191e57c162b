"""What an invoice or a credit note prints, as text that is ready to print: made of what is stored with it alone."""

from collections.abc import Iterable
from datetime import date
from typing import Any

from billing.invoice_models import CreditNote, Invoice, LineKind, StatementLine
from billing.services.tax import TAX_NOTES
from headway.countries import COUNTRIES
from headway.currencies import minor_to_print
from headway.money import micros_to_usd

ROUNDING_NOTE = "Each line is rounded once, half away from zero; the total is the sum of the lines as shown."
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
"""Whatever the locale."""


def invoice_data(invoice: Invoice) -> dict[str, Any]:
    """As it was issued: nothing that changes later (its state, what was paid) is on it."""
    assert invoice.issued_on is not None and invoice.due_on is not None, "a draft has no document"
    statement, currency = invoice.statement, invoice.currency
    lines = list(statement.lines.all())
    is_free = invoice.total_minor == 0
    due = f"by {_day(invoice.due_on)}"
    facts = [
        ("Number", str(invoice.number)),
        ("Issued", _day(invoice.issued_on)),
        *(() if is_free else (("Due", _day(invoice.due_on)),)),
        ("Month", _month(statement.month)),
        ("Time zone", statement.time_zone),
        ("Your order", invoice.buyer["purchase_order"]),
    ]
    return {
        **_common(invoice, title="Invoice", number=str(invoice.number), on=invoice.issued_on, facts=facts),
        "headline": ["Amount due", _amount(invoice.total_minor, currency), "nothing to pay" if is_free else due],
        "columns": ["Description", "Tokens", "USD per million", f"Amount ({currency})"],
        "groups": _groups((line, line.amount_minor) for line in lines if line.kind != LineKind.TAX),
        "totals": _totals(invoice, invoice.subtotal_minor, invoice.tax_minor, "Total"),
        "payment": [] if is_free else _payment(invoice),
        "notes": [*invoice.notes, ROUNDING_NOTE],
    }


def credit_note_data(note: CreditNote) -> dict[str, Any]:
    invoice = note.invoice
    assert invoice.issued_on is not None, "only what was issued is taken back"
    facts = [
        ("Number", note.number),
        ("Issued", _day(note.issued_on)),
        ("Invoice", str(invoice.number)),
        ("Of", _day(invoice.issued_on)),
        ("Your order", invoice.buyer["purchase_order"]),
    ]
    lines = note.lines.select_related("line__statement").order_by("line__position")
    return {
        **_common(invoice, title="Credit note", number=note.number, on=note.issued_on, facts=facts),
        "headline": ["Amount credited", _amount(note.total_minor, invoice.currency), f"for invoice {invoice.number}"],
        "columns": ["What is taken back", "", "", f"Amount ({invoice.currency})"],
        "groups": _groups(((each.line, each.amount_minor) for each in lines), with_quantities=False),
        "totals": _totals(invoice, note.subtotal_minor, note.tax_minor, "Total credited"),
        "payment": [],
        "notes": [f"Reason: {note.reason}", *(each for each in invoice.notes if each in TAX_NOTES)],
    }


def party_lines(party: dict[str, Any]) -> list[str]:
    """The address of a party, its country, its tax number."""
    country = COUNTRIES.get(party["country"], party["country"])
    tax_id = f"Tax no. {party['tax_id']}" if party["tax_id"] else ""
    return [line for line in (*party["address"], country, tax_id, party["email"]) if line]


def _common(invoice: Invoice, *, title: str, number: str, on: date, facts: Iterable[tuple[str, str]]) -> dict[str, Any]:
    seller, buyer = invoice.seller, invoice.buyer
    return {
        "title": title,
        "number": number,
        "date": {"year": on.year, "month": on.month, "day": on.day},
        "seller": {"name": seller["name"], "lines": party_lines(seller)},
        "buyer": {"name": buyer["name"], "lines": party_lines(buyer)},
        "facts": [[name, value] for name, value in facts if value],
        "footer": " · ".join(part for part in (seller["name"], seller["tax_id"]) if part),
    }


def _groups(lines: Iterable[tuple[StatementLine, int]], *, with_quantities: bool = True) -> list[dict[str, Any]]:
    """Usage under its model's name, everything else under none; in the lines' order."""
    groups: list[dict[str, Any]] = []
    for line, amount_minor in lines:
        name = line.model if line.kind == LineKind.USAGE else ""
        if not groups or groups[-1]["name"] != name:
            groups.append({"name": name, "rows": []})
        groups[-1]["rows"].append(_row(line, amount_minor, with_quantities))
    return groups


def _row(line: StatementLine, amount_minor: int, with_quantities: bool) -> dict[str, str]:
    is_usage = line.kind == LineKind.USAGE
    has_quantity = with_quantities and line.quantity_tokens is not None and line.unit_picos is not None
    return {
        "label": line.label.removeprefix(f"{line.model} · ") if is_usage else line.label,
        "remark": f"price version {line.price_version}" if is_usage else "",
        "quantity": f"{line.quantity_tokens:,}" if has_quantity else "",
        # Pico-dollars a token are micro-dollars per million.
        "unit": micros_to_usd(line.unit_picos) if has_quantity and line.unit_picos is not None else "",
        "amount": minor_to_print(amount_minor, line.statement.currency),
    }


def _totals(invoice: Invoice, subtotal_minor: int, tax_minor: int, name: str) -> list[dict[str, Any]]:
    tax = invoice.statement.lines.filter(kind=LineKind.TAX).first()
    rows = [("Subtotal", subtotal_minor, False)]
    if tax is not None:
        rows.append((tax.label, tax_minor, False))
    rows.append((f"{name} {invoice.currency}", subtotal_minor + tax_minor, True))
    return [
        {"label": label, "amount": minor_to_print(minor, invoice.currency), "is_strong": is_strong}
        for label, minor, is_strong in rows
    ]


def _payment(invoice: Invoice) -> list[str]:
    bank_details = invoice.seller["bank_details"]
    return [*bank_details, f"Reference: {invoice.number}"] if bank_details else []


def _amount(amount_minor: int, currency: str) -> str:
    return f"{currency} {minor_to_print(amount_minor, currency)}"


def _day(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def _month(name: str) -> str:
    year, _, month = name.partition("-")
    return f"{MONTHS[int(month) - 1]} {year}"

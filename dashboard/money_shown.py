"""Lines of statements and invoices as pages show them, and what they come to."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headway.currencies import minor_to_print


@dataclass(frozen=True)
class ShownLine:
    position: int
    kind: str
    label: str
    requests: int
    tokens: int | None
    unit_micros: int | None
    """Micro-dollars per million tokens."""
    exact_picos: int | None
    amount: str


@dataclass(frozen=True)
class Totals:
    subtotal: str
    """Before credits and tax."""
    credits: str
    tax: str
    total: str
    has_credits: bool
    has_tax: bool


def money(amount_minor: int, currency: str) -> str:
    """ "$12.30", "−$12.30", "EUR 12.30"."""
    text = minor_to_print(abs(amount_minor), currency)
    shown = f"${text}" if currency == "USD" else f"{currency} {text}"
    return f"−{shown}" if amount_minor < 0 else shown


def shown_lines(lines: Iterable[Any], currency: str) -> list[ShownLine]:
    """Of drafts (which have no positions) and of statements; tax is with the totals."""
    return [
        ShownLine(
            position=getattr(line, "position", place),
            kind=str(line.kind),
            label=line.label,
            requests=line.requests,
            tokens=line.quantity_tokens,
            unit_micros=line.unit_picos,
            exact_picos=line.amount_picos,
            amount=money(line.amount_minor, currency),
        )
        for place, line in enumerate(lines, start=1)
        if line.kind != "tax"
    ]


def totals_of(*, subtotal_minor: int, tax_minor: int, credit_minor: int, currency: str) -> Totals:
    """`subtotal_minor`: with credits, as invoices keep it; `credit_minor`: below zero."""
    return Totals(
        subtotal=money(subtotal_minor - credit_minor, currency),
        credits=money(credit_minor, currency),
        tax=money(tax_minor, currency),
        total=money(subtotal_minor + tax_minor, currency),
        has_credits=credit_minor != 0,
        has_tax=tax_minor != 0,
    )

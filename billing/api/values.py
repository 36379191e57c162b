"""Rows of billing as the values that shapes give out."""

from typing import Any

from billing.invoice_models import CreditNote, Invoice
from billing.models import Grant, Price, TopUp
from billing.services.line_parts import LinePart
from headway.currencies import minor_to_text
from headway.money import PICOS_A_MICRO, micros_to_usd, picos_to_usd


def line_values(line: Any, currency: str, *, position: int) -> dict[str, Any]:
    """Of a stored line, or of a draft's."""
    return {
        "position": position,
        "kind": str(line.kind),
        "label": line.label,
        "model": line.model,
        "tier": line.tier,
        "token_kind": str(line.token_kind),
        "price_version": line.price_version,
        "discount_percent": line.discount_percent,
        "is_late": line.is_late,
        "requests": line.requests,
        "tokens": line.quantity_tokens,
        # Pico-dollars a token are micro-dollars per million.
        "usd_per_million_tokens": None if line.unit_picos is None else micros_to_usd(line.unit_picos),
        "amount_usd": None if line.amount_picos is None else picos_to_usd(line.amount_picos),
        "amount": minor_to_text(line.amount_minor, currency),
    }


def invoice_values(invoice: Invoice) -> dict[str, Any]:
    amounts = {"subtotal": invoice.subtotal_minor, "tax": invoice.tax_minor, "total": invoice.total_minor}
    amounts |= {"credited": invoice.credited_minor, "paid": invoice.paid_minor}
    amounts["due"] = 0 if invoice.state == "void" else invoice.due_minor
    return {
        "number": invoice.number,
        "month": invoice.statement.month,
        "state": invoice.state,
        "state_reason": invoice.state_reason,
        "currency": invoice.currency,
        **{name: minor_to_text(minor, invoice.currency) for name, minor in amounts.items()},
        "issued_on": invoice.issued_on,
        "due_on": invoice.due_on,
        "paid_at": invoice.paid_at,
    }


def part_values(part: LinePart) -> dict[str, Any]:
    record = part.record
    named = {name: getattr(record, name) for name in ("request_id", "ended_at", "model", "key_id")}
    return {**named, "tokens": part.tokens, "amount_usd": picos_to_usd(part.amount_picos)}


def credit_note_values(note: CreditNote) -> dict[str, Any]:
    currency = note.invoice.currency
    amounts = {"subtotal": note.subtotal_minor, "tax": note.tax_minor, "total": note.total_minor}
    return {
        "number": note.number,
        "invoice": note.invoice.number,
        "reason": note.reason,
        "currency": currency,
        **{name: minor_to_text(minor, currency) for name, minor in amounts.items()},
        "issued_on": note.issued_on,
    }


def grant_values(grant: Grant) -> dict[str, Any]:
    named = {name: getattr(grant, name) for name in ("id", "kind", "reason", "created_at", "expires_at", "ended_at")}
    return {
        **named,
        "amount_usd": picos_to_usd(grant.amount_micros * PICOS_A_MICRO),
        "left_usd": picos_to_usd(grant.left_picos),
    }


TOP_UP_AMOUNTS = ("threshold", "amount", "monthly_cap")


def top_up_values(kept: TopUp | None) -> dict[str, Any]:
    """None: it was never set."""
    amounts = {f"{name}_usd": kept and micros_to_usd(getattr(kept, f"{name}_micros")) for name in TOP_UP_AMOUNTS}
    return {"is_enabled": kept is not None and kept.is_enabled, **amounts}


def price_values(price: Price, *, is_in_force: bool) -> dict[str, Any]:
    return {
        "model": price.model,
        "tier": price.tier,
        "version": price.version,
        "input_usd_per_million": micros_to_usd(price.input_micros),
        "cached_input_usd_per_million": micros_to_usd(price.cached_micros),
        "output_usd_per_million": micros_to_usd(price.output_micros),
        "effective_from": price.effective_from,
        "is_in_force": is_in_force,
    }

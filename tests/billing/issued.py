"""An issued invoice, for tests of what is done with one."""

from datetime import UTC, datetime
from typing import Any

from billing.invoice_models import Invoice
from billing.services.accounts import set_billing_account
from billing.services.closing import close_statement
from billing.services.ledger import record_usage
from tenants.models import Tenant
from tests.billing.priced_usage import price, used

CLOSED_AT = datetime(2026, 12, 4, 9, tzinfo=UTC)


def issued(tenant: Tenant, *, cents: int = 1_000, month: int = 11, **account: Any) -> Invoice:
    """Of a month in which two models were used: a line of 30 % of `cents`, one of 70 %."""
    account = {"legal_name": "Acme SA", "country": "US", "email": "pay@acme.example"} | account
    set_billing_account(tenant_id=tenant.id, actor="test", **account)
    at = datetime(2026, month, 15, tzinfo=UTC)
    prices = [price(month, 10**8, 0, 0, model=model) for model in ("big", "tiny")]
    shares = (30 * cents, 70 * cents)  # at a hundredth of a cent a token
    record_usage(
        drafts=[
            used(tenant, f"{tenant.name}-{each.model}-{month}", at, tokens=(tokens, 0, 0), price=each)
            for each, tokens in zip(prices, shares, strict=True)
        ],
        now=at,
    )
    closed = close_statement(tenant_id=tenant.id, month=f"2026-{month:02d}", actor="test", now=CLOSED_AT)
    assert closed.invoice is not None
    return closed.invoice

"""What a customer may do about its own bills, and must know to pay them."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from billing.account_models import BillingAccount, ExchangeRate
from billing.services.accounts import billing_account, set_billing_account
from headway.currencies import USD
from headway.errors import InvalidInput


@dataclass(frozen=True)
class PayTo:
    """Who sends invoices, and where money for them goes."""

    name: str
    """Blank: nobody yet, and no invoice is made."""
    bank_details: tuple[str, ...]
    email: str
    issued_after_days: int
    """After the month has ended."""
    due_after_days: int


def pay_to() -> PayTo:
    return PayTo(
        name=settings.COMPANY_NAME,
        bank_details=tuple(settings.BANK_DETAILS),
        email=settings.COMPANY_EMAIL,
        issued_after_days=settings.STATEMENT_CLOSE_DAYS,
        due_after_days=settings.INVOICE_DUE_DAYS,
    )


def currencies_on_offer(now_in: str = USD) -> list[str]:
    """US dollars, what has an exchange rate today, and the one an account is in already."""
    rows = ExchangeRate.objects.filter(effective_from__lte=timezone.now().date()).order_by().values_list("currency", flat=True)
    return sorted({USD, now_in, *rows.distinct()}, key=lambda code: (code != USD, code))


def change_own_account(*, tenant_id: UUID, actor: str, **changes: Any) -> BillingAccount:
    """As set_billing_account; a currency without an exchange rate is refused, as no month could be closed in it.

    Raises InvalidInput, UnknownTenant.
    """
    currency = changes.get("currency")
    if currency:
        offered = currencies_on_offer(billing_account(tenant_id).currency)
        if currency.strip().upper() not in offered:
            raise InvalidInput(f"currency must be one of {', '.join(offered)}: {currency!r}", param="currency")
    return set_billing_account(tenant_id=tenant_id, actor=actor, **changes)

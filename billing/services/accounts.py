"""Whom a tenant's invoices name."""

import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction

from billing.account_models import BillingAccount
from billing.services.tax_ids import tidy_tax_id
from billing.typesetting import unprintable
from headway.countries import COUNTRIES
from headway.currencies import MINOR_DIGITS
from headway.errors import InvalidInput
from tenants.errors import UnknownTenant
from tenants.selectors import tenant_with_id
from tenants.services.audit import record_audit

MAX_ADDRESS_LINES = 6
MAX_LINE_CHARS = 100
FIELDS = ("legal_name", "address", "country", "tax_id", "email", "purchase_order", "currency")


def billing_account(tenant_id: UUID) -> BillingAccount:
    """The tenant's; one that is not stored and names nothing where there is none yet."""
    return BillingAccount.objects.filter(tenant_id=tenant_id).first() or BillingAccount(tenant_id=tenant_id)


def set_billing_account(
    *,
    tenant_id: UUID,
    actor: str,
    legal_name: str | None = None,
    address: Sequence[str] | None = None,
    country: str | None = None,
    tax_id: str | None = None,
    email: str | None = None,
    purchase_order: str | None = None,
    currency: str | None = None,
) -> BillingAccount:
    """Change what is given; None leaves it. It holds from the next invoice on: those issued keep what they say.

    Raises InvalidInput (a country or currency there is not, a tax number its country has no such form of, an address of
    more than six lines of 100 characters, letters that no font of invoices has), UnknownTenant.
    """
    tenant = tenant_with_id(tenant_id)
    if tenant is None:
        raise UnknownTenant(f"there is no tenant {tenant_id}")
    with transaction.atomic():
        BillingAccount.objects.get_or_create(tenant_id=tenant_id)
        account = BillingAccount.objects.select_for_update().get(tenant_id=tenant_id)
        before = _as_dict(account)
        _set_texts(account, legal_name=legal_name, email=email, purchase_order=purchase_order)
        if address is not None:
            account.address = _checked_address(address)
        if country is not None:
            account.country = _checked_code(country, COUNTRIES, "country", "a two-letter code of ISO 3166, such as DE")
        if currency is not None:
            account.currency = _checked_code(currency, MINOR_DIGITS, "currency", "a code of ISO 4217, such as EUR") or "USD"
        # Also where only the country changed: the number must fit both.
        account.tax_id = tidy_tax_id(account.tax_id if tax_id is None else tax_id, country=account.country)
        after = _as_dict(account)
        if after != before:
            account.save()
            record_audit(
                actor=actor, action="billing_account.set", target=tenant.name, tenant=tenant, before=before, after=after
            )
    return account


def _set_texts(account: BillingAccount, *, legal_name: str | None, email: str | None, purchase_order: str | None) -> None:
    if legal_name is not None:
        account.legal_name = _line(legal_name, "legal_name", 200)
    if purchase_order is not None:
        account.purchase_order = _line(purchase_order, "purchase_order", 64)
    if email is not None:
        account.email = email.strip()
        try:
            if account.email:
                validate_email(account.email)
        except ValidationError:
            raise InvalidInput(f"not an e-mail address: {email!r}", param="email") from None


def _checked_address(lines: Sequence[str]) -> list[str]:
    kept = [line for line in (_line(each, "address", MAX_LINE_CHARS) for each in lines) if line]
    if len(kept) > MAX_ADDRESS_LINES:
        raise InvalidInput(f"an address has at most {MAX_ADDRESS_LINES} lines", param="address")
    return kept


def _line(text: str, param: str, max_chars: int) -> str:
    """One line of printable text."""
    tidy = re.sub(r"\s+", " ", text).strip()
    if len(tidy) > max_chars:
        raise InvalidInput(f"{param} has at most {max_chars} characters a line", param=param)
    if not tidy.isprintable():
        raise InvalidInput(f"{param} has characters that cannot be printed", param=param)
    if lacking := unprintable(tidy):
        raise InvalidInput(
            f"the fonts of invoices lack {lacking!r}: write {param} in Latin, Greek or Cyrillic letters", param=param
        )
    return tidy


def _checked_code(text: str, known: dict[str, Any], param: str, what: str) -> str:
    code = text.strip().upper()
    if code and code not in known:
        raise InvalidInput(f"{param} must be {what}: {text!r}", param=param)
    return code


def _as_dict(account: BillingAccount) -> dict[str, Any]:
    return {name: getattr(account, name) for name in FIELDS}

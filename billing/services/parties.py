"""Who is on an invoice: copies of both, made when it is issued and never changed."""

from typing import Any
from uuid import UUID

from django.conf import settings

from billing.account_models import BillingAccount
from billing.services.tax_ids import tidy_tax_id
from headway.errors import ConfigurationError
from tenants.selectors import tenant_with_id


def seller_now() -> dict[str, Any]:
    """By the settings. Raises ConfigurationError: an invoice names who sends it."""
    if not settings.COMPANY_NAME:
        raise ConfigurationError("set HEADWAY_COMPANY_NAME (and its address): an invoice names who sends it")
    return {
        "name": settings.COMPANY_NAME,
        "address": list(settings.COMPANY_ADDRESS),
        "country": settings.COMPANY_COUNTRY,
        "tax_id": tidy_tax_id(settings.COMPANY_TAX_ID, country=settings.COMPANY_COUNTRY, param="HEADWAY_COMPANY_TAX_ID"),
        "email": settings.COMPANY_EMAIL,
        "bank_details": list(settings.BANK_DETAILS),
    }


def buyer_now(tenant_id: UUID, account: BillingAccount) -> dict[str, Any]:
    tenant = tenant_with_id(tenant_id)
    tenant_name = tenant.name if tenant is not None else str(tenant_id)
    return {
        "tenant": tenant_name,
        "name": account.legal_name or tenant_name,
        "address": list(account.address),
        "country": account.country,
        "tax_id": account.tax_id,
        "email": account.email,
        "purchase_order": account.purchase_order,
    }

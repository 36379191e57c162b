"""Who sends the invoices of these tests."""

from typing import Any

import pytest


@pytest.fixture
def company(settings: Any) -> Any:
    settings.COMPANY_NAME = "Example Inference GmbH"
    settings.COMPANY_ADDRESS = ["Beispielstraße 1", "10115 Berlin"]
    settings.COMPANY_COUNTRY = "DE"
    settings.COMPANY_TAX_ID = "DE123456789"
    settings.COMPANY_EMAIL = "billing@example.com"
    settings.BANK_DETAILS = ["Example Bank", "IBAN DE02 1203 0000 0000 2020 51"]
    return settings

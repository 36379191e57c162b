"""What billing adds to the settings: who sends the invoices, when months are closed, how customers pay."""

from headway import env
from headway.countries import COUNTRIES
from headway.errors import ConfigurationError


def _lines(text: str) -> list[str]:
    """A value of several lines: "|" parts them."""
    return [line.strip() for line in text.split("|") if line.strip()]


COMPANY_NAME = env.text("HEADWAY_COMPANY_NAME", "")
COMPANY_ADDRESS = _lines(env.text("HEADWAY_COMPANY_ADDRESS", ""))
COMPANY_COUNTRY = env.text("HEADWAY_COMPANY_COUNTRY", "").upper()
COMPANY_TAX_ID = env.text("HEADWAY_COMPANY_TAX_ID", "")
COMPANY_EMAIL = env.text("HEADWAY_COMPANY_EMAIL", "")
BANK_DETAILS = _lines(env.text("HEADWAY_BANK_DETAILS", ""))
if COMPANY_COUNTRY and COMPANY_COUNTRY not in COUNTRIES:
    raise ConfigurationError(f"HEADWAY_COMPANY_COUNTRY must be a two-letter code of ISO 3166, not {COMPANY_COUNTRY!r}")

STATEMENT_CLOSE_DAYS = env.whole("HEADWAY_STATEMENT_CLOSE_DAYS", 3, at_least=0, at_most=27)
INVOICE_PREFIX = env.text("HEADWAY_INVOICE_PREFIX", "INV")
CREDIT_NOTE_PREFIX = env.text("HEADWAY_CREDIT_NOTE_PREFIX", "CN")
INVOICE_DUE_DAYS = env.whole("HEADWAY_INVOICE_DUE_DAYS", 14, at_least=0, at_most=365)
INVOICE_FONTS = env.text("HEADWAY_INVOICE_FONTS", "")
if INVOICE_PREFIX == CREDIT_NOTE_PREFIX:
    raise ConfigurationError("HEADWAY_INVOICE_PREFIX and HEADWAY_CREDIT_NOTE_PREFIX must differ: their numbers are two series")
PAYMENT_PROVIDER = env.text("HEADWAY_PAYMENT_PROVIDER", "transfer")

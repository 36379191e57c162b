"""Which provider an installation uses: the one place that makes one."""

from django.conf import settings

from billing.payments.provider import TRANSFER, PaymentProvider
from billing.payments.transfer import TransferProvider
from headway.errors import ConfigurationError


def payment_provider() -> PaymentProvider:
    """By HEADWAY_PAYMENT_PROVIDER. Raises ConfigurationError."""
    if settings.PAYMENT_PROVIDER == TRANSFER:
        return TransferProvider(settings.BANK_DETAILS)
    raise ConfigurationError(f"HEADWAY_PAYMENT_PROVIDER must be {TRANSFER}, not {settings.PAYMENT_PROVIDER!r}")

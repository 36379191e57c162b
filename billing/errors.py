"""HeadwayError
├── UsageRefused   page someone: the ledger did not take a usage record, and its journal keeps it
└── InvalidInput
    └── PriceJump  confirm it: the price is a hundred times what holds, or a hundredth
"""

from headway.errors import HeadwayError, InvalidInput


class UsageRefused(HeadwayError):
    """Page someone: a usage record breaks a rule of the ledger; nothing of its batch was written."""

    code = "usage_refused"


class PriceJump(InvalidInput):
    """Confirm it, or fix the unit: the price is more than a hundred times what holds, or less than a hundredth."""

    code = "price_jump"

"""HeadwayError
├── Conflict ── BalanceTooSmall, BalanceBusy, ReferenceUsed   what was asked of a balance was not done
├── UsageRefused   page someone: the ledger did not take a usage record, and its journal keeps it
└── InvalidInput
    └── PriceJump  confirm it: the price is a hundred times what holds, or a hundredth
"""

from headway.errors import Conflict, HeadwayError, InvalidInput


class UsageRefused(HeadwayError):
    """Page someone: a usage record breaks a rule of the ledger; nothing of its batch was written."""

    code = "usage_refused"


class BalanceTooSmall(Conflict):
    """Ask for less; so much is not left, and nothing was taken."""

    code = "balance_too_small"


class BalanceBusy(Conflict):
    """Try again when running requests have ended; they may need what was asked for, and nothing was taken."""

    code = "balance_busy"


class ReferenceUsed(Conflict):
    """Look at what was done with this reference; it was for another amount, kind or organisation, and nothing was done."""

    code = "reference_used"


class PriceJump(InvalidInput):
    """Confirm it, or fix the unit: the price is more than a hundred times what holds, or less than a hundredth."""

    code = "price_jump"

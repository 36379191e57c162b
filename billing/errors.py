"""HeadwayError
├── UsageRefused        page someone: the ledger did not take a usage record, and its journal keeps it
├── StatementDiffers    page someone: a statement's lines are not the ledger's sum; the month was not closed
├── DocumentDiffers     page someone: a document made again is not the one that was issued
├── DocumentFailed      page someone: a document could not be set
├── InvalidInput
│   └── PriceJump       confirm it: the price is a hundred times what holds, or a hundredth
└── Conflict
    ├── RateMissing     set the exchange rate it names, then close the month again
    ├── MonthNotOver    try again after the month has ended where the tenant is
    └── BalanceTooSmall, BalanceBusy, ReferenceUsed   what was asked of a balance was not done
"""

from headway.errors import Conflict, HeadwayError, InvalidInput


class UsageRefused(HeadwayError):
    """Page someone: a usage record breaks a rule of the ledger; nothing of its batch was written."""

    code = "usage_refused"


class StatementDiffers(HeadwayError):
    """Page someone: a statement's lines do not add up to the ledger; nothing was closed."""

    code = "statement_differs"


class DocumentDiffers(HeadwayError):
    """Page someone: a document's bytes are not those whose hash was kept when it was issued."""

    code = "document_differs"


class DocumentFailed(HeadwayError):
    """Page someone: typst could not set a document; nothing else is lost."""

    code = "document_failed"


class RateMissing(Conflict):
    """Set the exchange rate it names; nothing was closed."""

    code = "exchange_rate_missing"


class MonthNotOver(Conflict):
    """Try again after the month has ended in the tenant's time zone; nothing was closed."""

    code = "month_not_over"


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

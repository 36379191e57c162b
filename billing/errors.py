"""HeadwayError
└── UsageRefused   page someone: the ledger did not take a usage record, and its journal keeps it
"""

from headway.errors import HeadwayError


class UsageRefused(HeadwayError):
    """Page someone: a usage record breaks a rule of the ledger; nothing of its batch was written."""

    code = "usage_refused"

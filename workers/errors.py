"""HeadwayError
├── NoSuchEffect      our mistake: an outbox entry of a kind nobody carries out
└── TryLater          retry: an outside system did not do its part; the outbox asks it again
"""

from headway.errors import HeadwayError, Unavailable


class NoSuchEffect(HeadwayError):
    """Page someone: the outbox holds an entry of a kind this release does not know."""

    code = "no_such_effect"


class TryLater(Unavailable):
    """Retry after a while; the message says what did not work, without anything secret."""

    code = "try_later"

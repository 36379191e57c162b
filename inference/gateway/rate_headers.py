"""`x-ratelimit-*`, as OpenAI's API names and writes them: from the tightest limit of each kind."""

import math

from inference.policy.decisions import RateView

Headers = list[tuple[bytes, bytes]]


def rate_headers(rates: RateView) -> Headers:
    """None for what has no limit."""
    headers: Headers = []
    for kind, limit, remaining, reset_s in (
        (b"requests", rates.limit_requests, rates.remaining_requests, rates.reset_requests_s),
        (b"tokens", rates.limit_tokens, rates.remaining_tokens, rates.reset_tokens_s),
    ):
        if limit is not None:
            headers += (
                (b"x-ratelimit-limit-" + kind, b"%d" % limit),
                (b"x-ratelimit-remaining-" + kind, b"%d" % max(0, remaining or 0)),
                (b"x-ratelimit-reset-" + kind, duration(reset_s or 0.0).encode()),
            )
    return headers


def rates_of(headers: Headers) -> Headers:
    """Those of limits among them."""
    return [(name, value) for name, value in headers if name.startswith(b"x-ratelimit-")]


def duration(seconds: float) -> str:
    """As OpenAI writes it: `20ms`, `1s`, `6m0s`; rounded up, so that waiting as long is enough."""
    if seconds < 1.0:
        return f"{math.ceil(seconds * 1000)}ms"
    whole = math.ceil(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{left}s"
    return f"{minutes}m{left}s" if minutes else f"{left}s"

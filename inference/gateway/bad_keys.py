"""Requests with a bad key, counted by the address they come from: guessing is slow, whatever its sender claims to be.

A good key is never held up by it: one address may be a whole company behind one proxy.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import headway.client_address
from headway.errors import HeadwayError

WINDOW_S = 60.0
MAX_ADDRESSES = 10_000


class TooManyBadKeys(HeadwayError):
    """Fix the key; too many requests with bad ones came from this address."""

    code = "too_many_bad_keys"
    http_status = 429
    error_type = "rate_limit_error"


def client_address(scope: dict[str, Any], trusted_hops: int) -> str:
    """Of an ASGI scope, by the rule of `headway.client_address`."""
    client = scope.get("client")
    return headway.client_address.client_address(
        str(client[0]) if client else "", _forwarded(scope["headers"]) if trusted_hops else "", trusted_hops
    )


def _forwarded(headers: Sequence[tuple[bytes, bytes]]) -> str:
    return ",".join(value.decode("latin-1") for name, value in headers if name == b"x-forwarded-for")


class BadKeys:
    """At most `per_minute` refusals of keys for one address and minute; then its bad keys get 429, unlooked at."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()  # when the minute began, and how many since

    def count(self, address: str, now_s: float) -> None:
        """One more. Raises TooManyBadKeys."""
        began_s, number = self._seen.pop(address, (now_s, 0))
        if now_s - began_s >= WINDOW_S:
            began_s, number = now_s, 0
        self._seen[address] = (began_s, number + 1)
        if len(self._seen) > MAX_ADDRESSES:
            self._seen.popitem(last=False)
        if number >= self._per_minute:
            raise TooManyBadKeys(
                "Too many requests with bad keys came from this address. Fix the key, then retry.",
                retry_after_s=began_s + WINDOW_S - now_s,
            )

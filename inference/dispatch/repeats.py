"""Requests that carry an Idempotency-Key, over all gateways: the one that came first has it until it has ended.

A takeover brings the keys of those that are open along. Keys that were used up are then known to the gateway process that
had them alone.
"""

from inference.gateway.idempotency import IdempotencyKeys, IdempotencyKeyUsed, IdempotencyTunables
from inference.policy.decisions import Ask, Reason, Refused, RetryKind


class Repeats:
    def __init__(self, tunables: IdempotencyTunables) -> None:
        self._keys = IdempotencyKeys(tunables)
        self._open: dict[str, tuple[str, bytes]] = {}  # tenant and key of each request that has one

    def claim(self, ask: Ask, now_s: float) -> Refused | None:
        """None: it has its key, or needs none."""
        if not ask.repeat_key:
            return None
        try:
            self._keys.claim(ask.tenant, ask.repeat_key, ask.id, now_s=now_s)
        except IdempotencyKeyUsed as error:
            is_running = error.retry_after_s is not None
            kind = RetryKind.ESTIMATE if is_running else RetryKind.NEVER
            return Refused(ask.id, Reason.REPEATED, error.retry_after_s, kind, holder=error.holder)
        self._open[ask.id] = (ask.tenant, ask.repeat_key)
        return None

    def ended(self, request_id: str, *, made_tokens: bool, now_s: float) -> None:
        """Of one without a key: nothing happens."""
        tenant, key = self._open.pop(request_id, ("", b""))
        if key:
            self._keys.settle(tenant, key, made_tokens=made_tokens, now_s=now_s)

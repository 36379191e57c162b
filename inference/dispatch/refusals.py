"""What the brain refuses, as the errors that clients are shown; reasons reach them unchanged."""

from typing import Any

from headway.errors import HeadwayError
from headway.money import micros_to_usd
from inference.errors import BalanceSpent, DeadlineNotMet, NoReplicaReady, QueueFull, QueueTimeout, QuotaSpent, RateLimited
from inference.gateway.idempotency import key_used
from inference.policy.decisions import LimitHit, LimitKind, Reason, Refused, RetryKind, ScopeKind

_WORDS = {
    LimitKind.REQUESTS: "requests a minute",
    LimitKind.INPUT_TOKENS: "input tokens a minute",
    LimitKind.OUTPUT_TOKENS: "output tokens a minute",
    LimitKind.CONCURRENCY: "requests at once",
    LimitKind.BUDGET: "a month",
}
_WHOSE = {ScopeKind.TENANT: "your organisation", ScopeKind.KEY: "this key", ScopeKind.MODEL: "your organisation on this model"}


def error_of(refusal: Refused, model: str) -> HeadwayError:
    """`data` says more where there is more to say: `limit` as it stood, `retry` (its kind), `predicted_wait_s`."""
    after_s = refusal.retry_after_s
    data: dict[str, Any] = {"detail": _detail(refusal), "rates": refusal.rates}
    match refusal.reason:
        case Reason.LIMIT:
            assert refusal.hit is not None, "a limit that refuses says which"
            return _limit_error(refusal.hit, data)
        case Reason.REPEATED:
            return key_used(refusal.holder, is_running=after_s is not None)
        case Reason.QUEUE_FULL:
            return QueueFull(
                f"Every replica of {model!r} is busy and the queue is full. Retry later.", retry_after_s=after_s, **data
            )
        case Reason.QUEUE_TIMEOUT:
            return QueueTimeout(f"No replica of {model!r} became free in time. Retry later.", retry_after_s=after_s, **data)
        case Reason.DEADLINE:
            wait = "" if refusal.predicted_wait_s is None else f": about {refusal.predicted_wait_s:.1f} s"
            return DeadlineNotMet(
                f"The wait for {model!r} is longer than this request may wait{wait}. Retry later.",
                retry_after_s=after_s,
                **data,
            )
        case Reason.ALL_TRIED:
            return NoReplicaReady(
                f"Every replica of {model!r} was tried, and none answered. Retry.", retry_after_s=after_s, **data
            )
        case _:
            return NoReplicaReady(f"No replica of {model!r} is serving at the moment. Retry.", retry_after_s=after_s, **data)


def closing_error() -> HeadwayError:
    return NoReplicaReady("This gateway is shutting down. Retry.", retry_after_s=1.0)


def brain_away_error() -> HeadwayError:
    return NoReplicaReady("Nobody can admit requests at the moment. Retry.", retry_after_s=1.0)


def _limit_error(hit: LimitHit, data: dict[str, Any]) -> HeadwayError:
    limit = hit.limit
    if limit.kind is LimitKind.BALANCE:
        return _balance_error(hit, data)
    shown = [
        f"${micros_to_usd(n)}" if limit.kind is LimitKind.BUDGET else str(n)
        for n in (limit.value, hit.used, hit.reserved, hit.asked)
    ]
    value, used, reserved, asked = shown
    said = (
        f"The limit of {value} {_WORDS[limit.kind]} for {_WHOSE[limit.scope.kind]} is reached: "
        f"{used} used, {reserved} reserved by running requests, {asked} asked for."
    )
    if hit.retry_kind is RetryKind.NEVER:
        said += " This request is larger than the limit: make it smaller."
    if limit.kind is LimitKind.BUDGET or hit.retry_kind is RetryKind.NEVER:
        # The official SDKs retry a 429 unless told not to, and a month does not end in two seconds.
        data["headers"] = (("x-should-retry", "false"),)
    if limit.kind is LimitKind.BUDGET:
        return QuotaSpent(said, retry_after_s=hit.retry_after_s, **data)
    return RateLimited(said, retry_after_s=hit.retry_after_s, **data)


def _balance_error(hit: LimitHit, data: dict[str, Any]) -> HeadwayError:
    left, reserved, asked = (f"${micros_to_usd(n)}" for n in (hit.limit.value, hit.reserved, hit.asked))
    said = (
        f"The balance of your organisation does not allow this request: {left} left, "
        f"{reserved} of it reserved by running requests, up to {asked} asked for."
    )
    if hit.retry_kind is RetryKind.NEVER:
        said += " Add credit, or make the request smaller."
    data["headers"] = (("x-should-retry", "false"),)
    return BalanceSpent(said, retry_after_s=hit.retry_after_s, **data)


def _detail(refusal: Refused) -> dict[str, Any]:
    """For the error object: `reason`, `retry`, and what else is known."""
    detail: dict[str, Any] = {"reason": refusal.reason.value, "retry": refusal.retry_kind.value}
    if refusal.predicted_wait_s is not None:
        detail["predicted_wait_s"] = round(refusal.predicted_wait_s, 3)
    hit = refusal.hit
    if hit is not None:
        detail["limit"] = {
            "kind": hit.limit.kind.value,
            "scope": hit.limit.scope.kind.value,
            "value": hit.limit.value,
            "used": hit.used,
            "reserved": hit.reserved,
            "asked": hit.asked,
            "resets_in_s": None if hit.retry_after_s is None else round(hit.retry_after_s, 3),
        }
    return detail

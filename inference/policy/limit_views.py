"""What the limiter shows of itself: to pages and metrics, never to a decision."""

from dataclasses import dataclass

from inference.policy.decisions import Limit


@dataclass(frozen=True, slots=True)
class LimitUse:
    limit: Limit
    used: int  # of money in micro-dollars, rounded up
    reserved: int


@dataclass(frozen=True, slots=True)
class BalanceUse:
    """Of a tenant that pays in advance: all of all time."""

    tenant: str
    credit_picos: int
    spent_picos: int
    reserved_picos: int
    told_by: int


@dataclass(frozen=True, slots=True)
class LimiterSnapshot:
    open: int
    """Requests that hold a reservation."""
    running: int
    """Of those, the ones that hold a concurrency slot."""
    logged: int
    """Entries in logs: of the tenants, and of the keys and models that have a limit of rate."""
    overcommitted: int
    """Slots above limits: after a failover, or a limit that was lowered."""
    overruns: int
    """Settlements above their reservation, since the start: an engine made more than it was asked for."""
    unacknowledged_picos: int
    limits: tuple[LimitUse, ...]
    balances: tuple[BalanceUse, ...] = ()

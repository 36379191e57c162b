"""Terms, prices and months as the feed tells them, and what the data plane makes of them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
import structlog

from headway.months import month_of
from inference.policy.decisions import Limit, LimitKind, Scope, ScopeKind, TenantTerms, Tier, TokenPrice

log = structlog.get_logger(__name__)


class LimitRow(msgspec.Struct, frozen=True):
    scope: str
    id: str
    kind: str
    value: int


class TermsRow(msgspec.Struct, frozen=True):
    plan: str
    weight: float
    tier_ceiling: str
    time_zone: str
    default_max_tokens: int | None
    limits: list[LimitRow]
    salt_per_key: bool = False


class PriceRow(msgspec.Struct, frozen=True):
    tier: str
    version: int
    input_micros: int
    cached_micros: int
    output_micros: int
    effective_from: float


class PricesRow(msgspec.Struct, frozen=True):
    prices: list[PriceRow]


class MonthRow(msgspec.Struct, frozen=True):
    """The newest month of a tenant in which something was spent."""

    month: str
    ends_at: float  # unix seconds
    spent_micros: int
    keys: dict[str, int] = {}
    """Of those with a budget of their own."""
    models: dict[str, int] = {}


class Spend(NamedTuple):
    """What has been spent of one scope's budget in the month that runs now, as far as the ledger knows."""

    scope: Scope
    spent_micros: int
    ends_s: float  # unix seconds


@dataclass(frozen=True, slots=True)
class TenantFacts:
    """What is not a limit of a tenant's terms."""

    plan: str = ""
    time_zone: str = "UTC"
    default_max_tokens: int | None = None
    salt_per_key: bool = False
    """Prefix caches are shared within one key, not within the tenant."""


NO_FACTS = TenantFacts()
NO_PRICE = ("", TokenPrice())


def terms_of(tenant_id: str, row: TermsRow) -> TenantTerms:
    """Raises ValueError for a tier this release does not know. A limit of an unknown kind is left out, and logged."""
    try:
        ceiling = Tier[row.tier_ceiling.upper()]
    except KeyError:
        raise ValueError(f"there is no tier {row.tier_ceiling!r}") from None
    limits = [limit for each in row.limits if (limit := _limit(tenant_id, each)) is not None]
    return TenantTerms(tenant=tenant_id, weight=row.weight, tier_ceiling=ceiling, limits=tuple(limits))


def facts_of(row: TermsRow) -> TenantFacts:
    return TenantFacts(row.plan, row.time_zone, row.default_max_tokens, row.salt_per_key)


def spend_of(terms: TenantTerms, time_zone: str, row: MonthRow | None, now_s: float) -> list[Spend]:
    """Of the tenant itself, first, and of every scope that has a budget; 0 where the ledger has nothing of this month."""
    month = month_of(datetime.fromtimestamp(now_s, UTC), time_zone)
    is_this = row is not None and row.month == month.name
    whole = Scope(ScopeKind.TENANT, terms.tenant)
    spends = [Spend(whole, row.spent_micros if row is not None and is_this else 0, month.ends_s)]
    for scope in dict.fromkeys(limit.scope for limit in terms.limits if limit.kind is LimitKind.BUDGET):
        if scope != whole:
            spent = _spent_of(scope, row) if row is not None and is_this else 0
            spends.append(Spend(scope, spent, month.ends_s))
    return spends


def _spent_of(scope: Scope, row: MonthRow) -> int:
    return row.keys.get(scope.id, 0) if scope.kind is ScopeKind.KEY else row.models.get(scope.id.partition("/")[2], 0)


def price_at(row: PricesRow, tier: str, now_s: float) -> tuple[str, TokenPrice]:
    """The newest that holds at `now_s` (unix time): of this tier if there is one, else of all. Without any: free."""
    holding = [price for price in row.prices if price.effective_from <= now_s and price.tier in (tier, "")]
    if not holding:
        return NO_PRICE
    price = max(holding, key=lambda price: (price.tier == tier, price.effective_from, price.version))
    return str(price.version), TokenPrice(price.input_micros, price.cached_micros, price.output_micros)


def _limit(tenant_id: str, row: LimitRow) -> Limit | None:
    try:
        return Limit(Scope(ScopeKind(row.scope), row.id), LimitKind(row.kind), row.value)
    except ValueError as error:
        log.error("limit_unreadable", tenant=tenant_id, reason=str(error))
        return None

"""Terms, prices and months as the feed tells them, and what the data plane makes of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import msgspec
import structlog

from billing.services.rating import net_unit
from headway.months import month_of
from inference.policy.decisions import PICOS_A_MICRO, Limit, LimitKind, Scope, ScopeKind, TenantTerms, Tier, TokenPrice

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
    discount_percent: int = 0
    is_prepaid: bool = False
    pins: dict[str, str] = {}
    no_shadow: bool = False
    is_operator: bool = False


class PriceRow(msgspec.Struct, frozen=True):
    tier: str
    version: int
    input_micros: int
    cached_micros: int
    output_micros: int
    effective_from: float


class PricesRow(msgspec.Struct, frozen=True):
    prices: list[PriceRow]


_Picos = Annotated[str, msgspec.Meta(pattern=r"^-?[0-9]+$")]


class MonthRow(msgspec.Struct, frozen=True):
    """The newest month of a tenant in which something was spent.

    Pico-dollars, as text: they may be more than 64 bits hold. The release before told whole micro-dollars, as numbers.
    """

    month: str
    ends_at: float  # unix seconds
    spent_picos: _Picos | None = None
    keys: dict[str, _Picos | int] = {}
    """Of those with a budget of their own."""
    models: dict[str, _Picos | int] = {}
    spent_micros: int | None = None
    raised_picos: _Picos = "0"
    """What corrections have added, and taken off: of `spent_picos`. Both only count up."""
    lowered_picos: _Picos = "0"
    key_changes: dict[str, tuple[_Picos, _Picos]] = {}
    """The same two of `keys` and of `models`, where there are any."""
    model_changes: dict[str, tuple[_Picos, _Picos]] = {}

    def __post_init__(self) -> None:
        if self.spent_picos is None and self.spent_micros is None:
            raise ValueError("a month says what was spent")

    @property
    def spent(self) -> int:
        """Pico-dollars."""
        return _picos_of(self.spent_micros or 0 if self.spent_picos is None else self.spent_picos)


class BalanceRow(msgspec.Struct, frozen=True):
    """All credit a tenant may use, and all it has spent, of all time. Pico-dollars, as text."""

    credit_picos: _Picos
    spent_picos: _Picos
    expiring: list[tuple[float, _Picos]] = []
    """Of the credit, what is not spent and until when (unix seconds) it may be."""


class Balance(NamedTuple):
    """As policy's `set_balance` takes it, in unix seconds."""

    credit_picos: int | None
    spent_picos: int = 0
    expiring: tuple[tuple[float, int], ...] = ()
    told_by: int = 0


class Spend(NamedTuple):
    """What has been spent of one scope's budget in the month that runs now, as far as the ledger knows."""

    scope: Scope
    spent_picos: int
    ends_s: float  # unix seconds
    raised_picos: int = 0
    """Of what was spent: what corrections have added, and taken off."""
    lowered_picos: int = 0


@dataclass(frozen=True, slots=True)
class TenantFacts:
    """What is not a limit of a tenant's terms."""

    plan: str = ""
    time_zone: str = "UTC"
    default_max_tokens: int | None = None
    salt_per_key: bool = False
    """Prefix caches are shared within one key, not within the tenant."""
    discount_percent: int = 0
    """Off the list price of every token."""
    is_prepaid: bool = False
    """It may spend what its balance has, and no more."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """The version that serves it, by model."""
    no_shadow: bool = False
    """None of its requests is mirrored to a candidate."""
    is_operator: bool = False
    """Our own account: it may ask for a candidate by name, and pays for what is mirrored."""


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
    return TenantFacts(
        plan=row.plan,
        time_zone=row.time_zone,
        default_max_tokens=row.default_max_tokens,
        salt_per_key=row.salt_per_key,
        discount_percent=row.discount_percent,
        is_prepaid=row.is_prepaid,
        pins=row.pins,
        no_shadow=row.no_shadow,
        is_operator=row.is_operator,
    )


def balance_of(row: BalanceRow | None, *, is_prepaid: bool, told_by: int) -> Balance:
    """One who pays in advance, and of whose balance nothing was told, has none."""
    if row is None:
        return Balance(0 if is_prepaid else None)
    expiring = tuple((at_s, int(picos)) for at_s, picos in row.expiring)
    return Balance(int(row.credit_picos) if is_prepaid else None, int(row.spent_picos), expiring, told_by)


def spend_of(terms: TenantTerms, time_zone: str, row: MonthRow | None, now_s: float) -> list[Spend]:
    """Of the tenant itself, first, and of every scope that has a budget; 0 where the ledger has nothing of this month."""
    month = month_of(datetime.fromtimestamp(now_s, UTC), time_zone)
    is_this = row is not None and row.month == month.name
    whole = Scope(ScopeKind.TENANT, terms.tenant)
    scopes = dict.fromkeys([whole, *(limit.scope for limit in terms.limits if limit.kind is LimitKind.BUDGET)])
    if row is None or not is_this:
        return [Spend(scope, 0, month.ends_s) for scope in scopes]
    return [Spend(scope, _spent_of(scope, row), month.ends_s, *_changes_of(scope, row)) for scope in scopes]


def _spent_of(scope: Scope, row: MonthRow) -> int:
    if scope.kind is ScopeKind.TENANT:
        return row.spent
    if scope.kind is ScopeKind.KEY:
        return _picos_of(row.keys.get(scope.id, 0))
    return _picos_of(row.models.get(scope.id.partition("/")[2], 0))


def _changes_of(scope: Scope, row: MonthRow) -> tuple[int, int]:
    """What corrections have added, and taken off."""
    if scope.kind is ScopeKind.TENANT:
        raised, lowered = row.raised_picos, row.lowered_picos
    elif scope.kind is ScopeKind.KEY:
        raised, lowered = row.key_changes.get(scope.id, ("0", "0"))
    else:
        raised, lowered = row.model_changes.get(scope.id.partition("/")[2], ("0", "0"))
    return int(raised), int(lowered)


def _picos_of(told: str | int) -> int:
    return int(told) if isinstance(told, str) else told * PICOS_A_MICRO


def price_at(row: PricesRow, tier: str, now_s: float) -> tuple[str, TokenPrice]:
    """The newest that holds at `now_s` (unix time): of this tier if there is one, else of all. Without any: free."""
    holding = [price for price in row.prices if price.effective_from <= now_s and price.tier in (tier, "")]
    if not holding:
        return NO_PRICE
    price = max(holding, key=lambda price: (price.tier == tier, price.effective_from, price.version))
    # Micro-dollars per million tokens are pico-dollars a token.
    return str(price.version), TokenPrice(price.input_micros, price.cached_micros, price.output_micros)


def net_price(price: TokenPrice, discount_percent: int) -> TokenPrice:
    """A list price less a plan's discount, for each kind of token."""
    if not discount_percent:
        return price
    each = (price.input_picos, price.cached_picos, price.output_picos)
    return TokenPrice(*(net_unit(picos, discount_percent) for picos in each))


def _limit(tenant_id: str, row: LimitRow) -> Limit | None:
    try:
        return Limit(Scope(ScopeKind(row.scope), row.id), LimitKind(row.kind), row.value)
    except ValueError as error:
        log.error("limit_unreadable", tenant=tenant_id, reason=str(error))
        return None

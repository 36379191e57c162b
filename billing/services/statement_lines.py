"""A month's sums of the ledger as lines that people can check: tokens × list price, discounts, corrections. Pure.

Exact amounts are pico-dollars. Each line is rounded once, half away from zero, to the currency's minor unit, and what an
invoice adds up is the rounded lines: so its total is the sum of what it shows.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from billing.errors import StatementDiffers
from billing.invoice_models import LineKind, TokenKind
from billing.selectors_credit import CreditLine
from billing.services.rating import UnitPrice, net_unit
from billing.services.rounding import minor_to_picos, picos_to_minor

TOKEN_LABELS = {TokenKind.INPUT: "input tokens", TokenKind.CACHED: "cached input tokens", TokenKind.OUTPUT: "output tokens"}


@dataclass(frozen=True)
class UsageSum:
    """Records of one month that were priced alike. Tokens are those that are billed (docs/billing.md: End states)."""

    model: str
    tier: str
    price_version: str
    discount_percent: int
    is_late: bool
    requests: int
    tokens: Mapping[TokenKind, int]
    requests_with: Mapping[TokenKind, int]
    """How many of them have billed tokens of the kind."""
    amount_picos: int
    """What the ledger says they cost."""
    former_rounding_picos: int = 0
    """Of it, what requests were rounded up by before amounts were exact."""


@dataclass(frozen=True)
class AdjustmentSum:
    kind: str
    reason: str
    model: str
    count: int
    amount_picos: int


@dataclass(frozen=True)
class Money:
    """The currency that lines are rounded in."""

    currency: str
    minor_digits: int
    rate_nanos: int

    def minor(self, amount_picos: int) -> int:
        return picos_to_minor(amount_picos, minor_digits=self.minor_digits, rate_nanos=self.rate_nanos)

    def picos(self, amount_minor: int) -> int:
        return minor_to_picos(amount_minor, minor_digits=self.minor_digits, rate_nanos=self.rate_nanos)


@dataclass(frozen=True)
class DraftLine:
    """A StatementLine that is not stored; the names are its."""

    kind: LineKind
    label: str
    amount_picos: int | None
    amount_minor: int
    model: str = ""
    tier: str = ""
    token_kind: str = ""
    price_version: str = ""
    discount_percent: int = 0
    is_late: bool = False
    source: str = ""
    requests: int = 0
    quantity_tokens: int | None = None
    unit_picos: int | None = None


def unit_picos(price: UnitPrice, kind: TokenKind, discount_percent: int = 0) -> int:
    """A token of that kind, less the discount: as gateways price it."""
    listed = {
        TokenKind.INPUT: price.input_picos,
        TokenKind.CACHED: price.cached_picos,
        TokenKind.OUTPUT: price.output_picos,
    }
    return net_unit(listed[kind], discount_percent)


def usage_lines(sums: Sequence[UsageSum], prices: Mapping[tuple[str, str], UnitPrice], money: Money) -> list[DraftLine]:
    """A line per model, tier, price version and token kind; then discounts per model and percent; then former rounding.

    Raises StatementDiffers where the ledger's amount is not what these tokens cost.
    """
    tokens: defaultdict[tuple[str, str, str, bool, TokenKind], list[int]] = defaultdict(lambda: [0, 0])
    discounts: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for each in sums:
        price = prices.get((each.model, each.price_version))
        if price is None:
            raise StatementDiffers(f"there is no price {each.price_version} of {each.model!r}, which the ledger names")
        for kind, count in each.tokens.items():
            sum_of_kind = tokens[each.model, each.tier, each.price_version, each.is_late, kind]
            sum_of_kind[0] += count
            sum_of_kind[1] += each.requests_with[kind]
        listed = sum(count * unit_picos(price, kind) for kind, count in each.tokens.items())
        net = sum(count * unit_picos(price, kind, each.discount_percent) for kind, count in each.tokens.items())
        if net + each.former_rounding_picos != each.amount_picos:
            raise StatementDiffers(
                f"{each.requests} requests to {each.model!r} (price {each.price_version}, {each.tier}) cost "
                f"{each.amount_picos} pico-dollars in the ledger and {net} by their tokens"
            )
        if listed != net:
            discount = discounts[each.model, each.discount_percent]
            discount[0] += net - listed
            discount[1] += each.requests
    order = {kind: place for place, kind in enumerate(TokenKind)}
    lines = [
        _tokens_line(key, count, requests, prices[key[0], key[2]], money)
        for key, (count, requests) in sorted(tokens.items(), key=lambda item: (*item[0][:4], order[item[0][4]]))
        if count
    ]
    lines += [_discount_line(*key, picos, requests, money) for key, (picos, requests) in sorted(discounts.items())]
    return lines + _former_rounding(sums, money)


def adjustment_lines(sums: Iterable[AdjustmentSum], money: Money) -> list[DraftLine]:
    return [
        DraftLine(
            kind=LineKind.ADJUSTMENT,
            label=" · ".join(part for part in (each.model, each.reason or each.kind) if part)[:300],
            model=each.model,
            source=adjustment_source(each.kind, each.reason),
            requests=each.count,
            amount_picos=each.amount_picos,
            amount_minor=money.minor(each.amount_picos),
        )
        for each in sums
    ]


def adjustment_source(kind: str, reason: str) -> str:
    """What tells the adjustments of one line from those of another."""
    return f"{kind}:{reason}"


def carried_in_line(amount_picos: int, month: str, money: Money) -> DraftLine:
    """`amount_picos`: what an earlier statement owes the customer, above zero."""
    minor = -money.minor(amount_picos)
    return DraftLine(
        kind=LineKind.CARRIED_IN, label=f"Carried over from {month}", amount_picos=-amount_picos, amount_minor=minor
    )


def credit_lines(used: Sequence[CreditLine], lines: Sequence[DraftLine], money: Money) -> list[DraftLine]:
    """What grants paid of those lines.

    Credits that pay all of it pay all of it as shown, and rounding alone never makes a sum fall below zero: the last
    credit takes the difference.
    """
    made = [
        DraftLine(
            kind=LineKind.CREDIT,
            label=f"Credit · {each.label}"[:300],
            source=each.grant_id,
            amount_picos=-each.amount_picos,
            amount_minor=-money.minor(each.amount_picos),
        )
        for each in used
        if each.amount_picos
    ]
    left_picos = sum(line.amount_picos or 0 for line in [*lines, *made])
    left_minor = sum(line.amount_minor for line in [*lines, *made])
    if made and (left_picos == 0 or (left_picos > 0 and left_minor < 0)):
        made[-1] = replace(made[-1], amount_minor=made[-1].amount_minor - left_minor)
    return made


def carried_out_line(lines: Sequence[DraftLine], month_after: str, money: Money) -> DraftLine | None:
    """Where the lines come to less than nothing: what brings them to nothing, to be taken off a later statement."""
    minor = sum(line.amount_minor for line in lines)
    if minor >= 0:
        return None
    label = f"Carried over to {month_after} or later"
    return DraftLine(kind=LineKind.CARRIED_OUT, label=label, amount_picos=money.picos(-minor), amount_minor=-minor)


def _tokens_line(
    key: tuple[str, str, str, bool, TokenKind], count: int, requests: int, price: UnitPrice, money: Money
) -> DraftLine:
    model, tier, version, is_late, kind = key
    amount_picos = count * unit_picos(price, kind)
    late = " · used earlier" if is_late else ""
    return DraftLine(
        kind=LineKind.USAGE,
        label=f"{model} · {tier} · {TOKEN_LABELS[kind]}{late}"[:300],
        model=model,
        tier=tier,
        token_kind=kind,
        price_version=version,
        is_late=is_late,
        requests=requests,
        quantity_tokens=count,
        unit_picos=unit_picos(price, kind),
        amount_picos=amount_picos,
        amount_minor=money.minor(amount_picos),
    )


def _discount_line(model: str, percent: int, picos: int, requests: int, money: Money) -> DraftLine:
    return DraftLine(
        kind=LineKind.DISCOUNT,
        label=f"{model} · plan discount {percent} %"[:300],
        model=model,
        discount_percent=percent,
        requests=requests,
        amount_picos=picos,
        amount_minor=money.minor(picos),
    )


def _former_rounding(sums: Sequence[UsageSum], money: Money) -> list[DraftLine]:
    picos = sum(each.former_rounding_picos for each in sums)
    if not picos:
        return []
    requests = sum(each.requests for each in sums if each.former_rounding_picos)
    label = "Rounding up to a micro-dollar a request, as it was before amounts were exact"
    return [
        DraftLine(kind=LineKind.ROUNDING, label=label, requests=requests, amount_picos=picos, amount_minor=money.minor(picos))
    ]

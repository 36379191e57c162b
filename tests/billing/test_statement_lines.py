"""Sums into lines, without a database."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import StatementDiffers
from billing.invoice_models import LineKind, TokenKind
from billing.selectors_credit import CreditLine
from billing.services.rating import UnitPrice
from billing.services.rounding import NANOS
from billing.services.statement_lines import (
    AdjustmentSum,
    DraftLine,
    Money,
    UsageSum,
    adjustment_lines,
    carried_in_line,
    carried_out_line,
    credit_lines,
    unit_picos,
    usage_lines,
)
from headway.money import PICOS_A_USD
from inference.gateway.tenant_rows import net_price
from inference.policy.decisions import TokenPrice

USD = Money("USD", 2, NANOS)
JPY = Money("JPY", 0, 150 * NANOS)
CENT = PICOS_A_USD // 100
PRICE = UnitPrice(150_000, 15_000, 600_000)
PRICES = {("tiny", "1"): PRICE, ("tiny", "2"): UnitPrice(1, 1, 3)}


def usage(
    *counts: int, version: str = "1", discount: int = 0, is_late: bool = False, tier: str = "standard", **others: Any
) -> UsageSum:
    tokens = dict(zip(TokenKind, counts, strict=True))
    price = PRICES["tiny", version]
    amount = sum(count * unit_picos(price, kind, discount) for kind, count in tokens.items())
    fields: dict[str, Any] = {"model": "tiny", "requests": 1, "amount_picos": amount} | others
    return UsageSum(
        tier=tier,
        price_version=version,
        discount_percent=discount,
        is_late=is_late,
        tokens=tokens,
        requests_with={kind: int(count > 0) for kind, count in tokens.items()},
        **fields,
    )


def of_kind(lines: list[DraftLine], kind: LineKind) -> list[DraftLine]:
    return [line for line in lines if line.kind is kind]


def test_a_line_is_tokens_times_the_list_price_of_its_kind() -> None:
    lines = usage_lines([usage(1_000_000, 2_000_000, 500_000)], PRICES, USD)
    assert [(line.token_kind, line.quantity_tokens, line.unit_picos, line.amount_minor) for line in lines] == [
        ("input", 1_000_000, 150_000, 15),
        ("cached_input", 2_000_000, 15_000, 3),
        ("output", 500_000, 600_000, 30),
    ]
    assert [line.amount_picos for line in lines] == [15 * CENT, 3 * CENT, 30 * CENT]


def test_tokens_of_no_kind_make_no_line_and_versions_tiers_and_late_use_their_own() -> None:
    sums = [usage(10, 0, 0), usage(10, 0, 5, tier="batch"), usage(7, 0, 0, version="2"), usage(1, 0, 0, is_late=True)]
    lines = usage_lines(sums, PRICES, USD)
    keys = [(line.tier, line.price_version, line.is_late, line.token_kind, line.quantity_tokens) for line in lines]
    assert keys == [
        ("batch", "1", False, "input", 10),
        ("batch", "1", False, "output", 5),
        ("standard", "1", False, "input", 10),
        ("standard", "1", True, "input", 1),
        ("standard", "2", False, "input", 7),
    ]
    assert "used earlier" in lines[3].label


def test_a_discount_is_a_line_and_list_less_discount_is_the_ledgers_sum() -> None:
    sums = [usage(1_000, 10, 7, discount=33), usage(500, 0, 9, discount=33, tier="batch"), usage(3, 0, 0)]
    lines = usage_lines(sums, PRICES, USD)
    (discount,) = of_kind(lines, LineKind.DISCOUNT)
    assert discount.discount_percent == 33
    assert discount.amount_picos is not None and discount.amount_picos < 0
    assert sum(line.amount_picos or 0 for line in lines) == sum(each.amount_picos for each in sums)


@given(list_picos=st.integers(0, 10**10), percent=st.integers(0, 100))
def test_the_net_price_is_the_gateways(list_picos: int, percent: int) -> None:
    mine, gateways = UnitPrice(list_picos, 0, 0), TokenPrice(list_picos, 0, 0)
    assert unit_picos(mine, TokenKind.INPUT, percent) == net_price(gateways, percent).input_picos


def test_what_the_ledger_does_not_say_is_no_statement() -> None:
    with pytest.raises(StatementDiffers, match="by their tokens"):
        usage_lines([usage(10, 0, 0, amount_picos=10 * 150_000 + 1)], PRICES, USD)
    with pytest.raises(StatementDiffers, match="no price 2"):
        usage_lines([usage(10, 0, 0, version="2", model="other")], PRICES, USD)


def test_former_rounding_is_told_in_a_line_of_its_own() -> None:
    each = usage(10, 0, 0, amount_picos=2_000_000, former_rounding_picos=500_000)
    lines = usage_lines([each], PRICES, USD)
    assert [line.amount_picos for line in of_kind(lines, LineKind.ROUNDING)] == [500_000]
    assert sum(line.amount_picos or 0 for line in lines) == 2_000_000


def test_adjustments_of_one_reason_are_one_line_rounded_once() -> None:
    sums = [AdjustmentSum("goodwill", "an outage", "", 3, -(5 * CENT // 2)), AdjustmentSum("correction", "", "tiny", 1, CENT)]
    lines = adjustment_lines(sums, USD)
    assert [(line.label, line.amount_minor) for line in lines] == [("an outage", -3), ("tiny · correction", 1)]


def plain(*tenths: int) -> list[DraftLine]:
    """Lines of so many tenths of a cent."""
    amounts = [each * CENT // 10 for each in tenths]
    return [DraftLine(LineKind.USAGE, "x", amount_picos=each, amount_minor=USD.minor(each)) for each in amounts]


def credit(tenths: int) -> CreditLine:
    return CreditLine("g", "welcome", tenths * CENT // 10)


@pytest.mark.parametrize("tenths", [(6, 6, 6), (4, 4, 4), (15,), (4, 6), (5, 5, 5, 5)])
def test_credits_that_pay_all_leave_nothing_whatever_rounding_did(tenths: tuple[int, ...]) -> None:
    lines = plain(*tenths)
    paid = credit_lines([credit(sum(tenths) - 3), credit(3)], lines, USD)
    assert sum(line.amount_minor for line in [*lines, *paid]) == 0
    assert sum(line.amount_picos or 0 for line in [*lines, *paid]) == 0


def test_rounding_alone_makes_nothing_fall_below_zero() -> None:
    lines = plain(4, 4, 4)  # shown as nothing
    paid = credit_lines([credit(11)], lines, USD)
    assert sum(line.amount_minor for line in [*lines, *paid]) == 0


def test_credits_that_pay_a_part_are_rounded_like_any_line() -> None:
    lines = plain(100)
    (paid,) = credit_lines([credit(25), CreditLine("empty", "empty", 0)], lines, USD)
    assert (paid.amount_minor, paid.amount_picos, paid.label) == (-3, -25 * CENT // 10, "Credit · welcome")


def test_less_than_nothing_is_carried_over_and_comes_back_whole() -> None:
    for money in (USD, JPY):
        lines = adjustment_lines([AdjustmentSum("goodwill", "an outage", "", 1, -7 * PICOS_A_USD)], money)
        out = carried_out_line(lines, "2026-12", money)
        assert out is not None and out.amount_picos is not None
        assert out.amount_minor + lines[0].amount_minor == 0
        assert carried_in_line(out.amount_picos, "2026-11", money).amount_minor == -out.amount_minor
    assert carried_out_line(plain(10, 0), "2026-12", USD) is None

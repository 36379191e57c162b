"""Nothing that is counted is rounded: a request costs a whole number of pico-dollars, and so does any sum of them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db.models import Sum

from billing.models import MonthSpend, UsageHour, UsageRecord
from billing.selectors import spent_by_scope, spent_picos, with_corrections
from billing.services.ledger import record_usage
from billing.services.usage_series import UsageQuery, aligned, usage_series
from dashboard.templatetags.dashboard import usd_of_picos
from headway.money import PICOS_A_USD, picos_to_usd
from inference.gateway.tenant_rows import net_price
from inference.policy.decisions import TokenPrice
from tenants.api.usage_shapes import RequestShape, UsageSums
from tenants.models import Tenant
from tenants.services.tenants import create_tenant
from tests.inference.gateway.usage_drafts import draft

pytestmark = pytest.mark.django_db
CALLS = 2_000
A_CALL = 1_500_000
"""Pico-dollars: $0.0000015."""
AT_S = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def acme() -> Tenant:
    return create_tenant(name="acme", actor="test")


def used(tenant: Tenant, *amounts: int, **fields: Any) -> None:
    common = {"tenant_id": str(tenant.id), "ended_at_s": AT_S, "price_version": "1"} | fields
    count = UsageRecord.objects.count()
    record_usage(drafts=[draft(f"r{count + n}", "done", **common, amount_picos=picos) for n, picos in enumerate(amounts)])


def test_x11_many_calls_for_a_micro_dollar_and_a_half_cost_exactly_that_everywhere(acme: Tenant) -> None:
    """Two thousand here; what a million come to is the same sum, as nothing depends on how many they are."""
    used(acme, *[A_CALL] * CALLS)
    whole = CALLS * A_CALL
    day = datetime(2026, 11, 15, tzinfo=UTC)
    assert UsageRecord.objects.aggregate(all=Sum("amount_picos"))["all"] == whole
    assert spent_picos(acme.id, "2026-11") == whole
    assert spent_by_scope(acme.id, "2026-11", scope="model", scope_ids=["m"]) == whole
    for granularity, zone in (("minute", "UTC"), ("hour", "UTC"), ("hour", "Asia/Kathmandu"), ("day", "UTC")):
        query = aligned(UsageQuery(day, day.replace(hour=23), zone, granularity))
        totals = usage_series(acme.id, query).totals()
        assert totals["amount_picos"] == whole, granularity
        assert UsageSums(totals).data["amount_usd"] == "0.003"
    assert picos_to_usd(1_000_000 * A_CALL) == "1.5"
    assert RequestShape(with_corrections(UsageRecord.objects.all()).first()).data["amount_usd"] == "0.0000015"
    assert usd_of_picos(A_CALL) == "$0.0000015"


@pytest.mark.on_postgresql
def test_x11_a_month_holds_more_dollars_than_64_bits_hold_pico_dollars(acme: Tenant) -> None:
    most = 9_000_000 * PICOS_A_USD
    for day in range(3):  # one of usage has room for nine million dollars
        used(acme, most, ended_at_s=AT_S + 86_400 * day)
    assert spent_picos(acme.id, "2026-11") == 3 * most
    used(acme, 1, ended_at_s=AT_S - 86_400)
    assert MonthSpend.objects.get(tenant_id=acme.id, key_id="", model="").amount_picos == 3 * most + 1


def test_x12_each_request_has_the_price_and_the_plan_of_its_own_time(acme: Tenant) -> None:
    """A price, then another, then a plan with a discount: each record keeps what it was priced by."""
    old, new = TokenPrice(1_000_000, 1_000_000, 3_000_000), TokenPrice(2_000_001, 2_000_001, 6_000_000)
    prices = [("1", old, 0), ("2", new, 0), ("2", net_price(new, 15), 15)]
    for version, price, percent in prices:
        amount = price.amount_picos(prompt_tokens=10, cached_tokens=0, completion_tokens=2)
        used(acme, amount, price_version=version, discount_percent=percent)
    kept = UsageRecord.objects.order_by("id").values_list("price_version", "discount_percent", "amount_picos")
    assert list(kept) == [("1", 0, 16_000_000), ("2", 0, 32_000_010), ("2", 15, 10 * 1_700_001 + 2 * 5_100_000)]
    assert spent_picos(acme.id, "2026-11") == sum(row[2] or 0 for row in kept)
    assert UsageHour.objects.aggregate(all=Sum("amount_picos"))["all"] == spent_picos(acme.id, "2026-11")


@pytest.mark.parametrize(
    ("picos", "shown"),
    [
        (None, "–"),
        (0, "$0.00"),
        (1, "$0.000000000001"),
        (99_999_999, "$0.000099999999"),
        (100_000_000, "$0.0001"),
        (123_450_000_000, "$0.1235"),
        (1_234_567_890_000_000, "$1,234.57"),
        (-1_500_000, "-$0.0000015"),
        (9_007_199_254_740_993_010_000_000_000, "$9,007,199,254,740,993.01"),
    ],
)
def test_pages_show_two_decimals_four_below_a_dollar_and_what_is_less_exactly(picos: int | None, shown: str) -> None:
    assert usd_of_picos(picos) == shown

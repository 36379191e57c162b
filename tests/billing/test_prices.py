from datetime import timedelta

import pytest
from django.utils import timezone

from billing.errors import PriceJump
from billing.models import Price
from billing.selectors import prices_in_force
from billing.services.prices import MAX_MICROS, TIERS, price_in_force, set_price
from headway.errors import InvalidInput
from inference.models import ControlChange, Model
from inference.policy.decisions import Tier
from tenants.models import AuditEntry

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def tiny() -> Model:
    return Model.objects.create(public_id="tiny")


def published() -> list[tuple[str, int, int]]:
    payload = ControlChange.objects.filter(kind="price", key="tiny").latest("id").payload
    assert payload is not None
    return [(price["tier"], price["version"], price["input_micros"]) for price in payload["prices"]]


def price(input_micros: int = 1_000_000, **others: object) -> Price:
    fields = {"model": "tiny", "output_micros": 2_000_000, "actor": "test"} | others
    return set_price(input_micros=input_micros, **fields)  # type: ignore[arg-type]


def test_a_price_is_a_new_version_and_the_old_one_stays() -> None:
    assert (price(1).version, price(3).version, price(4, tier="batch").version) == (1, 2, 3)
    assert Price.objects.count() == 3
    assert published() == [("", 2, 3), ("batch", 3, 4)]
    assert AuditEntry.objects.filter(action="price.set").count() == 3


def test_cached_tokens_cost_what_input_does_unless_told() -> None:
    assert price(100).cached_micros == 100
    assert price(100, cached_micros=10).cached_micros == 10


def test_a_price_of_the_future_is_told_beside_the_one_that_holds() -> None:
    price(1)
    price(2, effective_from=timezone.now() + timedelta(days=1))
    assert published() == [("", 1, 1), ("", 2, 2)]
    assert [each.version for each in prices_in_force("tiny")] == [1, 2]


def test_prices_out_of_bounds_are_refused_and_nothing_changes() -> None:
    bad: list[dict[str, object]] = [
        {"unit": "per_token"},
        {"input_micros": -1},
        {"input_micros": MAX_MICROS + 1},
        {"output_micros": -1},
        {"cached_micros": 2_000_000},
        {"tier": "urgent"},
        {"model": "nobody"},
        {"effective_from": timezone.now() - timedelta(seconds=1)},
    ]
    for fields in bad:
        with pytest.raises(InvalidInput):
            price(**fields)  # type: ignore[arg-type]
    assert not Price.objects.exists()
    assert not ControlChange.objects.filter(kind="price").exists()


def test_b71_a_price_per_token_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidInput, match=r"per million tokens .*, not 'per_token': multiply a price per token by 1,000,000"):
        price(2_000_000, unit="per_token")
    assert not Price.objects.exists()
    price(2_000_000, unit="per_million_tokens")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"input_micros": 100_000_001}, "input"),
        ({"output_micros": 200_000_001}, "output"),
        ({"input_micros": 9_999, "cached_micros": 9_999}, "input"),
        ({"cached_micros": 999}, "cached input"),
        ({"output_micros": 0}, "output"),
    ],
)
def test_b71_a_price_far_from_what_holds_is_taken_when_it_is_confirmed(changes: dict[str, int], kind: str) -> None:
    held = price(1_000_000, cached_micros=100_000, effective_from=timezone.now() + timedelta(seconds=1))
    Price.objects.filter(pk=held.pk).update(effective_from=timezone.now() - timedelta(days=1))
    asked = {"input_micros": 1_000_000, "cached_micros": 100_000} | changes
    with pytest.raises(PriceJump, match=f"a million {kind} tokens"):
        price(**asked)
    assert Price.objects.count() == 1
    assert price(**asked, is_confirmed=True).version == 2


def test_b71_a_hundredfold_is_near_enough_and_a_tier_is_compared_with_what_it_pays_now() -> None:
    price(10_000, output_micros=20_000)
    assert price(1_000_000, output_micros=2_000_000).version == 2
    assert price(100_000_000, output_micros=200_000_000, tier="batch").version == 3, "against the price for all tiers"
    with pytest.raises(PriceJump):
        price(900_000, output_micros=1_000_000, tier="batch")


def test_a_price_that_will_hold_is_compared_with_what_will_hold_then() -> None:
    later = timezone.now() + timedelta(days=7)
    price(10_000, output_micros=20_000)
    price(1_000_000, output_micros=2_000_000, effective_from=later)
    with pytest.raises(PriceJump):
        price(1_000_001, output_micros=2_000_000)
    assert price(50_000_000, output_micros=100_000_000, effective_from=later + timedelta(days=1)).version == 3


def test_the_price_in_force_is_the_newest_of_the_tier_else_of_all() -> None:
    now = timezone.now()
    for at, tier in ((now + timedelta(hours=1), ""), (now + timedelta(hours=2), "batch"), (now + timedelta(hours=3), "")):
        price(effective_from=at, tier=tier)
    found = [
        price_in_force("tiny", tier, now + timedelta(hours=h)) for h, tier in ((0, ""), (1, "batch"), (3, "batch"), (3, ""))
    ]
    assert [each.version if each else None for each in found] == [None, 1, 2, 3]


def test_the_tiers_are_those_of_the_policies() -> None:
    assert [tier.name.lower() for tier in Tier] == list(TIERS)

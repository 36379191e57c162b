from datetime import timedelta

import pytest
from django.utils import timezone

from billing.models import Price
from billing.selectors import prices_in_force
from billing.services.prices import MAX_MICROS, TIERS, set_price
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
    assert (price().version, price(3).version, price(4, tier="batch").version) == (1, 2, 3)
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


def test_the_tiers_are_those_of_the_policies() -> None:
    assert [tier.name.lower() for tier in Tier] == list(TIERS)

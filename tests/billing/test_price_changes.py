"""What another price would have made of a month, and what it makes of it when it is rated again."""

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from billing.models import Adjustment, Price, UsageRecord
from billing.re_rating_models import ReRating
from billing.selectors import spent_picos
from billing.services.adjustments import adjust_usage, net_picos
from billing.services.ledger import record_usage
from billing.services.open_months import close_month
from billing.services.price_dry_run import dry_run_price
from billing.services.rating import UnitPrice, amount_of, net_unit, unit_price
from billing.services.re_rating import Span
from billing.services.re_rating_dry_run import dry_run_re_rating
from billing.services.re_rating_runs import re_rate
from headway.errors import HeadwayError, InvalidInput, NotFound
from inference.gateway.record import DONE
from inference.models import Model
from inference.policy.decisions import TokenPrice
from tenants.models import AuditEntry, Tenant
from tenants.services.tenants import create_tenant
from tests.billing.test_rating import END_STATES
from tests.billing.test_usage_slots import assert_equal, assert_months_equal
from tests.inference.gateway.usage_drafts import draft

NOVEMBER = datetime(2026, 11, 15, 12, tzinfo=UTC)
DECEMBER = datetime(2026, 12, 5, tzinfo=UTC)
SPAN = {"starts_at": datetime(2026, 11, 1, tzinfo=UTC), "ends_at": datetime(2026, 12, 1, tzinfo=UTC)}
OLD, NEW = (1_000_000, 100_000, 3_000_000), (2_000_001, 150_000, 2_500_003)


def priced(version: int, micros: tuple[int, int, int], tier: str = "") -> Price:
    names = ("input_micros", "cached_micros", "output_micros")
    fields: dict[str, Any] = dict(zip(names, micros, strict=True))
    return Price.objects.create(model="m", tier=tier, version=version, effective_from=NOVEMBER - timedelta(days=99), **fields)


def used(tenant_id: UUID, number: int, price: Price, percent: int = 0, **fields: Any) -> None:
    common: dict[str, Any] = {
        "tenant_id": str(tenant_id),
        "ended_at_s": NOVEMBER.timestamp(),
        "usage_source": "engine",
        "end_state": DONE,
    }
    common |= {"prompt_tokens": 100, "cached_tokens": 40, "completion_tokens": 10}
    one = draft(f"r{number}", **(common | fields))
    amount = amount_of(one.end_state, one, unit_price(price, percent))
    given: dict[str, Any] = {"price_version": str(price.version), "discount_percent": percent, "amount_picos": amount}
    record_usage(drafts=[draft(f"r{number}", **(common | fields | given))], now=DECEMBER)


def dry(micros: tuple[int, int, int] = NEW, month: str = "2026-11", **more: Any) -> Any:
    names = ("input_micros", "cached_micros", "output_micros")
    given: dict[str, Any] = dict(zip(names, micros, strict=True)) | more
    return dry_run_price(model="m", month=month, **given)


def again(version: int = 2, *, reason: str = "priced wrong", **changes: Any) -> ReRating:
    return re_rate(span=span(version, **changes), reason=reason, actor="test", now=DECEMBER)


def span(version: int = 2, **changes: Any) -> Span:
    given: dict[str, Any] = {"model": "m", "price_version": version, **SPAN}
    return Span(**(given | changes))


@given(
    price=st.tuples(*[st.integers(0, 10**10)] * 3),
    tokens=st.tuples(*[st.integers(0, 10**7)] * 3),
    percent=st.integers(0, 100),
)
def test_the_ledger_rates_as_the_gateway_does(price: tuple[int, int, int], tokens: tuple[int, int, int], percent: int) -> None:
    prompt, cached, completion = tokens
    named = {"prompt_tokens": prompt + cached, "cached_tokens": cached, "completion_tokens": completion}
    net = [net_unit(each, percent) for each in price]
    assert UnitPrice(*net).amount_picos(**named) == TokenPrice(*net).amount_picos(**named)
    assert unit_price(Price(input_micros=price[0], cached_micros=price[1], output_micros=price[2]), percent) == UnitPrice(*net)


many = st.lists(
    st.fixed_dictionaries(
        {
            "end_state": st.sampled_from(sorted(END_STATES)),
            "tier": st.sampled_from(["standard", "batch"]),
            "prompt_tokens": st.integers(10, 50),
            "cached_tokens": st.integers(0, 10),
            "completion_tokens": st.integers(0, 50),
            "percent": st.sampled_from([0, 7, 15, 100]),
            "whose": st.integers(0, 1),
        }
    ),
    max_size=10,
)


class AnyMonth(TestCase):
    @settings(max_examples=40, deadline=None)
    @given(all_used=many)
    def test_a_dry_run_says_what_rating_again_makes_of_it(self, all_used: list[dict[str, Any]]) -> None:
        """By tenant and tier, to the pico-dollar; and rating again twice changes nothing more."""
        Model.objects.create(public_id="m")
        tenants = [create_tenant(name=name, actor="test").id for name in ("acme", "globex")]
        old = priced(1, OLD)
        for number, fields in enumerate(all_used):
            used(tenants[fields.pop("whose")], number, old, fields.pop("percent"), **fields)
        trial = dry()
        assert {(row.tier, row.tenant_id): row.was_picos for row in trial.rows} == self.ledger()
        priced(2, NEW)
        tried = dry_run_re_rating(span())
        again()
        assert {row.tenant_id: row.would_picos for row in tried} == self.by_tenant()
        assert {(row.tier, row.tenant_id): row.would_picos for row in trial.rows} == self.ledger()
        assert [(row.was_picos, row.would_picos) for row in dry().rows] == [(row.would_picos,) * 2 for row in trial.rows]
        assert (again().adjusted, trial.total()[0]) == (0, len(all_used))
        assert_equal()
        assert_months_equal()

    def by_tenant(self) -> dict[UUID, int]:
        found: dict[UUID, int] = {}
        for (_, tenant_id), picos in self.ledger().items():
            found[tenant_id] = found.get(tenant_id, 0) + picos
        return found

    def ledger(self) -> dict[tuple[str, UUID], int]:
        found: dict[tuple[str, UUID], int] = {}
        for record in UsageRecord.objects.all():
            key = (record.tier, record.tenant_id)
            found[key] = found.get(key, 0) + net_picos(record)
        return found


@pytest.fixture
def acme() -> Tenant:
    Model.objects.create(public_id="m")
    return create_tenant(name="acme", actor="test")


@pytest.mark.django_db
def test_a_price_for_all_tiers_is_tried_on_those_that_have_none_of_their_own(acme: Tenant) -> None:
    everywhere, batch = priced(1, OLD), priced(2, (5, 5, 5), tier="batch")
    used(acme.id, 1, everywhere, tier="standard")
    used(acme.id, 2, batch, tier="batch")
    assert [row.tier for row in dry().rows] == ["standard"]
    assert [row.tier for row in dry(tier="batch").rows] == ["batch"]
    assert dry(month="2026-10").rows == dry(tenant_id=UUID(int=5)).rows == []


@pytest.mark.django_db
@pytest.mark.parametrize(
    "wrong", [{"month": "2026-13"}, {"month": "last"}, {"month": "2026-1"}, {"unit": "per_token"}, {"tier": "x"}]
)
def test_a_dry_run_refuses_what_a_price_does(acme: Tenant, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        dry(**wrong)


@pytest.mark.django_db
def test_b71_old_records_keep_their_price_until_they_are_rated_again_by_lines_of_their_own(acme: Tenant) -> None:
    wrong = priced(1, (2_000_000 * 1000,) * 3)
    used(acme.id, 1, wrong)
    priced(2, NEW)
    record = UsageRecord.objects.get()
    assert (record.price_version, net_picos(record)) == ("1", 110 * 2_000_000_000)
    done = again()
    right = 60 * NEW[0] + 40 * NEW[1] + 10 * NEW[2]
    assert (done.requests, done.adjusted, done.amount_picos) == (1, 1, right - 110 * 2_000_000_000)
    assert UsageRecord.objects.filter(amount_picos=110 * 2_000_000_000, price_version="1").count() == 1, "never edited"
    assert spent_picos(acme.id, "2026-11") == right
    assert AuditEntry.objects.filter(action="usage.re_rate", target="m").count() == 1


@pytest.mark.django_db
def test_what_was_given_stays_given_and_nothing_comes_to_cost_less_than_nothing(acme: Tenant) -> None:
    used(acme.id, 1, priced(1, OLD))
    used(acme.id, 2, Price.objects.get())
    cost = 60 * OLD[0] + 40 * OLD[1] + 10 * OLD[2]
    asked: dict[str, Any] = {"kind": "goodwill", "reason": "sorry", "actor": "test", "now": DECEMBER}
    adjust_usage(tenant_id=acme.id, request_id="r1", amount_picos=-cost + 5, **asked)
    adjust_usage(tenant_id=acme.id, request_id="r2", amount_picos=-100, **asked)
    priced(2, (500_000, 50_000, 1_500_000))
    (tried,) = dry_run_re_rating(span())
    done = again()
    assert (tried.was_picos, tried.would_picos) == (cost + 5 - 100, cost // 2 - 100), "the first is worth nothing, and no less"
    assert done.amount_picos == tried.would_picos - tried.was_picos
    assert [net_picos(record) for record in UsageRecord.objects.order_by("id")] == [0, cost // 2 - 100]
    assert_equal()


@pytest.mark.django_db
def test_a_month_that_is_closed_is_rated_again_on_the_next_statement(acme: Tenant) -> None:
    used(acme.id, 1, priced(1, OLD))
    close_month(tenant_id=acme.id, month="2026-11")
    before = spent_picos(acme.id, "2026-11")
    priced(2, NEW)
    done = again()
    assert (spent_picos(acme.id, "2026-11"), spent_picos(acme.id, "2026-12")) == (before, done.amount_picos)
    assert Adjustment.objects.get().kind == "re_rate"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (NotFound, {"version": 9}),
        (InvalidInput, {"ends_at": SPAN["starts_at"]}),
        (InvalidInput, {"reason": " "}),
    ],
)
def test_rating_again_refuses_nonsense(acme: Tenant, error: type[HeadwayError], changes: dict[str, Any]) -> None:
    used(acme.id, 1, priced(1, OLD))
    priced(2, NEW)
    with pytest.raises(error):
        again(**changes)
    assert not Adjustment.objects.exists()


@pytest.mark.django_db
def test_a_span_is_half_open_of_one_tier_and_of_one_tenant(acme: Tenant) -> None:
    other = create_tenant(name="globex", actor="test")
    old = priced(1, OLD)
    for number, (whose, at, tier) in enumerate(
        [
            (acme, SPAN["starts_at"], "batch"),
            (acme, SPAN["ends_at"], "batch"),
            (acme, NOVEMBER, "standard"),
            (other, NOVEMBER, "batch"),
        ]
    ):
        used(whose.id, number, old, ended_at_s=at.timestamp(), tier=tier)
    priced(2, NEW, tier="batch")
    assert again(tenant_id=acme.id).adjusted == 1
    assert Adjustment.objects.get().request_id == "r0"
    assert again().adjusted == 1


# Commands


def said(*arguments: str) -> Any:
    out = StringIO()
    call_command(*arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


@pytest.mark.django_db
def test_the_command_shows_a_dry_run_and_changes_nothing(acme: Tenant) -> None:
    used(acme.id, 1, priced(1, (1_000_000, 1_000_000, 1_000_000)))
    found = said("set_price", "m", "--input-usd", "2", "--output-usd", "4", "--dry-run", "--month", "2026-11")
    line = {"tier": "standard", "tenant": "acme", "requests": 1, "was_usd": "0.00011", "would_usd": "0.00024"}
    assert (found["rows"], found["total"]) == ([line], line | {"tier": "all", "tenant": "all"})
    assert Price.objects.count() == 1
    said("set_price", "m", "--input-usd", "2", "--output-usd", "4")
    rated = said("re_rate", "m", "--price-version", "2", "--from", "2026-11-01", "--to", "2026-12-01", "--reason", "a mistake")
    assert rated == {"requests": 1, "adjusted": 1, "amount_usd": "0.00013"}


@pytest.mark.django_db
def test_the_command_asks_to_confirm_a_price_that_is_far_off(acme: Tenant) -> None:
    priced(1, (1_000_000, 1_000_000, 1_000_000))
    asked = ("set_price", "m", "--input-usd", "200", "--output-usd", "1")
    with pytest.raises(Exception, match="more than 100 times"):
        said(*asked)
    assert Price.objects.count() == 1
    assert said(*asked, "--yes")["prices"][0]["input_usd"] == "200.00"

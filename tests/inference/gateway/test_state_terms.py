from datetime import UTC, datetime
from typing import Any

import pytest

from inference.gateway.state import Change, ControlState
from inference.gateway.tenant_rows import Spend, net_price
from inference.policy.decisions import Limit, LimitKind, Scope, ScopeKind, TenantTerms, Tier, TokenPrice
from tests.inference.gateway.control_rows import gone, model_row, state_of

NOVEMBER_S = datetime(2026, 11, 15, tzinfo=UTC).timestamp()


def terms_row(change_id: int, tenant_id: str = "t1", **changes: Any) -> Change:
    payload = {
        "plan": "gold",
        "weight": 2.0,
        "tier_ceiling": "standard",
        "time_zone": "Asia/Tokyo",
        "default_max_tokens": 100,
        "limits": [{"scope": "key", "id": "k1", "kind": "requests_per_minute", "value": 5}],
    }
    return Change(change_id, "terms", tenant_id, payload | changes)


def price_row(change_id: int, *prices: tuple[str, int, int, float]) -> Change:
    rows = [
        {
            "tier": tier,
            "version": version,
            "input_micros": micros,
            "cached_micros": 1,
            "output_micros": 2,
            "effective_from": from_s,
        }
        for tier, version, micros, from_s in prices
    ]
    return Change(change_id, "price", "m", {"prices": rows})


def month_row(change_id: int, spent_picos: int = 7, tenant_id: str = "t1", **changes: Any) -> Change:
    payload = {"month": "2026-11", "ends_at": 9.0, "spent_picos": str(spent_picos)}
    return Change(change_id, "month", tenant_id, payload | changes)


def test_terms_are_what_the_policies_speak() -> None:
    state = state_of(terms_row(1))
    limit = Limit(Scope(ScopeKind.KEY, "k1"), LimitKind.REQUESTS, 5)
    assert state.terms("t1") == TenantTerms("t1", weight=2.0, tier_ceiling=Tier.STANDARD, limits=(limit,))
    assert (state.facts("t1").plan, state.facts("t1").time_zone, state.facts("t1").default_max_tokens) == (
        "gold",
        "Asia/Tokyo",
        100,
    )
    assert state.all_terms() == [state.terms("t1")]


def test_a_tenant_of_whom_nothing_was_told_has_no_limits() -> None:
    state = state_of(terms_row(1), gone(2, "terms", "t1"))
    assert state.terms("t1") == TenantTerms("t1")
    assert state.facts("t1").default_max_tokens is None


def test_a_limit_of_an_unknown_kind_is_left_out_and_the_others_hold() -> None:
    new = {"scope": "tenant", "id": "t1", "kind": "images_per_minute", "value": 5}
    old = {"scope": "tenant", "id": "t1", "kind": "requests_per_minute", "value": 6}
    assert [limit.value for limit in state_of(terms_row(1, limits=[new, old])).terms("t1").limits] == [6]


def test_terms_that_cannot_be_read_do_not_free_a_tenant_of_its_limits() -> None:
    state = state_of(terms_row(1), terms_row(2, tier_ceiling="urgent"), terms_row(3, limits=None), month_row(4))
    state.apply(
        [
            Change(5, "month", "t1", {"month": "2026-11", "ends_at": 9.0, "spent_picos": "x"}),
            Change(6, "month", "t1", {"month": "2026-11", "ends_at": 9.0}),
        ]
    )
    assert state.terms("t1").limits
    assert state.spend("t1", now_s=NOVEMBER_S)[0].spent_picos == 7
    assert state.applied_change_id == 6
    assert [change.id for change in state.rows()] == [1, 4]


def test_a_price_is_the_newest_that_holds_of_the_tier_else_of_all() -> None:
    state = state_of(price_row(1, ("", 1, 10, 0.0), ("", 2, 20, 100.0), ("batch", 3, 5, 50.0)))
    assert state.price("m", "standard", now_s=99.0) == ("1", TokenPrice(10, 1, 2))
    assert state.price("m", "standard", now_s=100.0)[0] == "2"
    assert state.price("m", "batch", now_s=49.0)[0] == "1"
    assert state.price("m", "batch", now_s=100.0)[0] == "3"
    assert state.price("m", "batch", now_s=-1.0) == state.price("nobody", "batch", now_s=0.0) == ("", TokenPrice())


def test_listeners_hear_whose_terms_and_months_changed() -> None:
    state, terms, routes = ControlState(), [], []
    months: list[frozenset[str]] = []
    state.on_terms_changed(lambda ids: terms.append((ids, {each: state.terms(each).weight for each in ids})))
    state.on_months_changed(months.append)
    state.on_routes_changed(lambda: routes.append(1))
    state.apply([terms_row(1), terms_row(2, "t2"), price_row(3)])
    assert terms == [(frozenset({"t1", "t2"}), {"t1": 2.0, "t2": 2.0})]
    assert (months, routes) == ([], [])
    state.apply([month_row(4)])
    state.apply([model_row(5)])
    assert months == [frozenset({"t1"})]
    assert len(terms) == 1
    state.apply([gone(6, "terms", "t2")])
    assert terms[-1] == (frozenset({"t2"}), {"t2": 1.0})


def test_a_reload_tells_of_those_who_came_and_of_those_who_went() -> None:
    state = state_of(terms_row(1, "old"), month_row(2, tenant_id="old"))
    heard: list[frozenset[str]] = []
    state.on_terms_changed(heard.append)
    state.reload([terms_row(1, "new")])
    assert frozenset().union(*heard) == {"old", "new"}
    assert state.spend("old", now_s=NOVEMBER_S)[0].spent_picos == 0


def test_rows_carry_terms_prices_and_months_into_a_snapshot() -> None:
    state = state_of(terms_row(1), price_row(2, ("", 1, 10, 0.0)), month_row(3), month_row(4, 9))
    again = state_of(*state.rows())
    assert again.terms("t1") == state.terms("t1")
    assert again.price("m", "standard", now_s=1.0) == state.price("m", "standard", now_s=1.0)
    assert again.spend("t1", now_s=NOVEMBER_S)[0].spent_picos == 9


def test_what_corrections_changed_of_a_month_is_told_of_each_scope_with_a_budget() -> None:
    def budget(scope: str, name: str) -> dict[str, object]:
        return {"scope": scope, "id": name, "kind": "monthly_budget", "value": 5}

    limits = [budget("tenant", "t1"), budget("key", "k1"), budget("key", "k2"), budget("model", "t1/org/tiny")]
    told: dict[str, Any] = {"raised_picos": "3", "lowered_picos": str(10**25), "keys": {"k1": "5", "k2": "6"}}
    told |= {"key_changes": {"k1": ["1", "2"]}, "models": {"org/tiny": "4"}, "model_changes": {"org/tiny": ["7", "8"]}}
    spends = state_of(terms_row(1, limits=limits), month_row(2, **told)).spend("t1", now_s=NOVEMBER_S)
    changes = [(spend.spent_picos, spend.raised_picos, spend.lowered_picos) for spend in spends]
    assert changes == [(7, 3, 10**25), (5, 1, 2), (6, 0, 0), (4, 7, 8)]


def test_spend_is_of_the_month_that_runs_of_the_tenant_and_of_each_scope_with_a_budget() -> None:
    def budget(scope: str, name: str) -> dict[str, object]:
        return {"scope": scope, "id": name, "kind": "monthly_budget", "value": 5}

    limits = [budget("tenant", "t1"), budget("key", "k1"), budget("model", "t1/org/tiny"), budget("model", "t1/big")]
    state = state_of(terms_row(1, limits=limits), month_row(2, keys={"k1": "1", "k2": "2"}, models={"org/tiny": "3"}))
    ends_s = datetime(2026, 11, 30, 15, tzinfo=UTC).timestamp()  # midnight in Tokyo
    scopes = [
        Scope(ScopeKind.TENANT, "t1"),
        Scope(ScopeKind.KEY, "k1"),
        Scope(ScopeKind.MODEL, "t1/org/tiny"),
        Scope(ScopeKind.MODEL, "t1/big"),
    ]
    assert state.spend("t1", now_s=NOVEMBER_S) == [
        Spend(scope, spent, ends_s) for scope, spent in zip(scopes, (7, 1, 3, 0), strict=True)
    ]
    assert [spend.spent_picos for spend in state.spend("t1", now_s=ends_s)] == [0, 0, 0, 0]


def test_a_month_that_the_release_before_told_is_in_micros() -> None:
    limits = [{"scope": "key", "id": "k1", "kind": "monthly_budget", "value": 5}]
    old = Change(2, "month", "t1", {"month": "2026-11", "ends_at": 9.0, "spent_micros": 7, "keys": {"k1": 1}, "models": {}})
    state = state_of(terms_row(1, limits=limits), old)
    assert [spend.spent_picos for spend in state.spend("t1", now_s=NOVEMBER_S)] == [7_000_000, 1_000_000]


def test_a_month_may_be_more_than_64_bits_hold() -> None:
    state = state_of(*state_of(terms_row(1), month_row(2, 10**25)).rows())
    assert state.spend("t1", now_s=NOVEMBER_S)[0].spent_picos == 10**25


@pytest.mark.parametrize(
    ("picos", "percent", "net"),
    [(10, 0, 10), (10, 25, 8), (10, 24, 8), (1, 50, 1), (1, 51, 0), (3, 100, 0), (250_000, 10, 225_000)],
)
def test_a_discount_is_in_the_unit_price_rounded_half_up(picos: int, percent: int, net: int) -> None:
    assert net_price(TokenPrice(picos, picos, picos), percent) == TokenPrice(net, net, net)


def test_a_discount_comes_with_the_terms() -> None:
    assert state_of(terms_row(1, discount_percent=20)).facts("t1").discount_percent == 20
    assert state_of(terms_row(1)).facts("t1").discount_percent == 0


@pytest.mark.parametrize(
    ("zone", "midnight"),
    [
        ("Asia/Tokyo", datetime(2026, 11, 30, 15, tzinfo=UTC)),
        ("America/St_Johns", datetime(2026, 12, 1, 3, 30, tzinfo=UTC)),
        ("Pacific/Chatham", datetime(2026, 11, 30, 10, 15, tzinfo=UTC)),
    ],
)
def test_b65_a_budgets_month_ends_at_local_midnight(zone: str, midnight: datetime) -> None:
    state = state_of(terms_row(1, time_zone=zone), month_row(2, month="2026-11"))
    at_s = midnight.timestamp()
    (before,), (after,) = (state.spend("t1", now_s=now_s) for now_s in (at_s - 0.001, at_s))
    assert (before.spent_picos, before.ends_s) == (7, at_s)
    assert after.spent_picos == 0
    assert at_s + 27 * 86_400 < after.ends_s < at_s + 32 * 86_400


def test_the_balance_of_one_who_pays_in_advance_is_what_was_told_of_it_and_without_that_nothing() -> None:
    state = state_of(terms_row(1, is_prepaid=True))
    assert state.balance("t1").credit_picos == 0
    told = {"credit_picos": str(10**20), "spent_picos": "7", "expiring": [[5.5, "3"]]}
    state.apply([Change(50, "balance", "t1", told)])
    assert state.balance("t1") == (10**20, 7, ((5.5, 3),), 50)
    state.apply([Change(51, "balance", "t1", {**told, "spent_picos": "much"})])
    assert state.balance("t1").told_by == 50, "what cannot be read changes nothing"
    heard: list[frozenset[str]] = []
    state.on_balances_changed(heard.append)
    state.apply([terms_row(52)])
    assert state.balance("t1").credit_picos is None
    state.apply([gone(53, "balance", "t1")])
    assert heard == [{"t1"}]
    assert state.balance("t1") == (None, 0, (), 0)

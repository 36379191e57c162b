from functools import partial
from typing import Any

import pytest

from inference.policy.decisions import (
    PICOS_A_MICRO,
    Ask,
    Limit,
    LimitHit,
    LimitKind,
    RetryKind,
    Scope,
    ScopeKind,
    TenantTerms,
    TokenPrice,
    Usage,
)
from inference.policy.limits import Limiter

ACME = Scope(ScopeKind.TENANT, "acme")
KEY_1 = Scope(ScopeKind.KEY, "k1")
KEY_2 = Scope(ScopeKind.KEY, "k2")
TINY = Scope(ScopeKind.MODEL, "acme/tiny")
RPM, TPM_IN, TPM_OUT = LimitKind.REQUESTS, LimitKind.INPUT_TOKENS, LimitKind.OUTPUT_TOKENS
A_MICRO_A_TOKEN = TokenPrice(input_picos=1_000_000, cached_picos=100_000, output_picos=1_000_000)


def limiter(*limits: tuple[Scope, LimitKind, int], tenant: str = "acme") -> Limiter:
    made = Limiter()
    made.set_terms(TenantTerms(tenant, limits=tuple(Limit(*limit) for limit in limits)), 0.0)
    return made


def ask(name: str, prompt_tokens: int = 10, max_tokens: int = 10, **others: Any) -> Ask:
    return Ask(
        **{"id": name, "model": "tiny", "tenant": "acme", "key": "k1"} | others,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
    )


def passes(limits: Limiter, asked: Ask, now_s: float = 0.0) -> bool:
    return isinstance(limits.reserve(asked, now_s), int)


def hit_of(limits: Limiter, asked: Ask, now_s: float = 0.0) -> LimitHit:
    hit = limits.reserve(asked, now_s)
    assert isinstance(hit, LimitHit), hit
    limits.check_invariants(now_s)
    return hit


def test_without_limits_everything_passes_and_nothing_is_told() -> None:
    limits = Limiter()
    assert all(passes(limits, ask(str(number))) for number in range(100))
    assert limits.rates("acme", "k1", "tiny", 0.0).limit_requests is None


def test_a_refusal_says_which_limit_and_how_it_stood() -> None:
    limits = limiter((ACME, TPM_IN, 1000))
    assert passes(limits, ask("settled", 300))
    limits.settle("settled", Usage(prompt_tokens=300, completion_tokens=1), 1.0)
    assert passes(limits, ask("open", 500), 2.0)
    assert hit_of(limits, ask("refused", 250), 10.0) == LimitHit(
        Limit(ACME, TPM_IN, 1000), used=300, reserved=500, asked=250, retry_after_s=50.0, retry_kind=RetryKind.EXACT
    )


def test_all_limits_or_none_are_reserved() -> None:
    limits = limiter((ACME, RPM, 100), (KEY_1, TPM_IN, 1000), (TINY, TPM_OUT, 50))
    hit_of(limits, ask("a", 10, 51))
    assert limits.snapshot().logged == 0
    rates = limits.rates("acme", "k1", "tiny", 0.0)
    assert (rates.remaining_requests, rates.remaining_tokens) == (100, 1000)


def test_of_several_limits_the_one_that_takes_longest_is_told() -> None:
    limits = limiter((ACME, RPM, 2), (KEY_1, TPM_IN, 100))
    assert passes(limits, ask("a", 10), 0.0)
    assert passes(limits, ask("b", 90), 20.0)
    hit = hit_of(limits, ask("c", 50), 30.0)
    assert (hit.limit.kind, hit.retry_after_s) == (TPM_IN, 50.0)
    assert passes(limits, ask("c", 50), 80.0)


def test_a_request_larger_than_a_limit_is_told_that_waiting_does_not_help() -> None:
    hit = hit_of(limiter((ACME, TPM_IN, 100)), ask("a", 101))
    assert (hit.retry_after_s, hit.retry_kind) == (None, RetryKind.NEVER)


def test_a_request_that_may_be_shortened_gets_what_is_left() -> None:
    limits = limiter((ACME, TPM_OUT, 1000))
    first = limits.reserve(ask("a", 10, 700, may_shorten=True), 0.0)
    assert first == 700
    second = limits.reserve(ask("b", 10, 700, may_shorten=True), 1.0)
    assert second == 300
    hit = hit_of(limits, ask("c", 10, 700, may_shorten=True), 2.0)
    assert (hit.asked, hit.retry_after_s) == (256, 58.0), "too little is left to be worth an answer"
    third = limits.reserve(ask("c", 10, 700, may_shorten=True), 60.0)
    assert third == 700


def test_a_retry_under_the_same_id_reserves_nothing_again() -> None:
    limits = limiter((ACME, RPM, 1), (ACME, TPM_OUT, 100))
    assert passes(limits, ask("a", 10, 100))
    again = limits.reserve(ask("a", 10, 60), 5.0)
    assert again == 60
    hit_of(limits, ask("b"), 5.0)


def test_what_is_undone_was_never_asked() -> None:
    limits = limiter((ACME, RPM, 1))
    assert passes(limits, ask("a"))
    limits.undo("a", 0.0)
    limits.undo("a", 0.0)
    assert passes(limits, ask("b"))
    limits.check_invariants(0.0)


def test_a_settlement_counts_once_and_an_unknown_one_not_at_all() -> None:
    limits = limiter((ACME, TPM_IN, 100))
    assert passes(limits, ask("a", 100))
    limits.settle("a", Usage(prompt_tokens=40), 1.0)
    limits.settle("a", Usage(prompt_tokens=90), 1.0)
    limits.settle("stranger", Usage(prompt_tokens=90), 1.0)
    assert limits.rates("acme", "k1", "tiny", 1.0).remaining_tokens == 60


def test_a_changed_limit_keeps_what_was_used_and_a_new_one_knows_it() -> None:
    limits = limiter((ACME, RPM, 10))
    for number in range(5):
        assert passes(limits, ask(str(number)))
    limits.set_terms(TenantTerms("acme", limits=(Limit(ACME, RPM, 6), Limit(KEY_1, TPM_IN, 55))), 1.0)
    hit_of(limits, ask("big", 6), 1.0)
    assert passes(limits, ask("small", 5), 1.0)
    assert hit_of(limits, ask("more", 1), 1.0).limit.value == 6
    limits.set_terms(TenantTerms("acme"), 2.0)
    assert passes(limits, ask("free", 1000), 2.0)


def test_limits_of_another_tenant_do_not_touch_one_even_by_the_same_key_id() -> None:
    limits = limiter((Scope(ScopeKind.KEY, "k1"), RPM, 1), tenant="other")
    assert passes(limits, ask("a")) and passes(limits, ask("b"))
    with pytest.raises(KeyError):
        limits.set_terms(TenantTerms("acme", limits=(Limit(Scope(ScopeKind.MODEL, "other/tiny"), RPM, 1),)), 0.0)


def test_a_request_that_runs_for_hours_counts_for_a_minute_and_settles_without_trace() -> None:
    limits = limiter((ACME, TPM_OUT, 100))
    assert passes(limits, ask("long", 1, 100))
    assert passes(limits, ask("next", 1, 100), 60.0)
    limits.settle("long", Usage(prompt_tokens=1, completion_tokens=100), 61.0)
    limits.check_invariants(61.0)
    assert limits.rates("acme", "k1", "tiny", 61.0).remaining_tokens == 0


# Concurrency


def test_slots_are_taken_by_start_and_given_back_by_stop() -> None:
    limits = limiter((ACME, LimitKind.CONCURRENCY, 2), (KEY_1, LimitKind.CONCURRENCY, 1))
    for name, key in (("a", "k1"), ("b", "k1"), ("c", "k2"), ("d", "k2")):
        assert passes(limits, ask(name, key=key))
    assert limits.can_start(ask("a")) is None
    limits.start("a")
    assert limits.can_start(ask("b")) == KEY_1
    assert limits.can_start(ask("c", key="k2")) is None
    limits.start("c")
    assert limits.can_start(ask("d", key="k2")) == ACME
    assert limits.stop("a") == [ACME, KEY_1]
    assert limits.stop("a") == []
    assert limits.can_start(ask("b")) is None
    limits.check_invariants(0.0)


def test_a_slot_outlives_its_settlement_until_it_is_given_back() -> None:
    limits = limiter((ACME, LimitKind.CONCURRENCY, 1))
    assert passes(limits, ask("a"))
    limits.start("a")
    for _ in range(2):
        limits.settle("a", Usage(amount_picos=5 * PICOS_A_MICRO), 1.0)
    assert limits.snapshot().unacknowledged_picos == 5 * PICOS_A_MICRO
    limits.check_invariants(1.0)
    assert limits.can_start(ask("b")) == ACME
    assert limits.stop("a") == [ACME]
    assert not limits.is_open("a")
    limits.check_invariants(1.0)


# Money


def test_a_budget_counts_spent_settled_and_open() -> None:
    limits = limiter((ACME, LimitKind.BUDGET, 1000))
    limits.set_month("acme", spent_picos=500 * PICOS_A_MICRO, ends_s=1e6, now_s=0.0)
    assert passes(limits, ask("a", 100, 100, price=A_MICRO_A_TOKEN))
    limits.settle("a", Usage(100, 0, 50, amount_picos=150 * PICOS_A_MICRO), 1.0)
    assert passes(limits, ask("b", 100, 100, price=A_MICRO_A_TOKEN), 1.0)
    hit = hit_of(limits, ask("c", 100, 51, price=A_MICRO_A_TOKEN), 2.0)
    assert (hit.limit.kind, hit.used, hit.reserved, hit.asked) == (LimitKind.BUDGET, 650, 200, 151)
    assert hit.retry_kind is RetryKind.ESTIMATE, "what is open may come back any moment"
    assert passes(limits, ask("c", 100, 50, price=A_MICRO_A_TOKEN), 2.0)


def test_a_spent_budget_refuses_until_the_month_ends_exactly() -> None:
    limits = limiter((ACME, LimitKind.BUDGET, 1000))
    limits.set_month("acme", spent_picos=990 * PICOS_A_MICRO, ends_s=5000.0, now_s=0.0)
    hit = hit_of(limits, ask("a", 10, 10, price=A_MICRO_A_TOKEN), 100.0)
    assert (hit.retry_after_s, hit.retry_kind) == (4900.0, RetryKind.EXACT)
    assert passes(limits, ask("a", 10, 10, price=A_MICRO_A_TOKEN), 5000.0)
    assert passes(limits, ask("free", 10, 10), 5000.0), "what costs nothing needs no budget"


def test_what_open_requests_hold_goes_over_into_the_next_month() -> None:
    limits = limiter((ACME, LimitKind.BUDGET, 1000))
    limits.set_month("acme", spent_picos=500 * PICOS_A_MICRO, ends_s=5000.0, now_s=0.0)
    assert passes(limits, ask("open", 200, 200, price=A_MICRO_A_TOKEN), 100.0)
    hit = hit_of(limits, ask("b", 350, 350, price=A_MICRO_A_TOKEN), 100.0)
    assert (hit.retry_after_s, hit.retry_kind) == (4900.0, RetryKind.ESTIMATE)
    assert hit_of(limits, ask("b", 350, 350, price=A_MICRO_A_TOKEN), 5000.0).reserved == 400
    limits.settle("open", Usage(amount_picos=300 * PICOS_A_MICRO), 5000.0)
    assert passes(limits, ask("b", 350, 350, price=A_MICRO_A_TOKEN), 5000.0)


@pytest.mark.parametrize("row_first", [True, False])
def test_ledger_rows_and_acknowledgements_count_nothing_twice_in_any_order(row_first: bool) -> None:
    limits = limiter((ACME, LimitKind.BUDGET, 1000))
    limits.set_month("acme", spent_picos=100 * PICOS_A_MICRO, ends_s=1e6, now_s=0.0)
    assert passes(limits, ask("a", 100, 100, price=A_MICRO_A_TOKEN))
    limits.settle("a", Usage(amount_picos=200 * PICOS_A_MICRO), 1.0)
    if row_first:
        limits.set_month("acme", spent_picos=300 * PICOS_A_MICRO, ends_s=1e6, now_s=1.0)
        limits.acknowledged("acme", 200 * PICOS_A_MICRO)
    else:
        limits.acknowledged("acme", 200 * PICOS_A_MICRO)
        limits.set_month("acme", spent_picos=100 * PICOS_A_MICRO, ends_s=1e6, now_s=1.0)
        limits.set_month("acme", spent_picos=300 * PICOS_A_MICRO, ends_s=1e6, now_s=1.0)
    assert hit_of(limits, ask("b", 350, 351, price=A_MICRO_A_TOKEN), 2.0).used == 300
    assert passes(limits, ask("b", 350, 350, price=A_MICRO_A_TOKEN), 2.0)


def test_a_key_is_given_a_budget_in_the_middle_of_the_month() -> None:
    limits = limiter()
    limits.set_month("acme", spent_picos=5000 * PICOS_A_MICRO, ends_s=1e6, now_s=0.0)
    for name in ("acknowledged", "not yet"):
        assert passes(limits, ask(name, 100, 100, price=A_MICRO_A_TOKEN), 1.0)
        limits.settle(name, Usage(amount_picos=200 * PICOS_A_MICRO), 1.0)
    limits.acknowledged("acme", 200 * PICOS_A_MICRO, key="k1", model="tiny")
    limits.set_terms(TenantTerms("acme", limits=(Limit(KEY_1, LimitKind.BUDGET, 1000),)), 2.0)
    limits.set_month("acme", spent_picos=500 * PICOS_A_MICRO, ends_s=1e6, now_s=2.0, scope=KEY_1)
    assert hit_of(limits, ask("a", 200, 101, price=A_MICRO_A_TOKEN), 2.0).used == 700
    assert passes(limits, ask("a", 200, 100, price=A_MICRO_A_TOKEN), 2.0)
    assert passes(limits, ask("b", 200, 200, key="k2", price=A_MICRO_A_TOKEN), 2.0)


def test_a_new_month_starts_from_nothing_and_an_old_row_is_not_believed() -> None:
    limits = limiter((ACME, LimitKind.BUDGET, 1000))
    month_s = 30 * 86_400.0
    limits.set_month("acme", spent_picos=900 * PICOS_A_MICRO, ends_s=month_s, now_s=0.0)
    limits.set_month("acme", spent_picos=0, ends_s=2 * month_s, now_s=month_s)
    limits.set_month("acme", spent_picos=950 * PICOS_A_MICRO, ends_s=month_s, now_s=month_s)
    assert passes(limits, ask("a", 500, 500, price=A_MICRO_A_TOKEN), month_s)


def test_a_month_that_is_lowered_is_counted_lower_at_once_and_no_settlement_is_lost() -> None:
    limits = limiter((ACME, LimitKind.BUDGET, 1000))

    def tell(spent: int, raised: int = 0, lowered: int = 0) -> None:
        picos = [each * PICOS_A_MICRO for each in (spent, raised, lowered)]
        limits.set_month("acme", spent_picos=picos[0], raised_picos=picos[1], lowered_picos=picos[2], ends_s=1e6, now_s=1.0)

    def used() -> int:
        return next(use.used for use in limits.snapshot().limits)

    tell(700)
    assert passes(limits, ask("a", 100, 100, price=A_MICRO_A_TOKEN), 1.0)
    limits.settle("a", Usage(amount_picos=200 * PICOS_A_MICRO), 1.0)
    tell(400)  # an older row: nothing is taken off by it
    assert used() == 900
    tell(200, lowered=500)
    assert used() == 400, "200 in the ledger, 200 on their way there"
    tell(700)
    assert used() == 400, "what was told late changes nothing"
    tell(400, lowered=500)
    limits.acknowledged("acme", 200 * PICOS_A_MICRO)
    assert used() == 400
    tell(450, raised=50, lowered=500)
    tell(440, raised=50, lowered=510)
    assert used() == 440
    hit_of(limits, ask("b", 280, 281, price=A_MICRO_A_TOKEN), 1.0)
    assert passes(limits, ask("b", 280, 280, price=A_MICRO_A_TOKEN), 1.0)


def test_what_is_added_and_taken_off_again_hides_no_settlement_that_is_not_in_the_ledger() -> None:
    limits = limiter((ACME, LimitKind.BUDGET, 1000))
    limits.set_month("acme", spent_picos=0, ends_s=1e6, now_s=0.0)
    assert passes(limits, ask("a", 100, 100, price=A_MICRO_A_TOKEN))
    limits.settle("a", Usage(amount_picos=200 * PICOS_A_MICRO), 1.0)
    more = 300 * PICOS_A_MICRO
    limits.set_month("acme", spent_picos=0, ends_s=1e6, now_s=1.0, raised_picos=more, lowered_picos=more)
    assert [use.used for use in limits.snapshot().limits] == [200]


def test_a_correction_ends_with_its_month() -> None:
    limits = limiter((ACME, LimitKind.BUDGET, 1000))
    month_s = 30 * 86_400.0
    limits.set_month("acme", spent_picos=0, lowered_picos=500 * PICOS_A_MICRO, ends_s=month_s, now_s=0.0)
    limits.set_month("acme", spent_picos=100 * PICOS_A_MICRO, ends_s=2 * month_s, now_s=month_s)
    assert [use.used for use in limits.snapshot().limits] == [100]


def test_a_balance_is_never_overdrawn() -> None:
    limits = Limiter()
    limits.set_balance("acme", credit_picos=300 * PICOS_A_MICRO, now_s=0.0)
    assert passes(limits, ask("a", 100, 100, price=A_MICRO_A_TOKEN))
    hit = hit_of(limits, ask("b", 100, 100, price=A_MICRO_A_TOKEN))
    assert (hit.limit.kind, hit.limit.value, hit.reserved, hit.retry_kind) == (
        LimitKind.BALANCE,
        300,
        200,
        RetryKind.ESTIMATE,
    )
    limits.settle("a", Usage(amount_picos=120 * PICOS_A_MICRO), 1.0)
    assert hit_of(limits, ask("b", 100, 100, price=A_MICRO_A_TOKEN), 1.0).retry_kind is RetryKind.NEVER
    assert passes(limits, ask("b", 100, 80, price=A_MICRO_A_TOKEN), 1.0)
    limits.set_balance("acme", credit_picos=None, now_s=1.0)
    assert passes(limits, ask("c", 1000, 1000, price=A_MICRO_A_TOKEN), 1.0)


def tell_balance(limits: Limiter, credit: int, spent: int, now_s: float, **expiring: float) -> None:
    """In micro-dollars."""
    limits.set_balance(
        "acme",
        credit_picos=credit * PICOS_A_MICRO,
        spent_picos=spent * PICOS_A_MICRO,
        expiring=[(at_s, int(name.removeprefix("of_")) * PICOS_A_MICRO) for name, at_s in expiring.items()],
        now_s=now_s,
    )


def left(limits: Limiter) -> int:
    (use,) = limits.snapshot().balances
    return (use.credit_picos - use.spent_picos - use.reserved_picos) // PICOS_A_MICRO


@pytest.mark.parametrize("row_first", [True, False])
def test_what_was_spent_of_a_balance_is_counted_once_whichever_teller_comes_first(row_first: bool) -> None:
    limits = Limiter()
    tell_balance(limits, 1000, 0, 0.0)
    for number in range(1, 4):
        assert passes(limits, ask(f"{number}", 100, 0, price=A_MICRO_A_TOKEN), number)
        limits.settle(f"{number}", Usage(amount_picos=100 * PICOS_A_MICRO), number)
        tells = [
            partial(tell_balance, limits, 1000, 100 * number, float(number)),
            partial(limits.acknowledged, "acme", 100 * PICOS_A_MICRO),
        ]
        for tell in tells if row_first else reversed(tells):
            tell()
            assert left(limits) <= 1000 - 100 * number, "never less is believed spent than was"
        assert left(limits) == 1000 - 100 * number


def test_what_others_spent_is_found_in_the_ledgers_row_and_adds_to_what_is_not_in_it_yet() -> None:
    limits = Limiter()
    tell_balance(limits, 1000, 0, 0.0)
    assert passes(limits, ask("a", 100, 0, price=A_MICRO_A_TOKEN))
    limits.settle("a", Usage(amount_picos=100 * PICOS_A_MICRO), 1.0)
    tell_balance(limits, 1000, 300, 1.0)  # of a journal that was found
    assert left(limits) == 600


def test_a_balance_that_is_lowered_lets_less_in_at_once_and_cuts_nothing_that_runs() -> None:
    limits = Limiter()
    tell_balance(limits, 1000, 0, 0.0)
    assert passes(limits, ask("a", 500, 400, price=A_MICRO_A_TOKEN))
    limits.start("a")
    tell_balance(limits, 500, 0, 1.0)
    assert left(limits) == -400
    assert limits.is_open("a")
    assert hit_of(limits, ask("b", 1, 1, price=A_MICRO_A_TOKEN), 1.0).retry_kind is RetryKind.ESTIMATE
    limits.settle("a", Usage(amount_picos=450 * PICOS_A_MICRO), 2.0)
    assert passes(limits, ask("b", 25, 25, price=A_MICRO_A_TOKEN), 2.0)


def test_credit_that_expires_is_gone_at_its_instant_but_for_what_was_spent_of_it() -> None:
    limits = Limiter()
    tell_balance(limits, 1000, 0, 0.0, of_300=60.0, of_200=90.0)
    assert passes(limits, ask("a", 100, 0, price=A_MICRO_A_TOKEN), 1.0)
    limits.settle("a", Usage(amount_picos=100 * PICOS_A_MICRO), 1.0)
    assert passes(limits, ask("b", 450, 450, price=A_MICRO_A_TOKEN), 59.9)
    limits.undo("b", 59.9)
    hit = hit_of(limits, ask("b", 450, 450, price=A_MICRO_A_TOKEN), 60.0)
    assert hit.limit.value == 700
    assert passes(limits, ask("c", 100, 0, price=A_MICRO_A_TOKEN), 61.0)
    limits.settle("c", Usage(amount_picos=100 * PICOS_A_MICRO), 62.0)
    assert left(limits) == 600, "what is spent later was not of it"
    assert hit_of(limits, ask("d", 501, 0, price=A_MICRO_A_TOKEN), 90.0).limit.value == 500
    limits.acknowledged("acme", 200 * PICOS_A_MICRO)
    tell_balance(limits, 800, 200, 91.0, of_100=60.0)
    assert left(limits) == 500, "a row from before, told late"


def test_a_budget_shortens_what_may_be_shortened() -> None:
    limits = limiter((ACME, LimitKind.BUDGET, 1000))
    taken = limits.reserve(ask("a", 100, 5000, may_shorten=True, price=A_MICRO_A_TOKEN), 0.0)
    assert taken == 900


# After a failover


def test_what_another_dispatcher_granted_counts_from_when_it_did() -> None:
    limits = limiter((ACME, RPM, 3), (ACME, LimitKind.CONCURRENCY, 1))
    limits.set_month("acme", spent_picos=0, ends_s=1e6, now_s=100.0)
    limits.restore(ask("open"), age_s=10.0, usage=None, is_running=True, now_s=100.0)
    limits.restore(ask("open 2"), age_s=200.0, usage=None, is_running=True, now_s=100.0)
    limits.restore(ask("done"), age_s=50.0, usage=Usage(5, 0, 5, 7), is_running=False, now_s=100.0)
    limits.restore(ask("old"), age_s=500.0, usage=Usage(5, 0, 5, 7), is_running=False, now_s=100.0)
    limits.restore(ask("known"), age_s=20.0, usage=Usage(5, 0, 5, 7), is_running=False, now_s=100.0, is_acknowledged=True)
    limits.check_invariants(100.0)
    state = limits.snapshot()
    assert (state.open, state.running, state.overcommitted, state.unacknowledged_picos) == (2, 2, 1, 14)
    assert hit_of(limits, ask("new"), 100.0).retry_after_s == 10.0
    assert limits.stop("open") == [], "still one too many"
    assert limits.stop("open 2") == [ACME]


def test_a_storm_of_refusals_and_idle_keys_leaves_nothing_behind() -> None:
    limits = Limiter()
    for number in range(1000):
        assert passes(limits, ask(str(number), key=f"k{number}"), number * 1.0)
        limits.undo(str(number), number * 1.0)
    assert limits.snapshot().logged == 0
    assert len(limits._tenants["acme"].keys) < 200


# Faults of others (shared/faults.md)


def test_b35_after_exactly_the_time_told_it_passes_and_not_before() -> None:
    limits = limiter((ACME, RPM, 3))
    for number, now_s in enumerate((0.1, 7.3, 11.9)):
        assert passes(limits, ask(str(number)), now_s)
    hit = hit_of(limits, ask("fourth"), 33.337)
    assert hit.retry_after_s is not None and hit.retry_kind is RetryKind.EXACT
    hit_of(limits, ask("fourth"), 33.337 + hit.retry_after_s - 1e-6)
    assert passes(limits, ask("fourth"), 33.337 + hit.retry_after_s)


def test_b36_remaining_falls_by_what_was_used_and_by_what_is_open() -> None:
    limits = limiter((ACME, TPM_IN, 10_000))
    assert passes(limits, ask("a", 900))
    limits.settle("a", Usage(prompt_tokens=500, completion_tokens=7), 1.0)
    assert passes(limits, ask("b", 200), 2.0)
    after = limits.rates_of("b", 2.0)
    assert (after.limit_tokens, after.remaining_tokens, after.reset_tokens_s) == (10_000, 9_300, 60.0)


def test_b37_requests_started_together_cannot_pass_a_limit_they_all_fit_alone() -> None:
    limits = limiter((ACME, TPM_IN, 1000), (ACME, TPM_OUT, 1000))
    assert sum(passes(limits, ask(str(number), 100, 200)) for number in range(50)) == 5


def test_b38_an_ask_of_no_size_is_not_free() -> None:
    limits = limiter((ACME, TPM_IN, 10))
    assert sum(passes(limits, ask(str(number), 0, 0)) for number in range(50)) == 10


def test_b39_cached_prompt_tokens_do_not_count_once_they_are_known() -> None:
    limits = limiter((ACME, TPM_IN, 20_000))
    assert passes(limits, ask("a", 10_000))
    assert limits.rates_of("a", 0.0).remaining_tokens == 10_000
    limits.settle("a", Usage(prompt_tokens=10_000, cached_tokens=8_000, completion_tokens=10), 1.0)
    assert limits.rates("acme", "k1", "tiny", 1.0).remaining_tokens == 18_000


def test_b41_one_limiter_holds_over_every_model_and_surface() -> None:
    limits = limiter((ACME, TPM_IN, 100))
    assert passes(limits, ask("embeddings", 100, 0, model="embedder"))
    hit_of(limits, ask("chat", 1, 1, model="tiny"))


def test_b42_a_long_stream_has_paid_for_its_tokens_before_it_begins() -> None:
    limits = limiter((ACME, TPM_OUT, 500))
    taken = limits.reserve(ask("a", 10, 4096, may_shorten=True), 0.0)
    assert taken == 500
    hit_of(limits, ask("b", 10, 1))


def test_b44_a_refused_call_consumes_nothing_of_any_limit() -> None:
    limits = limiter((ACME, RPM, 1), (KEY_2, RPM, 10), (KEY_2, TPM_IN, 1000))
    assert passes(limits, ask("a", key="k1"))
    for number in range(100):
        hit_of(limits, ask(str(number), key="k2"))
    limits.set_terms(TenantTerms("acme", limits=(Limit(KEY_2, RPM, 10), Limit(KEY_2, TPM_IN, 1000))), 0.0)
    assert passes(limits, ask("b", 10, key="k2"))
    taken = limits.rates_of("b", 0.0)
    assert (taken.remaining_requests, taken.remaining_tokens) == (9, 990)


def test_b47_no_minute_wherever_it_begins_holds_more_than_the_limit() -> None:
    limits = limiter((ACME, RPM, 10))
    assert sum(passes(limits, ask(f"before {number}"), 59.5) for number in range(10)) == 10
    assert sum(passes(limits, ask(f"after {number}"), 60.5) for number in range(10)) == 0
    assert sum(passes(limits, ask(f"later {number}"), 119.5) for number in range(10)) == 10


def test_x13_two_keys_of_a_tenant_share_its_limits_and_each_has_its_own() -> None:
    limits = limiter((ACME, RPM, 3), (KEY_2, RPM, 1))
    assert passes(limits, ask("a", key="k1")) and passes(limits, ask("b", key="k2"))
    assert hit_of(limits, ask("c", key="k2")).limit.scope == KEY_2
    assert passes(limits, ask("d", key="k1"))
    assert hit_of(limits, ask("e", key="k1")).limit.scope == ACME


def test_what_an_engine_made_too_much_is_told_and_counted() -> None:
    limits = limiter((ACME, TPM_OUT, 100))
    assert passes(limits, ask("a", 1, 100))
    limits.settle("a", Usage(1, 0, 120), 1.0)
    assert limits.snapshot().overruns == 1
    assert limits.rates("acme", "k1", "tiny", 1.0).remaining_tokens == 0, "never below nothing"
    hit_of(limits, ask("b", 1, 1), 1.0)


def test_x11_a_budget_takes_as_many_calls_for_a_micro_dollar_and_a_half_as_it_pays_for() -> None:
    """Rounded up each would cost two, and three of four would have to do."""
    limits = limiter((ACME, LimitKind.BUDGET, 3_000))
    limits.set_month("acme", spent_picos=0, ends_s=1e6, now_s=0.0)
    price = TokenPrice(output_picos=1_500_000)
    for number in range(2_000):
        assert passes(limits, ask(f"r{number}", 0, 1, price=price)), number
        limits.settle(
            f"r{number}", Usage(0, 0, 1, price.amount_picos(prompt_tokens=0, cached_tokens=0, completion_tokens=1)), 0.0
        )
    hit = hit_of(limits, ask("one more", 0, 1, price=price))
    assert (hit.limit.value, hit.used, hit.reserved, hit.asked) == (3_000, 3_000, 0, 2)


def test_x12_two_calls_are_reserved_and_settled_each_by_its_own_price() -> None:
    limits = limiter((ACME, LimitKind.BUDGET, 100))
    limits.set_month("acme", spent_picos=0, ends_s=1e6, now_s=0.0)
    old, new = TokenPrice(output_picos=1_000_000), TokenPrice(output_picos=2_500_000)
    assert passes(limits, ask("before", 0, 10, price=old))
    assert passes(limits, ask("after", 0, 10, price=new))
    (use,) = limits.snapshot().limits
    assert use.reserved == 10 + 25
    limits.settle("before", Usage(0, 0, 3, 3 * old.output_picos), 1.0)
    limits.settle("after", Usage(0, 0, 3, 3 * new.output_picos), 1.0)
    (use,) = limits.snapshot().limits
    assert (use.used, use.reserved) == (11, 0), "10.5, told in whole micro-dollars"
    limits.check_invariants(1.0)

"""Does a request fit its limits: what it reserves, how far it is shortened, which limit refuses it and for how long."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from inference.policy.decisions import Ask, Limit, LimitHit, LimitKind, RetryKind, Usage
from inference.policy.limit_scopes import ScopeState, TenantState
from inference.policy.sliding_log import INPUT, OUTPUT, Amounts, until_s

MIN_INPUT_TOKENS = 1
"""The least a request reserves of a limit of input tokens."""
MIN_SHORTENED_TOKENS = 256
"""A request is not shortened below this, unless it asks, or a limit of output tokens as a whole allows, less."""
OPEN_RETRY_AFTER_S = 5.0
"""Estimate, for money that open requests have reserved: most of it comes back when they end."""
UNKNOWN_MONTH_RETRY_AFTER_S = 60.0
"""Estimate, for a budget while the end of the month has not been told."""


def asked_amounts(ask: Ask, max_tokens: int) -> Amounts:
    return 1, ask.prompt_tokens if ask.prompt_tokens > MIN_INPUT_TOKENS else MIN_INPUT_TOKENS, max_tokens


def settled_amounts(usage: Usage) -> Amounts:
    return 1, max(0, usage.prompt_tokens - usage.cached_tokens), usage.completion_tokens


def at_most_micros(ask: Ask, amounts: Amounts) -> int:
    return ask.price.at_most_micros(prompt_tokens=amounts[INPUT], completion_tokens=amounts[OUTPUT])


def spend(tenant: TenantState, states: Iterable[ScopeState], micros: int) -> None:
    for state in states:
        state.month.settle(micros)
    if tenant.balance_micros is not None:
        tenant.balance_micros -= micros


def shortened_tokens(ask: Ask, tenant: TenantState, states: Iterable[ScopeState]) -> int:
    """The max_tokens to ask for: all; or as many as fit; or, when those are too few, the least worth having (refused then)."""
    if not ask.may_shorten:
        return ask.max_tokens
    room, least = ask.max_tokens, MIN_SHORTENED_TOKENS
    for state in states:
        for kind, value, _ in state.rates:
            if kind == OUTPUT:
                room = min(room, value - state.log.total[OUTPUT])
                least = min(least, max(1, value))
        if state.budget is not None:
            left_micros = state.budget.value - state.month.spent_micros() - state.reserved_micros
            room = min(room, _affordable_tokens(ask, left_micros))
    if tenant.balance_micros is not None:
        room = min(room, _affordable_tokens(ask, tenant.balance_micros - tenant.reserved_micros))
    return max(room, min(least, ask.max_tokens))


def _affordable_tokens(ask: Ask, micros: int) -> int:
    """The greatest max_tokens for which this request costs no more; 0 when not even its prompt does."""
    prompt_millionths = max(MIN_INPUT_TOKENS, ask.prompt_tokens) * max(ask.price.input_micros, ask.price.cached_micros)
    left_millionths = micros * 1_000_000 - prompt_millionths
    if left_millionths < 0:
        return 0
    return left_millionths // ask.price.output_micros if ask.price.output_micros > 0 else ask.max_tokens


def find_hit(amounts: Amounts, micros: int, tenant: TenantState, states: Iterable[ScopeState], now_s: float) -> LimitHit | None:
    """None: so much, for so much money, fits them all. Else the limit for which it must wait longest."""
    if _fits(amounts, micros, tenant, states):
        return None
    hits = [*_rate_hits(amounts, states, now_s), *_money_hits(micros, tenant, states, now_s)]
    if not hits:
        return None
    longest = max(hits, key=lambda hit: inf if hit.retry_after_s is None else hit.retry_after_s)
    if longest.retry_kind is RetryKind.EXACT and any(hit.retry_kind is RetryKind.ESTIMATE for hit in hits):
        return replace(longest, retry_kind=RetryKind.ESTIMATE)  # the other may take longer than it looks
    return longest


def _fits(amounts: Amounts, micros: int, tenant: TenantState, states: Iterable[ScopeState]) -> bool:
    """The usual answer, cheaply: whether there are no hits."""
    if micros and tenant.balance_micros is not None and tenant.reserved_micros + micros > tenant.balance_micros:
        return False
    for state in states:
        if state.rates:
            total = state.log.total
            for kind, value, _ in state.rates:
                if total[kind] + amounts[kind] > value and amounts[kind]:
                    return False
        budget = state.budget
        if budget is not None and micros and state.month.spent_micros() + state.reserved_micros + micros > budget.value:
            return False
    return True


def _rate_hits(amounts: Amounts, states: Iterable[ScopeState], now_s: float) -> Iterator[LimitHit]:
    for state in states:
        for kind, value, limit in state.rates:
            log, asked = state.log, amounts[kind]
            too_much = log.total[kind] + asked - value
            if too_much <= 0 or not asked:
                continue
            retry_after_s = log.wait_s(kind, too_much, now_s) if asked <= value else None
            yield LimitHit(
                limit=limit,
                used=log.total[kind] - log.reserved[kind],
                reserved=log.reserved[kind],
                asked=asked,
                retry_after_s=retry_after_s,
                retry_kind=RetryKind.NEVER if retry_after_s is None else RetryKind.EXACT,
            )


def _money_hits(asked: int, tenant: TenantState, states: Iterable[ScopeState], now_s: float) -> Iterator[LimitHit]:
    if not asked:
        return
    for state in states:
        limit, spent, reserved = state.budget, state.month.spent_micros(), state.reserved_micros
        if limit is not None and spent + reserved + asked > limit.value:
            retry_after_s, kind = _budget_retry(limit.value, spent, reserved, asked, tenant.month_ends_s, now_s)
            yield LimitHit(limit, spent, reserved, asked, retry_after_s, kind)
    if tenant.balance_micros is not None and tenant.reserved_micros + asked > tenant.balance_micros:
        limit = Limit(tenant.scope, LimitKind.BALANCE, tenant.balance_micros)
        if asked > tenant.balance_micros:
            yield LimitHit(limit, 0, tenant.reserved_micros, asked, None, RetryKind.NEVER)
        else:
            yield LimitHit(limit, 0, tenant.reserved_micros, asked, OPEN_RETRY_AFTER_S, RetryKind.ESTIMATE)


def _budget_retry(
    value: int, spent: int, reserved: int, asked: int, month_ends_s: float, now_s: float
) -> tuple[float | None, RetryKind]:
    if asked > value:
        return None, RetryKind.NEVER
    if spent + asked <= value:
        return OPEN_RETRY_AFTER_S, RetryKind.ESTIMATE
    if month_ends_s == inf:
        return UNKNOWN_MONTH_RETRY_AFTER_S, RetryKind.ESTIMATE
    # What is reserved does not go with the month: it is billed when it ends.
    is_certain = reserved + asked <= value
    return until_s(month_ends_s, now_s), RetryKind.EXACT if is_certain else RetryKind.ESTIMATE

"""Does a request fit its limits: what it reserves, how far it is shortened, which limit refuses it and for how long."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf

from inference.policy.decisions import PICOS_A_MICRO, Ask, Limit, LimitHit, LimitKind, RetryKind, Usage, micros_up
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


def at_most_picos(ask: Ask, amounts: Amounts) -> int:
    return ask.price.at_most_picos(prompt_tokens=amounts[INPUT], completion_tokens=amounts[OUTPUT])


def spend(tenant: TenantState, states: Iterable[ScopeState], picos: int) -> None:
    for state in states:
        state.month.settle(picos)
    tenant.balance.settle(picos)


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
            left_picos = state.budget_picos - state.month.spent_picos() - state.reserved_picos
            room = min(room, _affordable_tokens(ask, left_picos))
    of_balance_picos = tenant.balance.left_picos(tenant.reserved_picos)
    if of_balance_picos is not None:
        room = min(room, _affordable_tokens(ask, of_balance_picos))
    return max(room, min(least, ask.max_tokens))


def _affordable_tokens(ask: Ask, picos: int) -> int:
    """The greatest max_tokens for which this request costs no more; 0 when not even its prompt does."""
    prompt_picos = max(MIN_INPUT_TOKENS, ask.prompt_tokens) * max(ask.price.input_picos, ask.price.cached_picos)
    left_picos = picos - prompt_picos
    if left_picos < 0:
        return 0
    return left_picos // ask.price.output_picos if ask.price.output_picos > 0 else ask.max_tokens


def find_hit(amounts: Amounts, picos: int, tenant: TenantState, states: Iterable[ScopeState], now_s: float) -> LimitHit | None:
    """None: so much, for so much money, fits them all. Else the limit for which it must wait longest."""
    if _fits(amounts, picos, tenant, states):
        return None
    hits = [*_rate_hits(amounts, states, now_s), *_money_hits(picos, tenant, states, now_s)]
    if not hits:
        return None
    longest = max(hits, key=lambda hit: inf if hit.retry_after_s is None else hit.retry_after_s)
    if longest.retry_kind is RetryKind.EXACT and any(hit.retry_kind is RetryKind.ESTIMATE for hit in hits):
        return replace(longest, retry_kind=RetryKind.ESTIMATE)  # the other may take longer than it looks
    return longest


def _fits(amounts: Amounts, picos: int, tenant: TenantState, states: Iterable[ScopeState]) -> bool:
    """The usual answer, cheaply: whether there are no hits."""
    credit_picos = tenant.balance.credit_picos
    if picos and credit_picos is not None and tenant.balance.spent_picos() + tenant.reserved_picos + picos > credit_picos:
        return False
    for state in states:
        if state.rates:
            total = state.log.total
            for kind, value, _ in state.rates:
                if total[kind] + amounts[kind] > value and amounts[kind]:
                    return False
        if picos and state.budget is not None and state.month.spent_picos() + state.reserved_picos + picos > state.budget_picos:
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
        limit, spent, reserved = state.budget, state.month.spent_picos(), state.reserved_picos
        if limit is not None and spent + reserved + asked > state.budget_picos:
            retry_after_s, kind = _budget_retry(state.budget_picos, spent, reserved, asked, tenant.month_ends_s, now_s)
            yield LimitHit(limit, micros_up(spent), micros_up(reserved), micros_up(asked), retry_after_s, kind)
    balance_picos = tenant.balance.left_picos(0)
    if balance_picos is not None and tenant.reserved_picos + asked > balance_picos:
        limit = Limit(tenant.scope, LimitKind.BALANCE, max(0, balance_picos) // PICOS_A_MICRO)
        is_never = asked > balance_picos
        retry_after_s, kind = (None, RetryKind.NEVER) if is_never else (OPEN_RETRY_AFTER_S, RetryKind.ESTIMATE)
        yield LimitHit(limit, 0, micros_up(tenant.reserved_picos), micros_up(asked), retry_after_s, kind)


def _budget_retry(
    value_picos: int, spent: int, reserved: int, asked: int, month_ends_s: float, now_s: float
) -> tuple[float | None, RetryKind]:
    if asked > value_picos:
        return None, RetryKind.NEVER
    if spent + asked <= value_picos:
        return OPEN_RETRY_AFTER_S, RetryKind.ESTIMATE
    if month_ends_s == inf:
        return UNKNOWN_MONTH_RETRY_AFTER_S, RetryKind.ESTIMATE
    # What is reserved does not go with the month: it is billed when it ends.
    is_certain = reserved + asked <= value_picos
    return until_s(month_ends_s, now_s), RetryKind.EXACT if is_certain else RetryKind.ESTIMATE

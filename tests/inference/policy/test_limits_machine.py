"""The limiter against a naive one, over random lives of requests: no overshoot, no false refusal, exact waits."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

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
    micros_up,
)
from inference.policy.limits import Limiter

TENANTS, KEYS, MODELS = ("t0", "t1"), ("k0", "k1"), ("m0", "m1")
PRICE = TokenPrice(input_picos=2_000_003, cached_picos=500_001, output_picos=3_000_007)
RATE_KINDS = (LimitKind.REQUESTS, LimitKind.INPUT_TOKENS, LimitKind.OUTPUT_TOKENS)
ALL_SCOPES = [
    (tenant, Scope(kind, name))
    for tenant in TENANTS
    for kind, name in (
        (ScopeKind.TENANT, tenant),
        *((ScopeKind.KEY, key) for key in KEYS),
        *((ScopeKind.MODEL, f"{tenant}/{model}") for model in MODELS),
    )
]


@dataclass
class Charge:
    """What the naive limiter writes down of a request, and never throws away."""

    ask: Ask
    at_s: float
    tokens_in: int
    tokens_out: int
    picos: int  # reserved while it is open, spent afterwards
    is_open: bool = True
    is_running: bool = False

    def is_of(self, tenant: str, scope: Scope) -> bool:
        name = {ScopeKind.TENANT: tenant, ScopeKind.KEY: self.ask.key, ScopeKind.MODEL: f"{tenant}/{self.ask.model}"}
        return self.ask.tenant == tenant and scope.id == name[scope.kind]

    def amount(self, kind: LimitKind) -> int:
        return {LimitKind.REQUESTS: 1, LimitKind.INPUT_TOKENS: self.tokens_in, LimitKind.OUTPUT_TOKENS: self.tokens_out}[kind]


class LimiterMachine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.limiter, self.now_s, self.count = Limiter(), 1000.1, 0
        self.charges: dict[str, Charge] = {}
        self.limits: dict[str, tuple[Limit, ...]] = dict.fromkeys(TENANTS, ())
        self.spent = dict.fromkeys(TENANTS, 0)
        self.raised, self.lowered = dict.fromkeys(TENANTS, 0), dict.fromkeys(TENANTS, 0)
        self.overdrawn: set[tuple[str, Limit]] = set()
        self.month_ends_s = self.now_s + 400.0
        for tenant in TENANTS:
            self.limiter.set_month(tenant, spent_picos=0, ends_s=self.month_ends_s, now_s=self.now_s)
            self.change_limits(data, tenant)

    # The naive limiter

    def used(self, tenant: str, limit: Limit, at_s: float) -> int:
        charges = [charge for charge in self.charges.values() if charge.is_of(tenant, limit.scope)]
        if limit.kind is LimitKind.CONCURRENCY:
            return sum(charge.is_running for charge in charges)
        if limit.kind is LimitKind.BUDGET:
            return sum(self.money(tenant, limit, at_s))
        return sum(charge.amount(limit.kind) for charge in charges if charge.at_s <= at_s < charge.at_s + 60.0)

    def money(self, tenant: str, limit: Limit, at_s: float) -> tuple[int, int]:
        """Spent and reserved."""
        mine = [charge for charge in self.charges.values() if charge.is_of(tenant, limit.scope)]
        return (
            self.spent[tenant] + self.raised[tenant] - self.lowered[tenant] if at_s < self.month_ends_s else 0,
            sum(charge.picos for charge in mine if charge.is_open),
        )

    def told(self, tenant: str, limit: Limit) -> int:
        """What is used and reserved of it, as people are told."""
        if limit.kind is LimitKind.BUDGET:
            return sum(map(micros_up, self.money(tenant, limit, self.now_s)))
        return self.used(tenant, limit, self.now_s)

    def asked(self, ask: Ask, max_tokens: int, kind: LimitKind) -> int:
        prompt_tokens = max(1, ask.prompt_tokens)
        if kind is LimitKind.BUDGET:
            return ask.price.at_most_picos(prompt_tokens=prompt_tokens, completion_tokens=max_tokens)
        return {LimitKind.REQUESTS: 1, LimitKind.INPUT_TOKENS: prompt_tokens, LimitKind.OUTPUT_TOKENS: max_tokens}[kind]

    def limits_of(self, ask: Ask) -> list[Limit]:
        charge = Charge(ask, 0.0, 0, 0, 0)
        of_mine = [limit for limit in self.limits[ask.tenant] if charge.is_of(ask.tenant, limit.scope)]
        return [limit for limit in of_mine if limit.kind is not LimitKind.CONCURRENCY]

    def fits(self, ask: Ask, max_tokens: int, at_s: float) -> bool:
        return all(
            not (asked := self.asked(ask, max_tokens, limit.kind)) or self.used(ask.tenant, limit, at_s) + asked <= _most(limit)
            for limit in self.limits_of(ask)
        )

    # What happens

    @rule(data=st.data(), tenant=st.sampled_from(TENANTS))
    def change_limits(self, data: st.DataObject, tenant: str) -> None:
        scopes = [scope for owner, scope in ALL_SCOPES if owner == tenant]
        chosen: dict[tuple[Scope, LimitKind], Limit] = {}
        for _ in range(data.draw(st.integers(0, 5))):
            scope = data.draw(st.sampled_from(scopes))
            kind = data.draw(st.sampled_from((*RATE_KINDS, LimitKind.CONCURRENCY)))
            small = kind in (LimitKind.REQUESTS, LimitKind.CONCURRENCY)
            chosen[scope, kind] = Limit(scope, kind, data.draw(st.integers(1, 6 if small else 120)))
        if data.draw(st.booleans()):
            chosen[scopes[0], LimitKind.BUDGET] = Limit(scopes[0], LimitKind.BUDGET, data.draw(st.integers(50, 2000)))
        self.limits[tenant] = tuple(chosen.values())
        self.limiter.set_terms(TenantTerms(tenant, limits=self.limits[tenant]), self.now_s)
        # A limit that is lowered below what is used has been overshot by nobody.
        self.overdrawn = {
            (owner, limit)
            for owner, limits in self.limits.items()
            for limit in limits
            if limit.kind in RATE_KINDS and self.used(owner, limit, self.now_s) > limit.value
        }

    @rule(
        who=st.tuples(st.sampled_from(TENANTS), st.sampled_from(KEYS), st.sampled_from(MODELS)),
        prompt_tokens=st.integers(0, 60),
        max_tokens=st.integers(0, 60),
        may_shorten=st.booleans(),
        waits=st.booleans(),
    )
    def ask(self, who: tuple[str, str, str], prompt_tokens: int, max_tokens: int, may_shorten: bool, waits: bool) -> None:
        tenant, key, model = who
        self.count += 1
        ask = Ask(
            str(self.count),
            model,
            tenant,
            key,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            may_shorten=may_shorten,
            price=PRICE,
        )
        answer = self.reserve(ask)
        if not waits or not isinstance(answer, LimitHit) or answer.retry_kind is not RetryKind.EXACT:
            return
        assert answer.retry_after_s is not None
        before_s = self.now_s + answer.retry_after_s * 0.999
        if before_s < self.now_s + answer.retry_after_s:
            self.now_s = before_s
            again = self.reserve(replace(ask, id=f"{ask.id} early"))
            assert isinstance(again, LimitHit), "the wait it told was longer than needed"
            assert again.retry_after_s is not None
            answer = again
        self.now_s += answer.retry_after_s or 0.0
        self.roll()
        assert isinstance(self.reserve(replace(ask, id=f"{ask.id} again")), int), "the wait it told was too short"

    def reserve(self, ask: Ask) -> int | LimitHit:
        self.roll()
        answer = self.limiter.reserve(ask, self.now_s)
        if isinstance(answer, LimitHit):
            assert not self.fits(
                ask, answer.asked if answer.limit.kind is LimitKind.OUTPUT_TOKENS else _least(ask, self), self.now_s
            )
            used = self.told(ask.tenant, answer.limit)
            assert answer.used + answer.reserved == used
            assert used + answer.asked > answer.limit.value
            if answer.retry_kind is RetryKind.NEVER:
                assert answer.asked > answer.limit.value
            return answer
        assert self.fits(ask, answer, self.now_s), "it let pass what does not fit"
        assert answer == ask.max_tokens or (ask.may_shorten and not self.fits(ask, answer + 1, self.now_s))
        self.charges[ask.id] = Charge(
            ask,
            self.now_s,
            max(1, ask.prompt_tokens),
            answer,
            self.asked(ask, answer, LimitKind.BUDGET),
        )
        return answer

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        charge = self.some_open(data)
        if charge is None:
            return
        cached = data.draw(st.integers(0, charge.tokens_in))
        usage = Usage(
            charge.tokens_in, cached, data.draw(st.integers(0, charge.tokens_out)), data.draw(st.integers(0, charge.picos))
        )
        for _ in range(data.draw(st.integers(1, 2))):
            self.limiter.settle(charge.ask.id, usage, self.now_s)
        charge.tokens_in, charge.tokens_out = usage.prompt_tokens - cached, usage.completion_tokens
        charge.is_open, charge.picos = False, 0
        self.spent[charge.ask.tenant] += usage.amount_picos
        if data.draw(st.booleans()):
            self.limiter.acknowledged(charge.ask.tenant, usage.amount_picos)
        if data.draw(st.booleans()) and self.now_s < self.month_ends_s:
            tenant = charge.ask.tenant
            row = data.draw(st.integers(0, self.spent[tenant]))
            self.tell_month(tenant, row, self.raised[tenant], self.lowered[tenant])

    def tell_month(self, tenant: str, of_requests: int, raised: int, lowered: int) -> None:
        self.limiter.set_month(
            tenant,
            spent_picos=of_requests + raised - lowered,
            raised_picos=raised,
            lowered_picos=lowered,
            ends_s=self.month_ends_s,
            now_s=self.now_s,
        )

    @rule(data=st.data(), tenant=st.sampled_from(TENANTS), share=st.floats(0, 1), more=st.integers(0, 10**9))
    def correct(self, data: st.DataObject, tenant: str, share: float, more: int) -> None:
        """The ledger corrects what has been spent, up or down, whatever of it has not come there yet; an old row comes late."""
        before = (self.raised[tenant], self.lowered[tenant])
        if data.draw(st.booleans()):
            self.raised[tenant] += more
        else:
            self.lowered[tenant] += int(share * max(0, self.spent[tenant] + before[0] - before[1]))
        row = data.draw(st.integers(0, self.spent[tenant]))
        self.tell_month(tenant, row, self.raised[tenant], self.lowered[tenant])
        if data.draw(st.booleans()):
            self.tell_month(tenant, data.draw(st.integers(0, self.spent[tenant])), *before)

    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        charge = self.some_open(data)
        if charge is not None and not charge.is_running:
            self.limiter.undo(charge.ask.id, self.now_s)
            del self.charges[charge.ask.id]

    @rule(data=st.data())
    def start_or_stop(self, data: st.DataObject) -> None:
        running = [charge for charge in self.charges.values() if charge.is_running]
        pick_running = data.draw(st.booleans())
        charge = data.draw(st.sampled_from(running)) if running and pick_running else self.some_open(data)
        if charge is None:
            return
        tenant = charge.ask.tenant
        full = [
            limit.scope
            for limit in self.limits[tenant]
            if limit.kind is LimitKind.CONCURRENCY
            and charge.is_of(tenant, limit.scope)
            and self.used(tenant, limit, self.now_s) >= limit.value
        ]
        if charge.is_running:
            self.limiter.stop(charge.ask.id)
            charge.is_running = False
        elif self.limiter.can_start(charge.ask) is None:
            assert not full
            self.limiter.start(charge.ask.id)
            charge.is_running = True
        else:
            assert self.limiter.can_start(charge.ask) in full

    @rule(seconds=st.sampled_from((0.0, 0.1, 1.0, 7.7, 29.9, 60.0, 100.3)))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.roll()

    def roll(self) -> None:
        if self.now_s >= self.month_ends_s:
            self.spent = dict.fromkeys(TENANTS, 0)
            self.raised, self.lowered = dict.fromkeys(TENANTS, 0), dict.fromkeys(TENANTS, 0)
            self.month_ends_s += 2_000_000.0
            for tenant in TENANTS:
                self.limiter.set_month(tenant, spent_picos=0, ends_s=self.month_ends_s, now_s=self.now_s)

    def some_open(self, data: st.DataObject) -> Charge | None:
        ids = [name for name, charge in self.charges.items() if charge.is_open]
        return self.charges[data.draw(st.sampled_from(ids))] if ids else None

    # What must hold

    @invariant()
    def no_window_holds_more_than_its_limit(self) -> None:
        if not hasattr(self, "limits"):
            return
        for tenant, limits in self.limits.items():
            for limit in limits:
                if limit.kind not in RATE_KINDS:
                    continue
                used = self.used(tenant, limit, self.now_s)
                if used <= limit.value:
                    self.overdrawn.discard((tenant, limit))
                assert used <= limit.value or (tenant, limit) in self.overdrawn, f"{limit} overshot: {used}"

    @invariant()
    def it_says_what_the_naive_one_says(self) -> None:
        if not hasattr(self, "limiter"):
            return
        self.limiter.check_invariants(self.now_s)
        told = Counter((use.limit, use.used + use.reserved) for use in self.limiter.snapshot().limits)
        assert told == Counter((limit, self.told(tenant, limit)) for tenant, limits in self.limits.items() for limit in limits)


def _most(limit: Limit) -> int:
    """Of money in pico-dollars, as the naive limiter counts."""
    return limit.value * PICOS_A_MICRO if limit.kind is LimitKind.BUDGET else limit.value


def _least(ask: Ask, machine: LimiterMachine) -> int:
    """The smallest answer the limiter would have given for it: the rule of MIN_SHORTENED_TOKENS."""
    if not ask.may_shorten:
        return ask.max_tokens
    values = [limit.value for limit in machine.limits_of(ask) if limit.kind is LimitKind.OUTPUT_TOKENS]
    return min(ask.max_tokens, 256, *values)


TestLimiterAgainstANaiveOne: Any = LimiterMachine.TestCase
TestLimiterAgainstANaiveOne.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)

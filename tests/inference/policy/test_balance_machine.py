"""The limiter's balance against the truth, over random lives of requests and news that come late and in either order."""

from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inference.policy.decisions import Ask, LimitHit, LimitKind, TokenPrice, Usage
from inference.policy.limits import Limiter

PRICE = TokenPrice(input_picos=1, cached_picos=1, output_picos=1)


class BalanceMachine(RuleBasedStateMachine):
    """The ledger commits in an order; its rows are told in that order, acknowledgements whenever they like."""

    @initialize()
    def begin(self) -> None:
        self.limiter, self.now_s, self.count = Limiter(), 0.0, 0
        self.credit = 1000
        self.settled = 0  # the truth, as far as it passed through here
        self.in_ledger = 0
        self.elsewhere = 0  # what the ledger has that did not
        self.open: dict[str, int] = {}
        self.unwritten: deque[int] = deque()
        self.rows: deque[tuple[int, int, int]] = deque()
        self.acks: list[int] = []
        self.told_elsewhere = 0
        self.was_lowered = False
        self.commit()
        self.hear_row()

    def commit(self) -> None:
        self.rows.append((self.credit, self.in_ledger + self.elsewhere, self.elsewhere))

    @rule(prompt=st.integers(1, 300), made=st.integers(0, 300))
    def ask(self, prompt: int, made: int) -> None:
        self.count += 1
        ask = Ask(str(self.count), "m", "acme", "k", prompt_tokens=prompt, max_tokens=made, price=PRICE)
        costs = prompt + made
        answer = self.limiter.reserve(ask, self.now_s)
        told, all_heard = self.told(), not (self.rows or self.acks)
        fits = self.settled + self.elsewhere + sum(self.open.values()) + costs <= self.credit
        if isinstance(answer, LimitHit):
            assert answer.limit.kind is LimitKind.BALANCE
            assert not (fits and all_heard), "a false refusal"
            return
        assert fits or self.was_lowered or self.told_elsewhere < self.elsewhere or told < self.truth(), "it lets too much in"
        self.open[ask.id] = costs

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        if self.open:
            name = data.draw(st.sampled_from(sorted(self.open)))
            costs = data.draw(st.integers(0, self.open.pop(name)))
            for _ in range(data.draw(st.integers(1, 2))):
                self.limiter.settle(name, Usage(amount_picos=costs), self.now_s)
            self.settled += costs
            self.unwritten.append(costs)

    @rule(number=st.integers(1, 5))
    def write(self, number: int) -> None:
        for _ in range(min(number, len(self.unwritten))):
            costs = self.unwritten.popleft()
            self.in_ledger += costs
            self.acks.append(costs)
        self.commit()

    @rule()
    def hear_row(self) -> None:
        if self.rows:
            credit, spent, self.told_elsewhere = self.rows.popleft()
            self.limiter.set_balance("acme", credit_picos=credit, spent_picos=spent, now_s=self.now_s)
            if not self.rows and credit == self.credit:
                self.was_lowered = False

    @rule(data=st.data())
    def hear_acknowledgement(self, data: st.DataObject) -> None:
        if self.acks:
            index = data.draw(st.integers(0, len(self.acks) - 1))
            self.limiter.acknowledged("acme", self.acks.pop(index))

    @rule(picos=st.integers(0, 100))
    def a_journal_is_found(self, picos: int) -> None:
        self.elsewhere += picos
        self.commit()

    @rule(picos=st.integers(1, 400))
    def grant(self, picos: int) -> None:
        self.credit += picos
        self.commit()

    @rule(picos=st.integers(1, 400))
    def hold(self, picos: int) -> None:
        self.credit = max(0, self.credit - picos)
        self.was_lowered = True
        self.commit()

    def told(self) -> int:
        (use,) = self.limiter.snapshot().balances
        return use.spent_picos

    def truth(self) -> int:
        return self.settled + self.elsewhere

    @invariant()
    def reservations_are_what_runs(self) -> None:
        if hasattr(self, "limiter"):
            self.limiter.check_invariants(self.now_s)
            (use,) = self.limiter.snapshot().balances
            assert use.reserved_picos == sum(self.open.values())

    @invariant()
    def no_less_is_believed_spent_than_passed_through_here(self) -> None:
        if hasattr(self, "limiter"):
            assert self.told() >= self.settled
            if not self.acks and not self.rows:
                assert self.told() == self.truth(), "once all is told it is the truth"


class GrowingBalanceMachine(BalanceMachine):
    """Credit only grows, and all spending passes through here."""

    def a_journal_is_found(self) -> None:
        pass

    def hold(self) -> None:
        pass

    @invariant()
    def it_is_never_overdrawn(self) -> None:
        if hasattr(self, "limiter"):
            assert self.settled + sum(self.open.values()) <= self.credit


TestABalanceAgainstTheTruth: Any = BalanceMachine.TestCase
TestABalanceAgainstTheTruth.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestABalanceThatGrows: Any = GrowingBalanceMachine.TestCase
TestABalanceThatGrows.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

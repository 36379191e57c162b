"""Several gateways spend one cap: whatever they do, and whoever dies, it is not exceeded."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from django.db import OperationalError
from hypothesis import given

from inference.gateway.shadow_budget import EMPTY_ROUNDS, IDLE_ROUNDS, ShadowBudget
from inference.policy.decisions import PICOS_A_MICRO

CAP_MICROS = 1_000


@dataclass
class Row:
    """The rollout's, as the database keeps it."""

    left: int = CAP_MICROS
    is_away: bool = False
    calls: int = 0

    def fetch(self, *, rollout: str, micros: int) -> int:
        self.calls += 1
        if self.is_away:
            raise OperationalError("away")
        given = min(micros, self.left)
        self.left -= given
        return given

    def give_back(self, *, rollout: str, micros: int) -> None:
        if self.is_away:
            raise OperationalError("away")
        self.left += micros
        assert self.left <= CAP_MICROS


@dataclass
class Gateway:
    row: Row
    budget: ShadowBudget = field(init=False)
    running: list[int] = field(default_factory=list)
    spent_picos: int = 0

    def __post_init__(self) -> None:
        self.budget = ShadowBudget(self.row.fetch, self.row.give_back)

    def begin(self, picos: int) -> bool:
        is_taken = self.budget.take("1", picos, left_micros=CAP_MICROS)
        if is_taken:
            self.running.append(picos)
        return is_taken

    def end(self, spent_share: float) -> None:
        if self.running:
            taken = self.running.pop()
            spent = round(taken * spent_share)
            self.spent_picos += spent
            self.budget.settle("1", taken_picos=taken, spent_picos=spent)


_STEP = st.tuples(
    st.integers(0, 2),
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 400 * PICOS_A_MICRO)),
        st.tuples(st.just("end"), st.floats(0, 1)),
        st.tuples(st.sampled_from(["refill", "close", "die", "away", "back", "idle"]), st.just(0)),
    ),
)


@given(st.lists(_STEP, max_size=120))
def test_no_more_is_spent_than_the_cap_whatever_gateways_do(steps: list[tuple[int, tuple[str, float]]]) -> None:
    row = Row()
    gateways, dead_picos, has_lost = [Gateway(row) for _ in range(3)], 0, False
    for place, (what, number) in steps:
        gateway = gateways[place]
        if what == "begin":
            gateway.begin(int(number))
        elif what == "end":
            gateway.end(number)
        elif what == "refill":
            gateway.budget.refill()
        elif what == "close":
            gateway.budget.close()
        elif what == "idle":
            for _ in range(IDLE_ROUNDS + 2):
                gateway.budget.refill()
        elif what in {"away", "back"}:
            row.is_away, has_lost = what == "away", True
        else:  # what it had begun may still cost all that was taken for it
            dead_picos += gateway.spent_picos + sum(gateway.running)
            gateways[place], has_lost = Gateway(row), True
        committed = dead_picos + sum(one.spent_picos + sum(one.running) for one in gateways)
        assert committed + row.left * PICOS_A_MICRO <= CAP_MICROS * PICOS_A_MICRO
    if has_lost:
        return
    for gateway in gateways:
        while gateway.running:
            gateway.end(0.5)
        gateway.budget.close()
        gateway.budget.refill()
    rest = CAP_MICROS * PICOS_A_MICRO - sum(one.spent_picos for one in gateways) - row.left * PICOS_A_MICRO
    assert rest >= 0, "and nothing is lost but parts of a micro-dollar"
    assert rest < PICOS_A_MICRO * (3 + len(steps))


def test_a_wish_is_fulfilled_by_the_next_round_with_some_more_at_once() -> None:
    gateway = Gateway(Row())
    assert not gateway.begin(3 * PICOS_A_MICRO)
    gateway.budget.refill()
    assert gateway.begin(3 * PICOS_A_MICRO) and gateway.begin(12 * PICOS_A_MICRO)
    assert not gateway.begin(3 * PICOS_A_MICRO), "a sixty-fourth of a thousand was fetched"


def test_a_database_that_is_away_costs_nothing_but_time() -> None:
    row = Row(is_away=True)
    gateway = Gateway(row)
    gateway.begin(PICOS_A_MICRO)
    gateway.budget.refill()
    row.is_away = False
    gateway.budget.refill()
    assert gateway.begin(PICOS_A_MICRO)


def test_where_nothing_is_left_a_gateway_asks_again_only_now_and_then() -> None:
    row = Row(left=0)
    gateway = Gateway(row)
    for _ in range(EMPTY_ROUNDS):
        gateway.begin(PICOS_A_MICRO)
        gateway.budget.refill()
    assert row.calls == 1
    row.left = 50
    for _ in range(EMPTY_ROUNDS):
        gateway.begin(PICOS_A_MICRO)
        gateway.budget.refill()
    assert gateway.spent_picos == 0 and gateway.running


def test_what_nobody_uses_goes_back_for_others() -> None:
    row = Row()
    gateway = Gateway(row)
    gateway.begin(PICOS_A_MICRO)
    gateway.budget.refill()
    assert row.left < CAP_MICROS
    for _ in range(IDLE_ROUNDS + 1):
        gateway.budget.refill()
    assert row.left == CAP_MICROS

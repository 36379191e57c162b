"""What the limiter knows of one scope (a tenant, one of its keys, one of its models): its limits and what it uses of them."""

from collections.abc import Iterable, Iterator
from math import inf

from inference.policy.decisions import PICOS_A_MICRO, Limit, LimitKind, RateView, Scope, ScopeKind
from inference.policy.limit_balance import BalanceState
from inference.policy.sliding_log import INPUT, OUTPUT, REQUESTS, SlidingLog

RATE_KINDS = {LimitKind.REQUESTS: REQUESTS, LimitKind.INPUT_TOKENS: INPUT, LimitKind.OUTPUT_TOKENS: OUTPUT}

SAME_MONTH_S = 86_400.0
"""Two ends of a month nearer to one another are the same end, told on clocks that drift."""


class MonthSpend:
    """Pico-dollars of one scope in this month, each counted once although two tellers come in any order.

    The ledger tells its row; it also acknowledges what we settled. `counted` is the first row we were told, with what was
    settled here and not acknowledged by then, and all that was settled here since: all that requests spend passes through
    here, so that is the truth, and later rows of the month say the same a little later. A row above it tells of spending
    that did not (a lost gateway's journal, found again), and is believed.

    What was corrected never passes through here. The ledger tells it beside its row, as two sums that only count up, so
    that it may be told late or twice: they are added to, and taken off, what requests have spent, and no settlement that
    is not in the ledger yet is lost by it.
    """

    __slots__ = ("counted", "has_row", "lowered", "raised", "row", "unacknowledged")

    def __init__(self) -> None:
        self.row = 0  # without what was corrected
        self.counted = 0
        self.unacknowledged = 0
        self.raised = 0
        self.lowered = 0
        self.has_row = False

    def spent_picos(self) -> int:
        return (self.counted if self.counted > self.row else self.row) + self.raised - self.lowered

    def tell_row(self, picos: int, *, raised_picos: int, lowered_picos: int) -> None:
        """`picos`: all that the ledger has; of it what corrections have added (`raised_picos`) and taken off."""
        of_requests = picos - raised_picos + lowered_picos
        if self.has_row:
            self.row = max(self.row, of_requests)
        else:
            self.row, self.counted = of_requests, of_requests + self.unacknowledged
        self.raised, self.lowered = max(self.raised, raised_picos), max(self.lowered, lowered_picos)
        self.has_row = True

    def settle(self, picos: int) -> None:
        self.counted += picos
        self.unacknowledged += picos

    def acknowledge(self, picos: int) -> None:
        self.unacknowledged = max(0, self.unacknowledged - picos)

    def next_month(self) -> None:
        self.row = self.counted = self.unacknowledged = self.raised = self.lowered = 0
        self.has_row = True


class ScopeState:
    __slots__ = (
        "budget",
        "budget_picos",
        "concurrency",
        "is_visited",
        "log",
        "month",
        "name",
        "open",
        "place",
        "rates",
        "reserved_picos",
        "running",
        "scope",
    )

    def __init__(self, scope: Scope, place: int, name: str) -> None:
        self.scope = scope
        self.place, self.name = place, name  # among a request's scopes: 0 its tenant, 1 its key, 2 its model
        self.rates: tuple[tuple[int, int, Limit], ...] = ()  # kind of amount, value, the limit itself
        self.concurrency: Limit | None = None
        self.budget: Limit | None = None
        self.budget_picos = 0  # its value, where there is one
        self.log = SlidingLog()
        self.is_visited = False  # by the limiter, in turn with other logs that may hold something
        self.open = 0  # requests that hold a reservation or a slot
        self.running = 0  # of those, with a slot
        self.reserved_picos = 0
        self.month = MonthSpend()

    def set_limits(self, limits: Iterable[Limit]) -> None:
        """What was used is kept. Of two limits of one kind the lower holds."""
        lowest: dict[LimitKind, Limit] = {}
        for limit in limits:
            if limit.kind not in lowest or limit.value < lowest[limit.kind].value:
                lowest[limit.kind] = limit
        self.rates = tuple((RATE_KINDS[kind], limit.value, limit) for kind, limit in lowest.items() if kind in RATE_KINDS)
        self.concurrency = lowest.get(LimitKind.CONCURRENCY)
        self.budget = lowest.get(LimitKind.BUDGET)
        self.budget_picos = self.budget.value * PICOS_A_MICRO if self.budget else 0

    def limits(self) -> Iterator[Limit]:
        yield from (limit for _, _, limit in self.rates)
        yield from (limit for limit in (self.concurrency, self.budget) if limit)

    def keeps_log(self) -> bool:
        """The tenant's own log keeps everything: another's is made from it when it is given a limit of rate."""
        return not self.place or bool(self.rates)

    def has_slot(self) -> bool:
        return self.concurrency is None or self.running < self.concurrency.value

    def overcommitted(self) -> int:
        return max(0, self.running - self.concurrency.value) if self.concurrency else 0

    def is_idle(self) -> bool:
        """Nothing would be lost by forgetting it."""
        return not (self.rates or self.concurrency or self.budget or self.log or self.open)


class TenantState(ScopeState):
    """A tenant's own scope, and those of its keys and models: a stranger's key of the same id is another scope."""

    __slots__ = ("_sweep_at", "balance", "keys", "models", "month_ends_s")

    def __init__(self, tenant: str) -> None:
        super().__init__(Scope(ScopeKind.TENANT, tenant), 0, tenant)
        self.keys: dict[str, ScopeState] = {}
        self.models: dict[str, ScopeState] = {}
        self.month_ends_s = inf  # not known
        self.balance = BalanceState()
        self._sweep_at = 64

    def key(self, key: str) -> ScopeState:
        state = self.keys.get(key)
        if state is None:
            if len(self.keys) >= self._sweep_at:
                self._forget_idle_keys()
            state = self.keys[key] = ScopeState(Scope(ScopeKind.KEY, key), 1, key)
        return state

    def model(self, model: str) -> ScopeState:
        state = self.models.get(model)
        if state is None:
            state = self.models[model] = ScopeState(Scope(ScopeKind.MODEL, f"{self.scope.id}/{model}"), 2, model)
        return state

    def states(self) -> Iterator[ScopeState]:
        yield self
        yield from self.keys.values()
        yield from self.models.values()

    def state_of(self, scope: Scope) -> ScopeState:
        """Raises KeyError for a scope that is not this tenant's."""
        if scope.kind is ScopeKind.KEY:
            return self.key(scope.id)
        if scope.kind is ScopeKind.MODEL:
            tenant, slash, model = scope.id.partition("/")
            if tenant != self.scope.id or not slash:
                raise KeyError(scope)
            return self.model(model)
        if scope != self.scope:
            raise KeyError(scope)
        return self

    def set_limits_of_all(self, limits: Iterable[Limit]) -> None:
        by_scope: dict[Scope, list[Limit]] = {}
        for limit in limits:
            by_scope.setdefault(limit.scope, []).append(limit)
        for state in self.states():
            self._set_limits(state, by_scope.pop(state.scope, ()))
        for scope, its_limits in by_scope.items():
            self._set_limits(self.state_of(scope), its_limits)

    def _set_limits(self, state: ScopeState, limits: Iterable[Limit]) -> None:
        kept_log = state.keeps_log()
        state.set_limits(limits)
        if state.keeps_log() and not kept_log:
            state.log = SlidingLog()
            state.log.fill_from(self.log, state.place, state.name)

    def roll_month(self, now_s: float) -> None:
        if now_s >= self.month_ends_s:
            self.begin_month(inf)

    def begin_month(self, ends_s: float) -> None:
        """What is reserved stays: it will be settled in the new month."""
        self.month_ends_s = ends_s
        for state in self.states():
            state.month.next_month()

    def _forget_idle_keys(self) -> None:
        """So that a tenant which changes keys every minute costs no more than the keys it uses."""
        self.keys = {key: state for key, state in self.keys.items() if not state.is_idle()}
        self._sweep_at = 2 * len(self.keys) + 64


def rate_view(states: Iterable[ScopeState], now_s: float) -> RateView:
    """Of several limits of requests the one with the least left; of token limits the one with the smallest part left."""
    requests = tokens = None
    least_part = inf
    for state in states:
        total = state.log.total
        for kind, value, _ in state.rates:
            left = value - total[kind]
            if left < 0:
                left = 0
            if kind == REQUESTS:
                if requests is None or left < requests[3]:
                    requests = (state.log, kind, value, left)
            elif tokens is None or left < least_part * value:
                least_part, tokens = left / value if value > 0 else 0.0, (state.log, kind, value, left)
    limit_requests, remaining_requests, reset_requests_s = _told(requests, now_s)
    limit_tokens, remaining_tokens, reset_tokens_s = _told(tokens, now_s)
    return RateView(limit_requests, remaining_requests, reset_requests_s, limit_tokens, remaining_tokens, reset_tokens_s)


def _told(tightest: tuple[SlidingLog, int, int, int] | None, now_s: float) -> tuple[int, int, float] | tuple[None, None, None]:
    if tightest is None:
        return None, None, None
    log, kind, value, left = tightest
    return value, left, log.empty_in_s(kind, now_s)


NO_RATES = RateView()

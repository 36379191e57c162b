"""The limits of a cell: may this request be taken on, is it to wait for a slot, or is it refused, by which limit, until when.

One decision over every limit that applies (of the tenant, of the key, of the model, of each kind): all are reserved
together or none. Requests and tokens a minute, budget and balance refuse (`reserve`); concurrency waits (`can_start`).

The rules:
- A request counts from the instant of its reservation for exactly 60 s: while it is open with all it may use, once it is
  settled with what it used. See `sliding_log`.
- It reserves its prompt, at least MIN_INPUT_TOKENS of it (an ask whose size nobody could tell is not free), all its
  max_tokens, and the most that can cost. At settlement prompt tokens that came from the cache do not count as input
  tokens: the limit protects the prefill they spared. They are paid for by their own price.
- A request that named no max_tokens is given what is left, if that is at least MIN_SHORTENED_TOKENS: an answer cut after a
  few words helps nobody, and the client would not know to wait.
- What a limit is not asked for it does not refuse, be it overdrawn (a limit was lowered, an engine made more than asked).
- Of several limits that refuse, the one that takes longest is told, so that waiting helps.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from math import inf

from inference.policy.decisions import Ask, Limit, LimitHit, LimitKind, RateView, Scope, TenantTerms, Usage, micros_up
from inference.policy.limit_fit import asked_amounts, at_most_picos, find_hit, settled_amounts, shortened_tokens, spend
from inference.policy.limit_scopes import NO_RATES, RATE_KINDS, SAME_MONTH_S, ScopeState, TenantState, rate_view
from inference.policy.limit_views import BalanceUse, LimiterSnapshot, LimitUse
from inference.policy.sliding_log import INPUT, NOTHING, OUTPUT, WINDOW_S, Amounts, Entry


class _Open:
    """A request that holds a reservation, and maybe a slot."""

    __slots__ = ("entry", "is_running", "max_tokens", "picos", "states", "tenant")

    def __init__(self, tenant: TenantState, states: tuple[ScopeState, ...], entry: Entry, max_tokens: int, picos: int) -> None:
        self.tenant = tenant
        self.states = states
        self.entry = entry
        self.max_tokens = max_tokens
        self.picos = picos
        self.is_running = False


class Limiter:
    def __init__(self) -> None:
        self._tenants: dict[str, TenantState] = {}
        self._open: dict[str, _Open] = {}
        self._running = 0
        self._overruns = 0
        self._logs: deque[ScopeState] = deque()  # every scope whose log may hold something
        self._now_s = -inf

    # What holds

    def set_terms(self, terms: TenantTerms, now_s: float) -> None:
        """The tenant's limits, whole: one that is not among them is gone. What was used stays used.

        Raises KeyError when a limit names a model of another tenant.
        """
        self._tick(now_s)
        tenant = self._tenant(terms.tenant)
        tenant.log.advance(now_s)
        tenant.set_limits_of_all(terms.limits)
        for state in tenant.states():
            self._visit(state)

    def set_month(
        self,
        tenant: str,
        *,
        spent_picos: int,
        ends_s: float,
        now_s: float,
        scope: Scope | None = None,
        raised_picos: int = 0,
        lowered_picos: int = 0,
    ) -> None:
        """What the ledger's row of the running month says (of the tenant, or of one scope of it), and when it ends.

        The first one comes at start and takeover, when a tenant appears (0 then), and for another scope when it is given a
        budget. Later rows of the month may come at any time and in any order with `acknowledged`: none is counted twice,
        an older one changes nothing. Of `spent_picos` corrections have added `raised_picos` and taken off `lowered_picos`,
        which only count up: a month that was corrected, downwards too, counts so at once.
        """
        self._tick(now_s)
        state = self._tenant(tenant)
        state.roll_month(now_s)
        if ends_s <= now_s:
            return  # of a month that is over
        if state.month_ends_s == inf:
            state.month_ends_s = ends_s
        elif ends_s > state.month_ends_s + SAME_MONTH_S:
            state.begin_month(ends_s)
        elif ends_s < state.month_ends_s - SAME_MONTH_S:
            return
        month = (state if scope is None else state.state_of(scope)).month
        month.tell_row(spent_picos, raised_picos=raised_picos, lowered_picos=lowered_picos)

    def set_balance(
        self,
        tenant: str,
        *,
        credit_picos: int | None,
        spent_picos: int = 0,
        expiring: Iterable[tuple[float, int]] = (),
        told_by: int = 0,
        now_s: float,
    ) -> None:
        """All credit the tenant may use, ever, and all it has spent, ever, as the ledger says; None: it pays later.

        In any order with settlements and `acknowledged`. `expiring`: of the credit, what is not spent and until when it
        may be. `told_by`: which of the tellings it is, for `snapshot`. What runs is never cut.
        """
        self._tick(now_s)
        balance = self._tenant(tenant).balance
        balance.advance(now_s)
        balance.tell(credit_picos, spent_picos, expiring, told_by=told_by, now_s=now_s)

    # What a request does

    def reserve(self, ask: Ask, now_s: float) -> int | LimitHit:
        """Everything or nothing: the max_tokens it is given, at most what was asked.

        An id that holds a reservation (a retry, a resumed one) reserves nothing again.
        """
        known = self._open.get(ask.id)
        self._tick(now_s)
        if known is not None:
            return min(ask.max_tokens, known.max_tokens)
        tenant, states = self._states(ask, now_s)
        max_tokens = shortened_tokens(ask, tenant, states)
        amounts = asked_amounts(ask, max_tokens)
        picos = at_most_picos(ask, amounts)
        hit = find_hit(amounts, picos, tenant, states, now_s)
        if hit is not None:
            return hit
        self._take(ask, tenant, states, amounts, picos, at_s=now_s, now_s=now_s)
        return max_tokens

    def can_start(self, ask: Ask) -> Scope | None:
        """None: there is a slot for it everywhere. Else the scope that is full."""
        known = self._open.get(ask.id)
        states = known.states if known else self._find_states(ask.tenant, ask.key, ask.model)
        for state in states:
            if not state.has_slot():
                return state.scope
        return None

    def start(self, request_id: str) -> None:
        """Takes a slot in each of its scopes. The caller has asked `can_start`, unless it restores."""
        known = self._open[request_id]
        assert not known.is_running, "a slot is taken once"
        known.is_running = True
        self._running += 1
        for state in known.states:
            state.running += 1

    def stop(self, request_id: str) -> list[Scope]:
        """Gives its slots back; the scopes with a limit in which there is room now. Its reservation stays.

        A request that has no slot, or is not known: nothing, no error.
        """
        known = self._open.get(request_id)
        if known is None or not known.is_running:
            return []
        known.is_running = False
        self._running -= 1
        for state in known.states:
            state.running -= 1
        self._forget_if_over(request_id, known)
        return [state.scope for state in known.states if state.concurrency is not None and state.has_slot()]

    def settle(self, request_id: str, usage: Usage, now_s: float) -> None:
        """Real usage takes the reservation's place. A slot it holds stays until `stop`.

        An id that is not known, or settled already: nothing, no error.
        """
        known = self._open.get(request_id)
        self._tick(now_s)
        if known is None or not known.entry.is_open:
            return
        real = settled_amounts(usage)
        reserved = known.entry.amounts
        if real[INPUT] > reserved[INPUT] or real[OUTPUT] > reserved[OUTPUT]:
            self._overruns += 1
        self._close(request_id, known, real, now_s)
        spend(known.tenant, known.states, usage.amount_picos)

    def undo(self, request_id: str, now_s: float) -> None:
        """It was refused after all: as if it had never asked."""
        known = self._open.get(request_id)
        self._tick(now_s)
        if known is not None and known.entry.is_open:
            self._close(request_id, known, NOTHING, now_s)

    def acknowledged(self, tenant: str, amount_picos: int, *, key: str | None = None, model: str | None = None) -> None:
        """The ledger's row of the tenant's month includes this much of what was settled here, of this key and model.

        Without them a budget that is given to the key or model later begins with what was acknowledged counted twice.
        """
        state = self._tenant(tenant)
        for each in (state, state.keys.get(key or ""), state.models.get(model or "")):
            if each is not None:
                each.month.acknowledge(amount_picos)
        state.balance.acknowledge(amount_picos)

    def restore(
        self,
        ask: Ask,
        *,
        age_s: float,
        usage: Usage | None,
        is_running: bool,
        now_s: float,
        is_acknowledged: bool = False,
    ) -> None:
        """A request another dispatcher granted `age_s` ago, `ask.max_tokens` as granted: never refused.

        `usage` None: it is open; else it was settled so, and with `is_acknowledged` the month's row includes it already.
        """
        self._tick(now_s)
        if ask.id not in self._open:
            tenant, states = self._states(ask, now_s)
            amounts = asked_amounts(ask, ask.max_tokens)
            at_s = now_s - max(0.0, age_s)
            self._take(ask, tenant, states, amounts, at_most_picos(ask, amounts), at_s=at_s, now_s=now_s)
        known = self._open[ask.id]
        if usage is not None:
            self._close(ask.id, known, settled_amounts(usage), now_s)
            if not is_acknowledged:
                spend(known.tenant, known.states, usage.amount_picos)
        elif is_running and not known.is_running:
            self.start(ask.id)

    # What others see

    def is_open(self, request_id: str) -> bool:
        return request_id in self._open

    def rates(self, tenant: str, key: str, model: str, now_s: float) -> RateView:
        """As they stand for one who asks with this key for this model."""
        self._tick(now_s)
        return _rates(self._find_states(tenant, key, model), now_s)

    def rates_of(self, request_id: str, now_s: float) -> RateView:
        """The same for a request that holds a reservation."""
        return _rates(self._open[request_id].states, now_s)

    def snapshot(self) -> LimiterSnapshot:
        """As of the latest call that told the time. O(scopes): for pages and metrics, not for a decision."""
        states = [state for tenant in self._tenants.values() for state in tenant.states()]
        for state in states:
            state.log.advance(self._now_s)
        return LimiterSnapshot(
            open=len(self._open),
            running=self._running,
            logged=sum(len(state.log) for state in states),
            overcommitted=sum(state.overcommitted() for state in states),
            overruns=self._overruns,
            unacknowledged_picos=sum(tenant.month.unacknowledged for tenant in self._tenants.values()),
            limits=tuple(_use(state, limit) for state in states for limit in state.limits()),
            balances=tuple(self._balance_uses()),
        )

    def _balance_uses(self) -> Iterator[BalanceUse]:
        for tenant in self._tenants.values():
            balance = tenant.balance
            if balance.next_expiry_s <= self._now_s:
                balance.advance(self._now_s)
            if balance.credit_picos is not None:
                name, spent_picos = tenant.scope.id, balance.spent_picos()
                yield BalanceUse(name, balance.credit_picos, spent_picos, tenant.reserved_picos, balance.told_by)

    def check_invariants(self, now_s: float) -> None:
        """For tests: every sum is what its parts say. O(everything)."""
        self._tick(now_s)
        queued = list(self._logs)
        assert len(queued) == len(set(map(id, queued))), "a log is visited once a round"
        for tenant in self._tenants.values():
            for state in tenant.states():
                state.log.advance(now_s)
                state.log.check_invariants()
                mine = [known for known in self._open.values() if state in known.states]
                assert state.open == len(mine)
                assert state.running == sum(known.is_running for known in mine)
                assert state.reserved_picos == sum(known.picos for known in mine)
                alive = [known.entry for known in mine if known.entry.is_open and known.entry.expires_s > now_s]
                reserved = [sum(entry.amounts[kind] for entry in alive) for kind in range(3)]
                assert state.log.reserved == reserved or not state.keeps_log()
                assert not state.log or state in queued, "no log is forgotten"
        assert self._running == sum(known.is_running for known in self._open.values())

    # Inside

    def _tick(self, now_s: float) -> None:
        """Time goes on. Visits one log a call, so that those nobody asks for let go as well: O(1) amortised."""
        assert now_s >= self._now_s, "time does not go back"
        self._now_s = now_s
        if self._logs:
            state = self._logs[0]
            if now_s >= state.log.next_expiry_s:
                state.log.advance(now_s)
            if state.log.next_expiry_s < inf:
                self._logs.rotate(-1)
            else:
                self._logs.popleft()
                state.is_visited = False

    def _tenant(self, tenant: str) -> TenantState:
        state = self._tenants.get(tenant)
        if state is None:
            state = self._tenants[tenant] = TenantState(tenant)
        return state

    def _states(self, ask: Ask, now_s: float) -> tuple[TenantState, tuple[ScopeState, ...]]:
        tenant = self._tenant(ask.tenant)
        tenant.roll_month(now_s)
        if now_s >= tenant.balance.next_expiry_s:
            tenant.balance.advance(now_s)
        states = (tenant, tenant.key(ask.key), tenant.model(ask.model))
        for state in states:
            if now_s >= state.log.next_expiry_s:
                state.log.advance(now_s)
        return tenant, states

    def _find_states(self, tenant: str, key: str, model: str) -> tuple[ScopeState, ...]:
        """Those that exist, without making any: a question leaves nothing behind."""
        owner = self._tenants.get(tenant)
        if owner is None:
            return ()
        return tuple(state for state in (owner, owner.keys.get(key), owner.models.get(model)) if state)

    def _take(
        self,
        ask: Ask,
        tenant: TenantState,
        states: tuple[ScopeState, ...],
        amounts: Amounts,
        picos: int,
        *,
        at_s: float,
        now_s: float,
    ) -> None:
        entry = Entry(at_s + WINDOW_S, amounts, is_open=True, names=(ask.tenant, ask.key, ask.model))
        self._open[ask.id] = _Open(tenant, states, entry, amounts[OUTPUT], picos)
        for state in states:
            state.open += 1
            state.reserved_picos += picos
        if entry.expires_s > now_s:
            for state in states:
                if state.keeps_log():
                    entry.chunks[state.place] = state.log.add(entry)
                    self._visit(state)

    def _visit(self, state: ScopeState) -> None:
        if state.log and not state.is_visited:
            state.is_visited = True
            self._logs.append(state)

    def _close(self, request_id: str, known: _Open, amounts: Amounts, now_s: float) -> None:
        known.tenant.roll_month(now_s)
        if now_s >= known.tenant.balance.next_expiry_s:
            known.tenant.balance.advance(now_s)
        for state in known.states:
            state.reserved_picos -= known.picos
            if now_s >= state.log.next_expiry_s:
                state.log.advance(now_s)
        known.picos = 0
        entry = known.entry
        reserved, entry.amounts, entry.is_open = entry.amounts, amounts, False
        if entry.expires_s > now_s:  # else it counts no longer, in any log
            for state, chunk in zip(known.states, entry.chunks, strict=True):
                if chunk is not None:
                    state.log.closed(entry, chunk, reserved)
        self._forget_if_over(request_id, known)

    def _forget_if_over(self, request_id: str, known: _Open) -> None:
        if known.is_running or known.entry.is_open:
            return
        del self._open[request_id]
        for state in known.states:
            state.open -= 1


def _rates(states: tuple[ScopeState, ...], now_s: float) -> RateView:
    limited = [state for state in states if state.rates]
    if not limited:
        return NO_RATES
    for state in limited:
        state.log.advance(now_s)
    return rate_view(limited, now_s)


def _use(state: ScopeState, limit: Limit) -> LimitUse:
    if limit.kind in RATE_KINDS:
        kind = RATE_KINDS[limit.kind]
        return LimitUse(limit, state.log.total[kind] - state.log.reserved[kind], state.log.reserved[kind])
    if limit.kind is LimitKind.CONCURRENCY:
        return LimitUse(limit, state.running, 0)
    return LimitUse(limit, micros_up(state.month.spent_picos()), micros_up(state.reserved_picos))

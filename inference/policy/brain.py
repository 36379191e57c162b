"""What decides about every request of a cell: limits, and pools per model. The dispatcher and the simulator run this.

It is told what happens (asked, first token, ended, parked, a replica came) and answers with decisions, about the asker
and about others whom that has helped. Whoever calls it passes them on, looks at `next_event_s` after each call, and
calls `expire` then. Each id ends once: Refused, or `end`/`cancel` with its usage.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from inference.policy.brain_tunables import BrainTunables
from inference.policy.decisions import (
    NO_MODEL,
    Ask,
    Decision,
    Ending,
    Granted,
    LimitHit,
    Queued,
    RateView,
    Reason,
    Refused,
    ReplicaSpec,
    RetryKind,
    Scope,
    StateFrame,
    TenantTerms,
    Tier,
    TierTargets,
    Usage,
)
from inference.policy.demand import Demand, DemandView
from inference.policy.entry import Entry, Stage
from inference.policy.jain import ServiceWindow
from inference.policy.limit_views import LimiterSnapshot
from inference.policy.limits import Limiter
from inference.policy.model_pools import ModelPools
from inference.policy.pool import Pool, PoolSnapshot
from inference.policy.routing import Router
from inference.policy.served import usage_so_far
from inference.policy.split import Versions


@dataclass(frozen=True, slots=True)
class BrainSnapshot:
    in_flight: int
    queued: int
    away: int
    """Between two attempts: they hold a reservation and no slot."""
    overcommitted: int
    """Restored requests that run although a limit or a replica was full, or on a replica that nobody knows."""
    limits: LimiterSnapshot
    pools: dict[str, PoolSnapshot] = field(default_factory=dict)
    demand: dict[str, DemandView] = field(default_factory=dict)
    """By model."""


class Brain:
    def __init__(self, tunables: BrainTunables, make_router: Callable[[str], Router]) -> None:
        self._tunables = tunables
        self._make_router = make_router
        self._limiter = Limiter()
        self._models: dict[str, ModelPools] = {}
        self._pools: tuple[Pool, ...] = ()  # of all models
        self._entries: dict[str, Entry] = {}
        self._terms: dict[str, TenantTerms] = {}
        self._weights: dict[str, float] = {}
        self._blocked: dict[tuple[str, Scope], dict[Pool, None]] = {}  # where somebody waits for a slot of a tenant's scope
        self._overcommitted: set[str] = set()
        self._num_entries = 0
        self._demand: defaultdict[str, Demand] = defaultdict(Demand)

    # What holds

    def set_pool(self, model: str, *, max_queued: int, targets: Mapping[Tier, TierTargets], now_s: float) -> None:
        """Raises ValueError for targets that are out of order (B132); nothing has changed then."""
        pools = self._models.get(model) or self._new_pools(model)
        pools.set_targets(targets, max_queued=max_queued)
        self._models[model] = pools
        self._list_pools()

    def drop_pool(self, model: str, now_s: float) -> list[Decision]:
        """The model is served no longer: who waits is refused, what runs runs on. One that is not there is no error."""
        pools = self._models.get(model)
        if pools is None:
            return []
        decisions = self._told(pools.drop(now_s))
        self._forget_idle(model)
        return decisions

    def set_replicas(
        self, model: str, specs: Iterable[ReplicaSpec], now_s: float, versions: Versions | None = None
    ) -> list[Decision]:
        """These, and no others, are ready; `versions`: which of them serve, and whom; None: all of them, anybody.

        A model that is not served is no error.
        """
        pools = self._models.get(model)
        if pools is None or pools.is_dropped:
            return []
        decisions = self._told(pools.set_replicas(specs, versions, now_s))
        pools.forget_idle()
        self._list_pools()
        return decisions

    def set_waking(self, model: str, *, hold_limit_s: float, start_s: float) -> None:
        """As the pool's. A model that is not served is no error."""
        if model in self._models:
            self._models[model].set_waking(hold_limit_s=hold_limit_s, start_s=start_s)

    def waiting_to_wake(self) -> list[str]:
        """Models that serve nothing, for which somebody waits and something is to be started."""
        return [model for model, pools in self._models.items() if pools.main.waits_to_wake]

    def cannot_wake(self, model: str, *, until_s: float, now_s: float) -> list[Decision]:
        pools = self._models.get(model)
        return [] if pools is None else self._told(pools.main.cannot_wake(until_s, now_s))

    def set_terms(self, terms: TenantTerms, now_s: float) -> list[Decision]:
        """Raises ValueError for a weight that is not above 0."""
        if not terms.weight > 0:
            raise ValueError("a weight is above 0")
        self._limiter.set_terms(terms, now_s)
        self._terms[terms.tenant] = terms
        self._weights[terms.tenant] = terms.weight
        decisions: list[Decision] = []
        for pool in self._pools:
            pool.queue.set_weight(terms.tenant, terms.weight)
            pool.queue.wake_tenant(terms.tenant)
            decisions += pool.promote(now_s)
        return decisions

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
        """As Limiter's."""
        self._limiter.set_month(
            tenant,
            spent_picos=spent_picos,
            ends_s=ends_s,
            now_s=now_s,
            scope=scope,
            raised_picos=raised_picos,
            lowered_picos=lowered_picos,
        )

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
        """As Limiter's."""
        self._limiter.set_balance(
            tenant, credit_picos=credit_picos, spent_picos=spent_picos, expiring=expiring, told_by=told_by, now_s=now_s
        )

    def acknowledged(self, tenant: str, amount_picos: int, *, key: str | None = None, model: str | None = None) -> None:
        """The ledger's rows of the tenant's month include so much more of what was settled here."""
        self._limiter.acknowledged(tenant, amount_picos, key=key, model=model)

    # What requests do

    def submit(self, ask: Ask, now_s: float) -> list[Decision]:
        """A new request, or one whose attempt has ended with usage None. Its own decision is the last."""
        pools = self._models.get(ask.model)
        entry = self._entries.get(ask.id)
        assert entry is None or entry.stage is Stage.AWAY, "it waits or runs already"
        if ask.model == NO_MODEL:
            return [self._counted(ask, now_s)]
        reserved = self._limiter.reserve(ask, now_s) if pools is not None else None
        if pools is None or isinstance(reserved, LimitHit):
            return [self._refused(ask, reserved if isinstance(reserved, LimitHit) else None, now_s)]
        assert reserved is not None
        pool = pools.place(ask)
        if entry is None:
            entry = self._new_entry(ask, pool, arrival_s=now_s)
            self._demand[ask.model].asked(entry.tier, ask.work_tokens, now_s)
        entry.ask, entry.max_tokens = ask, reserved
        return self._told(pool.ask(entry, now_s))

    def first_token(self, id: str, now_s: float) -> None:  # noqa: A002
        """One that does not run is no error. May make room: look at `next_event_s`."""
        entry = self._entries.get(id)
        if entry is not None:
            if entry.stage is Stage.RUNNING and not entry.has_begun:
                self._demand[entry.ask.model].first_token(entry.tier, now_s - entry.arrival_s)
            entry.pool.first_token(entry, now_s)

    def progress(self, id: str, completion_tokens: int, now_s: float) -> None:  # noqa: A002
        """Tokens made so far, over all attempts; from its gateway, every 250 ms."""
        entry = self._entries.get(id)
        if entry is not None:
            entry.pool.progress(entry, completion_tokens, now_s)

    def end(self, id: str, ending: Ending, usage: Usage | None, now_s: float) -> list[Decision]:  # noqa: A002
        """An attempt has ended. Usage None: it will ask again, its reservation is kept; else all of it is settled.

        One that is not known, or was refused, is no error.
        """
        entry = self._entries.get(id)
        if entry is None:
            return []
        pool = entry.pool
        first = pool.leave(entry, ending, usage, now_s)
        freed = self._limiter.stop(id)
        if usage is None:
            pool.served.stopped(entry, now_s)
        else:
            self._limiter.settle(id, usage, now_s)
            pool.served.ended(entry, ending, usage, now_s)
            self._forget(entry)
        return self._told(self._promote(pool, entry.ask, freed, first, now_s))

    def cancel(self, id: str, usage: Usage | None, now_s: float) -> list[Decision]:  # noqa: A002
        """The client has gone, waiting or running."""
        return self.end(id, Ending.NEUTRAL, usage or Usage(), now_s)

    def parked(self, id: str, ask: Ask, now_s: float) -> list[Decision]:  # noqa: A002
        """Its owner has aborted it, and `ask` says what is left: it waits again, in the place of its arrival.

        Its own decision is the last, unless others of its slot came first and it was granted another at once. One that
        does not run is no error.
        """
        entry = self._entries.get(id)
        if entry is None or entry.stage is not Stage.RUNNING:
            return []
        pool = entry.pool
        first = pool.leave(entry, Ending.NEUTRAL, None, now_s)
        freed = self._limiter.stop(id)
        pool.parked(entry)
        pool.served.stopped(entry, now_s)
        reserved = self._limiter.reserve(ask, now_s)
        assert not isinstance(reserved, LimitHit), "what is reserved is not refused"
        entry.ask, entry.max_tokens = ask, reserved
        own = self._models[ask.model].place(ask).wait_again(entry, now_s)
        decisions = self._promote(pool, ask, freed, first, now_s)
        if entry.pool is not pool:
            decisions += entry.pool.promote(now_s)
        return self._told([*decisions, own] if entry.waits else decisions)

    def reserved_tokens(self, id: str) -> int:  # noqa: A002
        """The max_tokens reserved for one that is not over; 0 for one that is not known."""
        entry = self._entries.get(id)
        return 0 if entry is None else entry.max_tokens

    def usage_so_far(self, id: str) -> Usage:  # noqa: A002
        """Of one whose owner has gone: as last told. Nothing for one that never began, or is not known."""
        entry = self._entries.get(id)
        return usage_so_far(entry) if entry is not None and entry.has_begun else Usage()

    # After a failover: what gateways say is so

    def restore_running(
        self,
        ask: Ask,
        replica: str,
        *,
        age_s: float,
        completion_tokens: int = 0,
        now_s: float,
    ) -> None:
        """It was granted `age_s` ago, `ask.max_tokens` as granted, and runs. Never refused; may overcommit."""
        pool, entry = self._restored(ask, age_s=age_s, replica=replica, now_s=now_s)
        if entry.stage is Stage.RUNNING:
            return
        was_full = self._limiter.can_start(ask) is not None
        self._limiter.restore(ask, age_s=age_s, usage=None, is_running=True, now_s=now_s)
        entry.completion_tokens = max(entry.completion_tokens, completion_tokens)
        entry.has_begun = entry.has_begun or completion_tokens > 0
        if not pool.restore_running(entry, replica, now_s) or was_full:
            self._overcommitted.add(ask.id)

    def restore_waiting(self, ask: Ask, *, waited_s: float, now_s: float) -> list[Decision]:
        """It was reserved and queued `waited_s` ago. Never refused. Its own decision is the last."""
        pool, entry = self._restored(ask, age_s=waited_s, now_s=now_s)
        if entry.stage is not Stage.AWAY:
            return []
        self._limiter.restore(ask, age_s=waited_s, usage=None, is_running=False, now_s=now_s)
        own = pool.wait_again(entry, now_s, waited_s=waited_s)
        decisions = pool.promote(now_s)
        return self._told([*decisions, own] if entry.waits else decisions)

    def restore_away(self, ask: Ask, *, age_s: float, now_s: float) -> None:
        """It was reserved `age_s` ago, neither waits nor runs, and will ask again or end."""
        pool, entry = self._restored(ask, age_s=age_s, now_s=now_s)
        if entry.stage is Stage.AWAY:
            pool.restore_away(entry, now_s)
        self._limiter.restore(ask, age_s=age_s, usage=None, is_running=False, now_s=now_s)

    def restore_settled(self, ask: Ask, *, age_s: float, usage: Usage, now_s: float, is_acknowledged: bool = False) -> None:
        """It was granted in the last minute and has ended: its use counts on."""
        self._limiter.restore(ask, age_s=age_s, usage=usage, is_running=False, now_s=now_s, is_acknowledged=is_acknowledged)

    # What agents and time do

    def frame(self, replica: str, frame: StateFrame, now_s: float) -> list[Decision]:
        """Of an unknown replica it is no error."""
        decisions: list[Decision] = []
        for pool in self._pools:
            if pool.has_replica(replica):
                decisions += pool.frame(replica, frame, now_s)
        return self._told(decisions)

    def expire(self, now_s: float) -> list[Decision]:
        """What time alone decides. Call it at `next_event_s`; at any other time it does no harm."""
        decisions: list[Decision] = []
        for pool in self._pools:
            decisions += pool.expire(now_s)
        return self._told(decisions)

    def next_event_s(self, now_s: float) -> float | None:
        """When time alone may decide something; None: never, as things stand."""
        times = [pool.next_event_s(now_s) for pool in self._pools]
        return min((at_s for at_s in times if at_s is not None), default=None)

    # What others see

    def rates(self, tenant: str, key: str, model: str, now_s: float) -> RateView:
        """How the limits stand for one who would ask so; nothing is reserved."""
        return self._limiter.rates(tenant, key, model, now_s)

    def positions(self, now_s: float) -> list[Queued]:
        """Where everybody stands that waits. O(n log n): once a second or so."""
        return [queued for pool in self._pools for queued in pool.positions(now_s)]

    def routers(self) -> dict[str, Router]:
        """Of the stable version, by model; to look at."""
        return {model: pools.main.router for model, pools in self._models.items()}

    def snapshot(self, now_s: float) -> BrainSnapshot:
        pools = {model: pools.snapshot(now_s) for model, pools in self._models.items()}
        return BrainSnapshot(
            in_flight=sum(pool.in_flight for pool in pools.values()),
            queued=sum(pool.queued for pool in pools.values()),
            away=len(self._entries) - sum(pool.in_flight + pool.queued for pool in pools.values()),
            overcommitted=len(self._overcommitted),
            limits=self._limiter.snapshot(),
            pools=pools,
            demand={model: demand.view(now_s) for model, demand in self._demand.items() if model in self._models},
        )

    # Inside

    def _new_pools(self, model: str) -> ModelPools:
        window = ServiceWindow(self._tunables.fairness_window_s)

        def make_pool() -> Pool:
            return Pool(self._tunables, self._limiter, self._make_router(model), self._blocked, self._weights, window)

        return ModelPools(make_pool)

    def _list_pools(self) -> None:
        self._pools = tuple(pool for pools in self._models.values() for pool in pools)

    def _new_entry(self, ask: Ask, pool: Pool, *, arrival_s: float) -> Entry:
        self._num_entries += 1
        terms = self._terms.get(ask.tenant)
        entry = Entry(
            id=ask.id,
            ask=ask,
            tier=ask.tier if terms is None else max(ask.tier, terms.tier_ceiling),
            arrival_s=arrival_s,
            number=self._num_entries,
            max_tokens=ask.max_tokens,
            pool=pool,
        )
        self._entries[ask.id] = entry
        return entry

    def _restored(self, ask: Ask, *, age_s: float, replica: str = "", now_s: float) -> tuple[Pool, Entry]:
        """The pool is made if the model is not known yet: what was promised is kept."""
        if ask.model not in self._models:
            self.set_pool(ask.model, max_queued=0, targets={}, now_s=now_s)
        pools = self._models[ask.model]
        pool = (pools.with_replica(replica) if replica else None) or pools.place(ask)
        entry = self._entries.get(ask.id) or self._new_entry(ask, pool, arrival_s=now_s - age_s)
        entry.is_restored = True
        return pool, entry

    def _promote(self, pool: Pool, ask: Ask, freed: list[Scope], first: Entry | None, now_s: float) -> list[Decision]:
        """After a slot of this pool was given back: those that wait in it, and for its tenant's slots in others."""
        woken: dict[Pool, None] = {pool: None}
        for scope in freed:
            for other in self._blocked.pop((ask.tenant, scope), ()):
                woken[other] = None
                other.queue.wake(ask.tenant, scope)
        decisions: list[Decision] = []
        for other in woken:
            decisions += other.promote(now_s, first if other is pool else None)
        if self._models[ask.model].is_leaving:
            self._forget_idle(ask.model)
        return decisions

    def _counted(self, ask: Ask, now_s: float) -> Refused:
        """For a model that nobody knows: it counts as a request that made nothing, and is refused."""
        reserved = self._limiter.reserve(ask, now_s)
        if isinstance(reserved, LimitHit):
            return self._refused(ask, reserved, now_s)
        self._limiter.settle(ask.id, Usage(), now_s)
        return self._refused(ask, None, now_s)

    def _refused(self, ask: Ask, hit: LimitHit | None, now_s: float) -> Refused:
        """By a limit, or because the model is not served."""
        entry = self._entries.get(ask.id)
        assert entry is None, "what is reserved is not refused by a limit"
        return Refused(
            id=ask.id,
            reason=Reason.NO_REPLICA if hit is None else Reason.LIMIT,
            retry_after_s=self._tunables.no_replica_retry_after_s if hit is None else hit.retry_after_s,
            retry_kind=RetryKind.ESTIMATE if hit is None else hit.retry_kind,
            hit=hit,
            rates=self._limiter.rates(ask.tenant, ask.key, ask.model, now_s),
        )

    def _told(self, decisions: list[Decision]) -> list[Decision]:
        """Who is refused is forgotten; what a grant finds cached is no work."""
        for decision in decisions:
            if type(decision) is Refused:
                entry = self._entries.get(decision.id)
                if entry is not None:
                    self._forget(entry)
            elif type(decision) is Granted:
                ask = self._entries[decision.id].ask
                self._demand[ask.model].granted(ask.work_tokens, decision.predicted_cached_tokens)
        return decisions

    def _forget(self, entry: Entry) -> None:
        self._entries.pop(entry.id, None)
        self._overcommitted.discard(entry.id)

    def _forget_idle(self, model: str) -> None:
        """Pools that serve no longer, once nothing runs there: of a version, or of a model that was dropped."""
        pools = self._models[model]
        if pools.forget_idle():
            self._list_pools()
        if pools.is_dropped and pools.is_idle() and not any(entry.ask.model == model for entry in self._entries.values()):
            del self._models[model]
            self._demand.pop(model, None)
            self._list_pools()

    def check_invariants(self, now_s: float) -> None:
        """What must hold after any call with this `now_s`; for tests. O(everything)."""
        self._limiter.check_invariants(now_s)
        by_pool: dict[Pool, list[Entry]] = defaultdict(list)
        for id_, entry in self._entries.items():
            assert entry.id == id_ and not entry.is_refused
            by_pool[entry.pool].append(entry)
            assert self._limiter.is_open(id_), "what is alive holds its reservation"
        assert set(self._pools) == {pool for pools in self._models.values() for pool in pools}
        assert all(pool in self._pools for pool, its in by_pool.items() if any(one.stage is not Stage.AWAY for one in its))
        for pool in self._pools:
            pool.check_invariants(by_pool[pool], now_s)
        running = sum(1 for entry in self._entries.values() if entry.stage is Stage.RUNNING)
        limits = self._limiter.snapshot()
        assert limits.running == running, "a slot leaked"
        assert limits.open == len(self._entries), "a reservation leaked"
        assert self._overcommitted <= self._entries.keys()

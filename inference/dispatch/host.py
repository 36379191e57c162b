"""One brain on one event loop: fed from the control state, woken by its own timer, asked by sessions.

A session is one gateway process, in this process or behind a socket (server.py). Whatever it says is a call of a `Session`;
what the brain decides about its requests comes back through its `deliver`. A session that closes is a gateway that has
died: its requests leave, and their slots are free at once.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from billing.services.ledger import UsageDraft
from headway.clock import Clock
from inference.dispatch.mandate import Mandate
from inference.dispatch.repeats import Repeats
from inference.dispatch.session import Deliver, Session
from inference.dispatch.wake_desk import WakeDesk
from inference.gateway.idempotency import IdempotencyTunables
from inference.gateway.state import ControlState, ModelEntry, ReplicaEntry
from inference.policy.brain import Brain, BrainSnapshot
from inference.policy.brain_tunables import BrainTunables
from inference.policy.decisions import (
    NO_MODEL,
    Ask,
    Decision,
    Ending,
    Queued,
    Reason,
    Refused,
    ReplicaSpec,
    RetryKind,
    StateFrame,
    Tier,
    TierTargets,
)
from inference.policy.routing import Router, RoutingTunables

log = structlog.get_logger(__name__)

# A timer that fires a hair early must not spin.
_MIN_TIMER_S = 0.001


@dataclass(frozen=True, slots=True)
class HostTunables:
    cannot_wake_s: float = 5.0
    """After nobody could start anything for a pool at zero: how long those who come are refused at once."""
    positions_s: float = 1.0
    """How often those who wait are told where they stand."""
    months_s: float = 30.0
    """How often budgets are looked at for a month that has ended."""
    targets: Mapping[Tier, TierTargets] | None = None
    """Of every pool, whatever it says itself; None: its own."""
    idempotency: IdempotencyTunables = field(default_factory=IdempotencyTunables)
    """Of the Idempotency-Keys that are remembered for all gateways."""

    @classmethod
    def from_env(cls) -> "HostTunables":
        return cls(idempotency=IdempotencyTunables.from_env())


@dataclass(frozen=True, slots=True)
class _Held:
    asked_s: float
    go: Callable[[], None]


class BrainHost:
    """Its methods belong to the event loop it is started on; the state may change from any thread."""

    def __init__(
        self,
        state: ControlState,
        clock: Clock,
        *,
        brain: BrainTunables | None = None,
        routing: RoutingTunables | None = None,
        tunables: HostTunables | None = None,
        wake_desk: WakeDesk | None = None,
    ) -> None:
        """`wake_desk`: whom pools at zero are told to; without one, their requests are refused."""
        self._desk = wake_desk
        if wake_desk is not None:
            wake_desk.on_failed = lambda model, why: self._hop(lambda: self._cannot_wake(model, why))
        self._routing, self._tunables = routing or RoutingTunables(), tunables or HostTunables()
        self.brain = Brain(brain or BrainTunables(), lambda _model: Router(self._routing))
        self._state, self._clock = state, clock
        self.repeats = Repeats(self._tunables.idempotency)
        self._owners: dict[str, Session] = {}
        self._models: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = float("inf")
        self._ticker: asyncio.TimerHandle | None = None
        self._next_months_s = 0.0
        self._is_closed = False
        self._held: dict[str, _Held] | None = None  # None: grants may be made
        self._mandate: Mandate | None = None
        self._on_unfit: Callable[[], None] = lambda: None
        state.on_routes_changed(lambda: self._hop(self.refresh_routes))
        state.on_terms_changed(lambda tenants: self._hop(lambda: self.refresh_terms(tenants)))
        state.on_months_changed(lambda tenants: self._hop(lambda: self.refresh_months(tenants)))
        state.on_balances_changed(lambda tenants: self._hop(lambda: self.refresh_balances(tenants)))

    def now_s(self) -> float:
        return self._clock.monotonic_s()

    def unix_s(self) -> float:
        return self._clock.now().timestamp()

    def start(self) -> None:
        """On the running loop; again: nothing happens."""
        if self._loop is None and not self._is_closed:
            # Set before the state is read: a change that comes in between is either seen here or hops to this loop.
            self._loop = asyncio.get_running_loop()
            self.refresh_routes()
            self.refresh_terms([terms.tenant for terms in self._state.all_terms()])
            self._tick_regularly()

    def open(self, deliver: Deliver) -> Session:
        return Session(self, deliver)

    def decide_only_with(self, mandate: Mandate, on_unfit: Callable[[], None]) -> None:
        """Tell nobody a decision without it; `on_unfit` is called when there would be one."""
        self._mandate, self._on_unfit = mandate, on_unfit

    def hold(self) -> None:
        """After a takeover: grant nothing until `let_go`, and remember who asks and waits."""
        self._held = {} if self._held is None else self._held

    def let_go(self) -> None:
        """Those who waited before come first, and of them who waited longest."""
        held, self._held = self._held or {}, None
        for waiting in sorted(held.values(), key=lambda waiting: waiting.asked_s):
            waiting.go()

    def refuse_held(self, older_than_s: float) -> None:
        """Those who have waited too long for grants to be made at all."""
        oldest_s = self.now_s() - older_than_s
        for request_id, waiting in list((self._held or {}).items()):
            session = self._owners.get(request_id)
            if waiting.asked_s < oldest_s and session is not None:
                session.end(request_id, Ending.NEUTRAL, self.brain.usage_so_far(request_id))
                session.deliver([Refused(request_id, Reason.NO_REPLICA, 1.0, RetryKind.ESTIMATE)])

    @property
    def is_holding(self) -> bool:
        return self._held is not None

    def close(self) -> None:
        """Decide nothing more; what runs may run on."""
        self._is_closed = True
        for timer in (self._timer, self._ticker):
            if timer is not None:
                timer.cancel()

    def snapshot(self) -> BrainSnapshot:
        return self.brain.snapshot(self.now_s())

    def tick(self) -> None:
        """What the timer does; for tests whose clock moves by hand."""
        self._timer_at_s = float("inf")
        self.act(self.brain.expire(self.now_s()))

    def acknowledge(self, drafts: Iterable[UsageDraft], gateway: str) -> None:
        """From the drainer's thread: the ledger has these records. Those of other gateways were settled elsewhere."""
        settled = [draft for draft in drafts if draft.gateway == gateway and draft.amount_picos]
        if settled:
            self._hop(lambda: self._acknowledge(settled))

    def _acknowledge(self, drafts: list[UsageDraft]) -> None:
        for draft in drafts:
            self.brain.acknowledged(draft.tenant_id, draft.amount_picos or 0, key=draft.key_id, model=draft.model)

    def frame(self, replica: str, frame: StateFrame) -> None:
        """Of a replica's state, from its agent."""
        self.act(self.brain.frame(replica, frame, self.now_s()))

    # What sessions do

    def submit(self, session: Session, ask: Ask) -> None:
        if self._is_closed:
            return
        self.start()
        if ask.model not in self._models and ask.model != NO_MODEL:
            self.refresh_routes()
        self.own(session, ask.id)
        if self._held is not None:
            self._held[ask.id] = _Held(self.now_s(), lambda: self._submit(ask))
        else:
            self._submit(ask)

    def _submit(self, ask: Ask) -> None:
        repeated = self.repeats.claim(ask, self.now_s())
        if repeated is not None:
            self.act([repeated])
            return
        decisions = self.brain.submit(ask, self.now_s())
        self.act(decisions)
        if decisions and type(decisions[-1]) is Queued and decisions[-1].reason is Reason.WAKING:
            self._ask_for_wake_ups()

    def _ask_for_wake_ups(self) -> None:
        if self._desk is not None:
            for model in self.brain.waiting_to_wake():
                self._desk.want(model)

    def _cannot_wake(self, model: str, why: str) -> None:
        log.warning("pool_not_woken", model=model, reason=why)
        now_s = self.now_s()
        self.act(self.brain.cannot_wake(model, until_s=now_s + self._tunables.cannot_wake_s, now_s=now_s))

    def wait_again(self, ask: Ask, *, waited_s: float) -> None:
        """Of one that was restored."""

        def wait() -> None:
            now_s = self.now_s()
            self.act(self.brain.restore_waiting(ask, waited_s=now_s - asked_s, now_s=now_s))

        asked_s = self.now_s() - waited_s
        if self._held is not None:
            self._held[ask.id] = _Held(asked_s, wait)
        else:
            wait()

    def release(self, request_id: str) -> None:
        """It does not ask any longer."""
        if self._held is not None:
            self._held.pop(request_id, None)

    def own(self, session: Session, request_id: str) -> None:
        session.ids.add(request_id)
        self._owners[request_id] = session

    def forget(self, session: Session, request_id: str) -> None:
        session.ids.discard(request_id)
        self._owners.pop(request_id, None)

    def act(self, decisions: list[Decision]) -> None:
        """Hand decisions to those they are about, and see that time is looked at when it must be."""
        if self._is_closed:
            return
        if self._mandate is not None and decisions and not self.is_holding and not self._mandate.holds(self.now_s()):
            self._on_unfit()
            return
        by_session: dict[Session, list[Decision]] = {}
        for decision in decisions:
            session = self._owners.get(decision.id)
            if session is not None:
                by_session.setdefault(session, []).append(decision)
                if type(decision) is Refused:
                    self.forget(session, decision.id)
                    self.repeats.ended(decision.id, made_tokens=False, now_s=self.now_s())
        for session, its in by_session.items():
            session.deliver(its)
        self.arm()

    # The control state

    def _hop(self, call: Callable[[], None]) -> None:
        """From the feed's thread to the loop."""
        if self._loop is not None and not self._is_closed:
            try:
                self._loop.call_soon_threadsafe(call)
            except RuntimeError:
                log.info("state_changed_after_loop_closed")

    def refresh_routes(self) -> None:
        """Bring every pool up to the state's models and replicas."""
        if self._is_closed:
            return
        models = {model.public_id: model for model in self._state.models()}
        now_s = self.now_s()
        for gone in self._models - models.keys():
            self.act(self.brain.drop_pool(gone, now_s))
        self._models = set(models)
        for model in models.values():
            self._refresh_model(model, now_s)

    def _refresh_model(self, model: ModelEntry, now_s: float) -> None:
        targets = self._tunables.targets or model.targets
        self.brain.set_pool(model.public_id, max_queued=model.max_queued, targets=targets, now_s=now_s)
        hold_limit_s = model.hold_limit_s if self._desk is not None else 0.0
        self.brain.set_waking(model.public_id, hold_limit_s=hold_limit_s, start_s=model.start_s)
        specs = [self._spec(replica, model) for replica in self._state.replicas(model.public_id)]
        self.act(self.brain.set_replicas(model.public_id, specs, now_s, model.versions))

    def _spec(self, replica: ReplicaEntry, model: ModelEntry) -> ReplicaSpec:
        return ReplicaSpec(
            id=replica.id,
            max_in_flight=replica.max_in_flight,
            min_in_flight=min(model.min_in_flight, replica.max_in_flight),
            epoch=replica.epoch,
            zone=replica.zone,
            address=replica.url,
            version=replica.version,
        )

    def refresh_terms(self, tenants: Iterable[str]) -> None:
        for tenant in tenants:
            self.act(self.brain.set_terms(self._state.terms(tenant), self.now_s()))
            self._tell_months(tenant)
            self._tell_balance(tenant)

    def refresh_balances(self, tenants: Iterable[str]) -> None:
        for tenant in tenants:
            self._tell_balance(tenant)

    def refresh_months(self, tenants: Iterable[str]) -> None:
        for tenant in tenants:
            self._tell_months(tenant)

    def _tell_months(self, tenant: str) -> None:
        """What the ledger says was spent. Rows may come late or twice: the limiter counts nothing twice."""
        unix_s, now_s = self._clock.now().timestamp(), self.now_s()
        for told in self._state.spend(tenant, now_s=unix_s):
            self.brain.set_month(
                tenant,
                spent_picos=told.spent_picos,
                ends_s=now_s + told.ends_s - unix_s,
                now_s=now_s,
                scope=told.scope,
                raised_picos=told.raised_picos,
                lowered_picos=told.lowered_picos,
            )

    def _tell_balance(self, tenant: str) -> None:
        """Also of one who pays later: its plan may change while it spends."""
        told, unix_s, now_s = self._state.balance(tenant), self.unix_s(), self.now_s()
        self.brain.set_balance(
            tenant,
            credit_picos=told.credit_picos,
            spent_picos=told.spent_picos,
            expiring=[(now_s + at_s - unix_s, picos) for at_s, picos in told.expiring],
            told_by=told.told_by,
            now_s=now_s,
        )

    # Time

    def arm(self) -> None:
        """See that the timer fires no later than the brain needs; one that fires early looks and sleeps again."""
        if self._is_closed or self._loop is None:
            return
        now_s = self.now_s()
        next_s = self.brain.next_event_s(now_s)
        if next_s is None or next_s >= self._timer_at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = next_s
        self._timer = self._loop.call_later(max(next_s - now_s, _MIN_TIMER_S), self.tick)

    def _tick_regularly(self) -> None:
        """Where they stand, for those who wait; and months that have ended."""
        assert self._loop is not None
        self._ticker = self._loop.call_later(self._tunables.positions_s, self._tick_regularly)
        now_s = self.now_s()
        waiting = self.brain.positions(now_s)
        if waiting:
            self.act([*waiting])
            self._ask_for_wake_ups()
        if now_s >= self._next_months_s:
            self._next_months_s = now_s + self._tunables.months_s
            self.refresh_months([terms.tenant for terms in self._state.all_terms() if terms.limits])

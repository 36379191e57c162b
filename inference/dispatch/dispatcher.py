"""The brain of one gateway process: futures around the admission policy. Lives on the event loop."""

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from headway import env
from headway.clock import Clock
from headway.errors import HeadwayError
from inference.dispatch.share import Share
from inference.errors import NoReplicaReady, QueueFull, QueueTimeout, UnknownModel
from inference.gateway.state import ControlState, ReplicaEntry
from inference.policy.admission import (
    Admission,
    AdmissionTunables,
    Admit,
    Decision,
    PoolSnapshot,
    Reason,
    Refuse,
    ReplicaSpec,
    Ticket,
)

log = structlog.get_logger(__name__)

# A timer that fires a hair early must not spin.
_MIN_TIMER_S = 0.001


def admission_tunables_from_env() -> AdmissionTunables:
    default = AdmissionTunables()
    return AdmissionTunables(
        queue_timeout_s=env.seconds("HEADWAY_QUEUE_TIMEOUT_S", default.queue_timeout_s),
        replica_hold_s=env.seconds("HEADWAY_REPLICA_HOLD_S", default.replica_hold_s),
        cool_down_s=env.seconds("HEADWAY_REPLICA_COOL_DOWN_S", default.cool_down_s),
        max_cool_down_s=env.seconds("HEADWAY_REPLICA_MAX_COOL_DOWN_S", default.max_cool_down_s),
        no_replica_retry_after_s=env.seconds(
            "HEADWAY_NO_REPLICA_RETRY_AFTER_S", default.no_replica_retry_after_s, at_least=1.0
        ),
        max_retry_after_s=env.seconds("HEADWAY_MAX_RETRY_AFTER_S", default.max_retry_after_s, at_least=1.0),
    )


@dataclass(frozen=True, slots=True)
class Ask:
    request_id: str
    model: str
    tenant_id: str
    tier: str
    prompt_tokens_bound: int
    max_tokens: int
    excluded: frozenset[str] = frozenset()  # ids of replicas this request has tried


class Grant:
    """A slot on a replica. Whoever got it gives it back, once, on the event loop: `release` or `replica_failed`."""

    __slots__ = ("_dispatcher", "_model", "_ticket", "queue_ms", "replica")

    def __init__(self, dispatcher: "LocalDispatcher", model: str, ticket: int, replica: ReplicaEntry, queue_ms: int) -> None:
        self.replica = replica
        self.queue_ms = queue_ms
        self._dispatcher = dispatcher
        self._model = model
        self._ticket = ticket

    def release(self) -> None:
        """Give the slot back, and wake the next in the queue. Again: nothing happens."""
        self._dispatcher._release(self._model, self._ticket)

    def replica_failed(self, reason: str) -> None:
        """Nothing came back from the replica: give the slot back and leave the replica alone for a short while."""
        log.warning("replica_cools_down", replica=self.replica.id, model=self._model, reason=reason)
        self._dispatcher._fail(self._model, self._ticket)


class _Pool:
    """One model's queue, and the futures of those who wait in it."""

    def __init__(self, model: str, tunables: AdmissionTunables) -> None:
        self.model = model
        self.admission = Admission(tunables, max_queued=0)
        self.entries: dict[str, ReplicaEntry] = {}
        self.futures: dict[int, asyncio.Future[Grant]] = {}
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at_s = float("inf")

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer, self.timer_at_s = None, float("inf")


class LocalDispatcher:
    """Its methods belong to one event loop, the one `submit` first runs on; the state may change from any thread."""

    def __init__(self, state: ControlState, tunables: AdmissionTunables, clock: Clock, share: Share | None = None) -> None:
        self._state = state
        self._share = share or Share()
        self._tunables = tunables
        self._clock = clock
        self._pools: dict[str, _Pool] = {}
        self._tickets = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        state.on_routes_changed(self._routes_changed)

    async def submit(self, ask: Ask) -> Grant:
        """Wait for a slot on a replica of `ask.model`.

        Raises UnknownModel, NoReplicaReady, QueueFull, QueueTimeout; those of the last three carry retry_after_s.
        Cancelling the task leaves the queue and leaks nothing, in whatever turn of the loop it happens.
        """
        pool = self._pool(ask.model)
        ticket = Ticket(number=next(self._tickets), tier=ask.tier, excluded=ask.excluded)
        future: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        pool.futures[ticket.number] = future
        grant: Grant | None = None
        try:
            self._settle(pool, pool.admission.submit(ticket, self._clock.monotonic_s()))
            grant = future.result() if future.done() else await future
        finally:
            pool.futures.pop(ticket.number, None)
            if grant is None:
                self._abandon(pool, ticket.number, future)
        return grant

    def snapshot(self) -> dict[str, PoolSnapshot]:
        now_s = self._clock.monotonic_s()
        return {model: pool.admission.snapshot(now_s) for model, pool in self._pools.items()}

    def tick(self) -> None:
        """What the timers do; for tests whose clock moves by hand."""
        for pool in list(self._pools.values()):
            self._expire(pool)

    def close(self) -> None:
        """Refuse all who wait and all who come; what runs may run on."""
        self._is_closed = True
        for pool in self._pools.values():
            pool.stop_timer()
            for future in pool.futures.values():
                if not future.done():
                    future.set_exception(self._closing())

    # Routes

    def _pool(self, model: str) -> _Pool:
        if self._is_closed:
            raise self._closing()
        if self._loop is None:
            # Set before the state is read: a change that comes in between is either seen here or hops to this loop.
            self._loop = asyncio.get_running_loop()
            self._refresh()
        if self._state.model(model) is None:
            raise UnknownModel(f"The model {model!r} does not exist. GET /v1/models lists those that do.", param="model")
        if model not in self._pools:
            self._refresh()
        return self._pools[model]

    def _routes_changed(self) -> None:
        """On the feed's thread."""
        if self._loop is not None and not self._is_closed:
            try:
                self._loop.call_soon_threadsafe(self._refresh)
            except RuntimeError:
                log.info("routes_changed_after_loop_closed")

    def _refresh(self) -> None:
        """Bring every pool up to the state's models and replicas."""
        if self._is_closed:
            return
        models = {model.public_id: model for model in self._state.models()}
        for public_id in models.keys() - self._pools.keys():
            self._pools[public_id] = _Pool(public_id, self._tunables)
        for pool in list(self._pools.values()):
            model = models.get(pool.model)
            if model is not None:
                pool.admission.max_queued = model.max_queued
            self._set_replicas(pool, self._state.replicas(pool.model) if model is not None else ())
            if model is None and pool.admission.is_idle():
                pool.stop_timer()
                del self._pools[pool.model]

    def _set_replicas(self, pool: _Pool, replicas: Iterable[ReplicaEntry]) -> None:
        pool.entries = {replica.id: replica for replica in replicas}
        specs = [
            ReplicaSpec(id=replica.id, max_in_flight=self._share.of(replica.max_in_flight), epoch=replica.epoch)
            for replica in pool.entries.values()
        ]
        self._settle(pool, pool.admission.set_replicas(specs, self._clock.monotonic_s()))

    # Decisions become results

    def _settle(self, pool: _Pool, decisions: list[Decision]) -> None:
        for decision in decisions:
            future = pool.futures.get(decision.ticket)
            # Done without a result read: its task was cancelled in this turn, and gives the slot back when it runs.
            if future is None or future.done():
                continue
            if isinstance(decision, Admit):
                queue_ms = round(decision.waited_s * 1000)
                entry = pool.entries[decision.replica]
                future.set_result(Grant(self, pool.model, decision.ticket, entry, queue_ms))
            elif isinstance(decision, Refuse):
                future.set_exception(_error(decision, pool.model))
        self._arm(pool)

    def _release(self, model: str, ticket: int) -> None:
        pool = self._pools.get(model)
        if pool is not None:
            self._settle(pool, pool.admission.release(ticket, self._clock.monotonic_s()))

    def _fail(self, model: str, ticket: int) -> None:
        pool = self._pools.get(model)
        if pool is not None:
            self._settle(pool, pool.admission.fail(ticket, self._clock.monotonic_s()))

    def _abandon(self, pool: _Pool, ticket: int, future: asyncio.Future[Grant]) -> None:
        """The asker got no grant, or will not see the one he got: he was refused, or his task was cancelled."""
        if future.done() and not future.cancelled():
            future.exception()  # mark it as seen
        self._settle(pool, pool.admission.cancel(ticket, self._clock.monotonic_s()))

    # One timer a pool

    def _arm(self, pool: _Pool) -> None:
        """See that the pool's timer fires no later than the policy needs; one that fires early looks and sleeps again."""
        if self._is_closed or self._loop is None:
            return
        now_s = self._clock.monotonic_s()
        next_s = pool.admission.next_event_s(now_s)
        if next_s is None or next_s >= pool.timer_at_s:
            return
        pool.stop_timer()
        pool.timer_at_s = next_s
        pool.timer = self._loop.call_later(max(next_s - now_s, _MIN_TIMER_S), self._expire, pool)

    def _expire(self, pool: _Pool) -> None:
        pool.stop_timer()
        self._settle(pool, pool.admission.expire(self._clock.monotonic_s()))

    @staticmethod
    def _closing() -> HeadwayError:
        return NoReplicaReady("This gateway is shutting down. Retry.", retry_after_s=1.0)


def _error(refusal: Refuse, model: str) -> HeadwayError:
    after_s = refusal.retry_after_s
    match refusal.reason:
        case Reason.QUEUE_FULL:
            return QueueFull(f"Every replica of {model!r} is busy and the queue is full. Retry later.", retry_after_s=after_s)
        case Reason.QUEUE_TIMEOUT:
            return QueueTimeout(f"No replica of {model!r} became free in time. Retry later.", retry_after_s=after_s)
        case Reason.ALL_TRIED:
            return NoReplicaReady(f"Every replica of {model!r} was tried, and none answered. Retry.", retry_after_s=after_s)
        case _:
            return NoReplicaReady(f"No replica of {model!r} is serving at the moment. Retry.", retry_after_s=after_s)

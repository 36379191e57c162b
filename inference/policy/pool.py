"""One version's requests and replicas: who is let through, to which replica, who waits, who is parked, who is sent away.

A call that may free a slot, or make one usable, lets those through that can use it before it returns: so a new asker
need only be tried itself. A limit's slots and the router's are taken together in `_grant`, and given back together.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite

from inference.policy.brain_tunables import BrainTunables, refuse_misordered
from inference.policy.decisions import (
    Ask,
    Decision,
    Ending,
    Granted,
    Queued,
    RateView,
    Reason,
    Refused,
    ReplicaSpec,
    RetryKind,
    Scope,
    StateFrame,
    Tier,
    TierTargets,
    Usage,
)
from inference.policy.entry import Entry, LineClass, Stage
from inference.policy.fair_queue import FairQueue, Place
from inference.policy.jain import ServiceWindow
from inference.policy.limits import Limiter
from inference.policy.patience import Patience
from inference.policy.pool_load import PoolLoad
from inference.policy.routing import Choice, ReplicaView, Router
from inference.policy.served import Served, usage_so_far
from inference.policy.waiting_times import WaitingTimes


@dataclass(frozen=True, slots=True)
class VersionSnapshot:
    in_flight: int
    queued: int
    capacity: int


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    in_flight: int
    queued: int
    capacity: int
    queued_by_tier: dict[Tier, int] = field(default_factory=dict)
    in_flight_by_replica: dict[str, int] = field(default_factory=dict)
    caps: dict[str, int] = field(default_factory=dict)
    long_prefills: int = 0
    parked: int = 0
    """Since the start."""
    jain_index: float = 1.0
    acceptance: dict[str, float] = field(default_factory=dict)
    """Of speculation, by replica; those that do not speculate are left out."""
    replicas: dict[str, ReplicaView] = field(default_factory=dict)
    waiting_tokens: int = 0
    """Of the prompts of those who wait."""
    targets: Mapping[Tier, TierTargets] = field(default_factory=dict)
    versions: dict[str, VersionSnapshot] = field(default_factory=dict)
    """By label, where the model's versions are told of."""


class Pool:
    def __init__(
        self,
        tunables: BrainTunables,
        limiter: Limiter,
        router: Router,
        blocked: "dict[tuple[str, Scope], dict[Pool, None]]",
        weight_of: Mapping[str, float],
        window: ServiceWindow,
    ) -> None:
        """`blocked` is shared by all pools: which wait for a slot of a tenant's scope. `window` by those of its model."""
        self.is_full: Callable[[Tier], bool] = lambda _tier: True
        """Whether one more of this tier may not wait; it is its model that knows (ModelPools)."""
        self.queue = FairQueue(tunables.queue)
        self.router = router
        self.stand_in: Pool | None = None
        """Who serves what would be refused here, and need not be served here: the stable version's pool."""
        self._tunables = tunables
        self._limiter = limiter
        self._blocked = blocked
        self.served = Served(self.queue, weight_of, window)
        self._load = PoolLoad(tunables)
        self._times = WaitingTimes()
        self._patience = Patience(tunables, router)
        self._has_new_room = False

    # What it is

    def set_targets(self, targets: Mapping[Tier, TierTargets]) -> None:
        """Raises ValueError for targets that are out of order."""
        refuse_misordered(targets)
        self._load.caps.targets = dict(targets)
        self._patience.is_served = True

    def set_replicas(self, specs: Iterable[ReplicaSpec], now_s: float) -> None:
        """These, and no others, are ready. What runs on one that has gone runs on; it gets nothing new. Then `look_again`."""
        wanted = list(specs)
        fresh = self.router.set_replicas(wanted, now_s)
        had_any = self._load.num_usable > 0
        for replica, cap in self._load.set_replicas(wanted):
            self.router.set_cap(replica, cap)
        if had_any and not self._load.num_usable:
            self._patience.hold(now_s)
        if self._patience.waking.is_under_way and self._load.num_usable:
            self._has_woken()
        self._forgive(fresh, now_s)

    def look_again(self, now_s: float) -> list[Decision]:
        """What those who wait get of other replicas than before."""
        return self._refuse_in_vain(now_s) + self.promote(now_s)

    def set_waking(self, *, hold_limit_s: float, start_s: float) -> None:
        """How long requests wait for this pool to wake, when nothing serves; 0: they are refused."""
        self._patience.waking.set(hold_limit_s=hold_limit_s, start_s=start_s)

    @property
    def waits_to_wake(self) -> bool:
        """Somebody waits, and something is to be started for him."""
        return self._patience.waking.is_under_way and self.queue.num_waiting > 0

    def cannot_wake(self, until_s: float, now_s: float) -> list[Decision]:
        """Nobody starts anything: who waits for that, and who comes until then, is refused."""
        self._patience.waking.cannot(until_s)
        return [] if self._load.num_usable else self._refuse_in_vain(now_s)

    def drop(self, now_s: float) -> list[Decision]:
        """It serves no longer: who waits is refused, what runs runs on."""
        self._load.num_usable = 0
        self._patience.drop()
        self.set_replicas([], now_s)
        return self.look_again(now_s)

    def has_replica(self, replica: str) -> bool:
        return self._load.caps.knows(replica)

    def is_idle(self) -> bool:
        return not self._load.in_flight and not self.queue.num_waiting

    # Coming

    def ask(self, entry: Entry, now_s: float) -> list[Decision]:
        """The entry's own decision is the last."""
        decisions = self.promote(now_s) if self._may_promote(now_s) else []
        self._begin_ask(entry, now_s)
        own = self._try(entry, now_s) or self._refuse_at_once(entry, now_s) or self._wait(entry, now_s)
        if entry.stage is Stage.WAITING:
            decisions += self._serve_late(now_s)
        decisions.append(own)
        return decisions

    def wait_again(self, entry: Entry, now_s: float, *, waited_s: float = 0.0) -> Decision:
        """One that is not refused however full the queue: parked, or restored. The caller promotes."""
        self._begin_ask(entry, now_s - waited_s)
        self._patience.waits_again(entry.ask, now_s)
        return self._wait(entry, now_s)

    def let_move(self, entry: Entry) -> None:
        """It waits, and will wait in another version's pool."""
        self._stop_waiting(entry)
        self.queue.remove(entry)
        entry.stage = Stage.AWAY

    def takes_waiting(self, entry: Entry, now_s: float) -> Decision:
        """One of another version's pool, in the place of its arrival and with the time it has left. Then `look_again`."""
        entry.is_restored = True
        return self.wait_again(entry, now_s, waited_s=now_s - entry.asked_s)

    def takes_over(self, entry: Entry, now_s: float) -> Decision:
        """One that another version's pool would have refused; it does not wait any more."""
        entry.ask = replace(entry.ask, conversation=b"")
        self._begin_ask(entry, entry.asked_s)
        return self._try(entry, now_s) or self._refuse_at_once(entry, now_s) or self._wait(entry, now_s)

    def parked(self, entry: Entry) -> None:
        """It was taken off its replica (`leave`) for another, and will `wait_again`."""
        self._load.parking.parked(entry)
        entry.is_parked = True

    def restore_away(self, entry: Entry, now_s: float) -> None:
        """It neither waits nor runs, and will ask again or end."""
        self._begin_ask(entry, now_s)

    def restore_running(self, entry: Entry, replica: str, now_s: float) -> bool:
        """It runs there already. False: above what may run there, or nobody knows the replica."""
        self._begin_ask(entry, now_s)
        is_known = self.router.restore(entry.ask, replica, now_s)
        self._load.begin(entry, replica if is_known else "", now_s)
        return is_known and not self._load.caps.is_over(replica)

    # Running and leaving

    def first_token(self, entry: Entry, now_s: float) -> None:
        if entry.stage is Stage.RUNNING:
            self.router.first_token(entry.id, now_s)
            self._has_begun(entry, now_s)

    def progress(self, entry: Entry, completion_tokens: int, now_s: float) -> None:
        """How many tokens it has made so far, over all its attempts."""
        if entry.stage is not Stage.RUNNING or completion_tokens <= entry.completion_tokens:
            return
        self.router.progress(entry.id, completion_tokens, now_s)
        entry.completion_tokens = completion_tokens
        self._has_begun(entry, now_s)
        self.served.told(entry, now_s)

    def leave(self, entry: Entry, ending: Ending, usage: Usage | None, now_s: float) -> Entry | None:
        """It waits or runs no longer. Who it was being parked for, and still waits: the first to `promote`."""
        if entry.stage is Stage.WAITING:
            self._stop_waiting(entry)
            self.queue.remove(entry)
            entry.stage = Stage.AWAY
        elif entry.stage is Stage.RUNNING:
            self.router.end(entry.id, ending, usage, now_s)
            self._load.end(entry)
        asker, entry.park_for = entry.park_for, None
        if asker is None:
            return None
        if asker.parks is entry:
            asker.parks = None
        if asker.stage is not Stage.WAITING:
            return None
        self._load.parking.is_late(asker)  # should it get nothing now, another is parked for it
        return asker

    # What time and others decide

    def promote(self, now_s: float, first: Entry | None = None) -> list[Decision]:
        """Let those through who can use what is free, `first` before all others."""
        self._has_new_room = False
        decisions: list[Decision] = []
        if first is not None and first.stage is Stage.WAITING:
            granted = self._try(first, now_s)
            if granted is not None:
                decisions.append(granted)
        barred: set[LineClass] = set()
        while self.queue.num_waiting:
            has_room = self.router.has_room(now_s)
            if not has_room and not self.queue.has_exclusions():
                break
            entry = self.queue.next(barred, now_s, bars_long=not self._load.may_read_long(), bars_plain=not has_room)
            if entry is None:
                break
            scope = self._limiter.can_start(entry.ask)
            if scope is not None:
                self._block(entry, scope)
                continue
            choice = self.router.choose(entry.ask, now_s)
            if choice is None:
                barred.add(entry.line_class)
            else:
                decisions.append(self._grant(entry, choice, now_s))
        return decisions

    def frame(self, replica: str, frame: StateFrame, now_s: float) -> list[Decision]:
        """What the agent says of a replica; also when its batch cap is looked at."""
        self.router.frame(replica, frame, now_s)
        cap = self._load.caps.measured(replica, self.router.inter_token_s(replica, now_s), now_s)
        if cap is not None:
            self.router.set_cap(replica, cap)
        return (self.promote(now_s) if self._may_promote(now_s) else []) + self._serve_late(now_s)

    def expire(self, now_s: float) -> list[Decision]:
        """What time alone decides. Call it at `next_event_s`."""
        decisions: list[Decision] = []
        for entry in self._times.expired(now_s):
            longer_s = self._patience.waits_on_until_s(entry, now_s)
            if longer_s is not None:
                self._expires_at(entry, longer_s)
            else:
                decisions.append(self._refuse(entry, self._patience.why_expired(entry), now_s))
        if not self._load.num_usable:
            self._patience.looks(now_s)
            decisions += self._refuse_in_vain(now_s)
        for entry in self._times.late(now_s):
            self._load.parking.is_late(entry)
        if self._may_promote(now_s):
            decisions += self.promote(now_s)
        return decisions + self._serve_late(now_s)

    def next_event_s(self, now_s: float) -> float | None:
        if not self.queue.num_waiting:
            return None
        if self._has_new_room or self._to_squeeze() is not None:
            return now_s
        times = [self._times.next_s(), self.router.next_event_s(now_s), self._load.parking.next_check_s()]
        if not self._load.num_usable:
            times.append(self._patience.hold_ends_s())
        return min((max(at_s, now_s) for at_s in times if at_s is not None), default=None)

    def _serve_late(self, now_s: float) -> list[Decision]:
        """Who would miss its target: beyond a replica's batch cap if it can be, else batch work is parked for it."""
        decisions: list[Decision] = []
        while found := self._to_squeeze():
            entry, replica = found
            decisions.append(self._grant(entry, self.router.choice_on(entry.ask, replica, now_s), now_s))
        return decisions + self._load.park_for_late(self._could_start, now_s)

    def _to_squeeze(self) -> tuple[Entry, str] | None:
        """One that is late, and the replica that takes it beyond its cap. What else keeps it waiting keeps it here too."""
        for entry in self._load.parking.late():
            excluded, is_long = entry.line_class
            if not self._could_start(entry) or (is_long and not self._load.may_read_long()):
                continue
            for replica in self._load.caps.squeezable():
                if replica not in excluded and self.router.is_well(replica):
                    return entry, replica
        return None

    # What others see

    def positions(self, now_s: float) -> Iterator[Queued]:
        for entry, place in self.queue.places():
            yield self._queued(entry, place, self._predicted_wait_s(place, now_s))

    def snapshot(self, now_s: float) -> PoolSnapshot:
        return PoolSnapshot(
            in_flight=self._load.in_flight,
            queued=self.queue.num_waiting,
            capacity=self.router.capacity(),
            queued_by_tier={tier: self.queue.waiting[tier] for tier in Tier},
            in_flight_by_replica=self._load.caps.in_flight(),
            caps=self._load.caps.caps(),
            long_prefills=self._load.long_prefills,
            parked=self._load.parking.num_parked,
            acceptance=self.router.acceptance(),
            replicas=self.router.snapshot(now_s).replicas,
            waiting_tokens=sum(entry.ask.work_tokens for entry in self.queue.entries()),
            targets=self._load.caps.targets,
        )

    # Steps of asking

    def _begin_ask(self, entry: Entry, asked_s: float) -> None:
        entry.asked_s = asked_s
        ask = entry.ask
        if entry.pool is not self:
            entry.pool, entry.account, entry.charged = self, None, 0.0
        if entry.account is None:
            entry.account = self.queue.account(ask.tenant, entry.tier, self.served.weight(ask.tenant))
        entry.line_class = self._line_class(ask)

    def _try(self, entry: Entry, now_s: float) -> Granted | None:
        """Through at once, if nothing keeps it."""
        excluded, is_long = entry.line_class
        if is_long and not self._load.may_read_long():
            return None
        if not excluded and not self.router.has_room(now_s):
            return None
        scope = self._limiter.can_start(entry.ask)
        if scope is not None:
            self._block(entry, scope)
            return None
        choice = self.router.choose(entry.ask, now_s)
        return None if choice is None else self._grant(entry, choice, now_s)

    def _refuse_at_once(self, entry: Entry, now_s: float) -> Decision | None:
        why = self._patience.is_in_vain(entry.ask, now_s)
        if why is not None:
            return self._refuse(entry, why, now_s)
        if not entry.num_grants and self.is_full(entry.tier):
            return self._refuse(entry, Reason.QUEUE_FULL, now_s)
        return None

    def _wait(self, entry: Entry, now_s: float) -> Decision:
        entry.stage = Stage.WAITING
        if not self._load.num_usable and self._patience.waking.may(now_s):
            self._patience.waking.begin(now_s)
        self.queue.add(entry, now_s)
        self.served.had_to_wait(entry, now_s)
        place = self.queue.place(entry)
        wait_s = self._predicted_wait_s(place, now_s)
        entry.expires_s = self._patience.expires_s(entry, entry.asked_s)
        may_park = entry.tier is not Tier.BATCH and self._load.parking.has_candidates()
        is_new = not entry.num_grants and not entry.is_restored
        if is_new and not may_park and self._load.num_usable and now_s + self._sure_wait_s(place, now_s) > entry.expires_s:
            return self._refuse(entry, Reason.DEADLINE, now_s, predicted_wait_s=wait_s)
        entry.late_at_s = self._late_at_s(entry, wait_s)
        self._times.waits(entry)
        return self._queued(entry, place, wait_s, self._limiter.rates_of(entry.id, now_s))

    def _stop_waiting(self, entry: Entry) -> None:
        self._times.leaves(entry)
        self._load.parking.waits_no_longer(entry)

    def _expires_at(self, entry: Entry, at_s: float) -> None:
        self._times.leaves(entry)
        entry.expires_s = at_s
        self._times.waits(entry)

    def _has_woken(self) -> None:
        """From now on who waits does so for a slot."""
        self._patience.waking.is_awake()
        for entry in list(self.queue.entries()):
            self._expires_at(entry, max(entry.expires_s, self._patience.expires_s(entry, entry.asked_s)))

    def _forgive(self, fresh: frozenset[str], now_s: float) -> None:
        """Another engine has failed nobody: who had tried the one before it may try it, and has time for that."""
        for line_class, _ in list(self.queue.classes()):
            for entry in self.queue.of_class(line_class) if line_class[0] & fresh else ():
                self.queue.remove(entry)
                entry.ask = replace(entry.ask, excluded=entry.ask.excluded - fresh)
                entry.line_class = self._line_class(entry.ask)
                self.queue.add(entry, now_s)
                self._expires_at(entry, max(entry.expires_s, self._patience.expires_s(entry, now_s)))

    def _line_class(self, ask: Ask) -> LineClass:
        return ask.excluded, ask.work_tokens >= self._tunables.long_prompt_tokens

    def _late_at_s(self, entry: Entry, wait_s: float) -> float | None:
        target = self._load.caps.targets.get(entry.tier)
        if target is None or entry.tier is Tier.BATCH:
            return None
        may_wait_s = target.ttft_s * self._tunables.parking.wait_ratio
        return entry.asked_s + (may_wait_s if wait_s <= may_wait_s else 0.0)

    def _queued(self, entry: Entry, place: Place, wait_s: float, rates: RateView | None = None) -> Queued:
        return Queued(
            id=entry.id,
            reason=self._waits_for(entry),
            position=place.position,
            predicted_wait_s=wait_s,
            tier=entry.tier,
            rates=rates,
        )

    def _waits_for(self, entry: Entry) -> Reason:
        if not self._load.num_usable:
            return Reason.WAKING if self._patience.waking.is_under_way else Reason.NO_REPLICA
        if self.queue.is_blocked(entry):
            return Reason.CONCURRENCY
        return Reason.PARKED if entry.is_parked else Reason.ALL_BUSY

    def _predicted_wait_s(self, place: Place, now_s: float) -> float:
        if not self._load.num_usable and self._patience.waking.is_under_way:
            return self._patience.waking.left_s(now_s)
        wait_s = self.router.predicted_wait_s(place.prefill_tokens_ahead, place.position - 1, now_s)
        return wait_s if isfinite(wait_s) else self._tunables.queue_timeout_s

    def _sure_wait_s(self, place: Place, now_s: float) -> float:
        wait_s = self.router.sure_wait_s(place.prefill_tokens_ahead, place.position - 1, now_s)
        return wait_s if isfinite(wait_s) else self._tunables.queue_timeout_s

    def _may_promote(self, now_s: float) -> bool:
        return self.queue.num_waiting > 0 and (self._has_new_room or self.router.has_room(now_s))

    def _block(self, entry: Entry, scope: Scope) -> None:
        self.queue.block(entry, scope)
        self._blocked.setdefault((entry.ask.tenant, scope), {})[self] = None

    # Steps of running

    def _grant(self, entry: Entry, choice: Choice, now_s: float) -> Granted:
        ask = entry.ask
        self._limiter.start(ask.id)
        self.router.begin(ask, choice, now_s)
        if not entry.has_begun:
            entry.cached_tokens = choice.cached_tokens
        if entry.stage is Stage.WAITING:
            self._stop_waiting(entry)
        self.queue.let_through(entry, now_s)
        self._load.begin(entry, choice.replica, now_s)
        return Granted(
            id=ask.id,
            replica=choice.replica,
            reason=choice.reason,
            tier=entry.tier,
            max_tokens=entry.max_tokens,
            waited_s=now_s - entry.asked_s,
            predicted_ttft_s=choice.predicted_ttft_s,
            predicted_cached_tokens=choice.cached_tokens,
            engine_priority=int(entry.tier),
            rates=self._limiter.rates_of(ask.id, now_s),
        )

    def _has_begun(self, entry: Entry, now_s: float) -> None:
        if not entry.has_begun:
            entry.has_begun = True
            self.served.told(entry, now_s)
        if self._load.has_read(entry) or self.router.has_room(now_s):  # a probe that answers opens its replica
            self._has_new_room = True

    def _could_start(self, entry: Entry) -> bool:
        return self._limiter.can_start(entry.ask) is None

    # Steps of refusing

    def _refuse(self, entry: Entry, reason: Reason, now_s: float, predicted_wait_s: float | None = None) -> Decision:
        """Whether it waited already or not. What it was served stays paid, the rest is given back."""
        if entry.stage is Stage.WAITING:
            self.let_move(entry)
        if self.stand_in is not None and not entry.ask.version:
            return self.stand_in.takes_over(entry, now_s)
        ask = entry.ask
        if entry.has_begun:
            self._limiter.settle(ask.id, usage_so_far(entry), now_s)
        else:
            self._limiter.undo(ask.id, now_s)
        self.served.stopped(entry, now_s)
        entry.is_refused = True
        if reason in {Reason.NO_REPLICA, Reason.ALL_TRIED}:
            retry_after_s = self._tunables.no_replica_retry_after_s
        else:
            last = self.queue.last_place() if predicted_wait_s is None else None
            expected_s = predicted_wait_s if last is None else self._predicted_wait_s(last, now_s)
            retry_after_s = min(max(1.0, expected_s or 0.0), self._tunables.max_retry_after_s)
        return Refused(
            id=ask.id,
            reason=reason,
            retry_after_s=retry_after_s,
            retry_kind=RetryKind.ESTIMATE,
            predicted_wait_s=predicted_wait_s,
            rates=self._limiter.rates(ask.tenant, ask.key, ask.model, now_s),
        )

    def _refuse_in_vain(self, now_s: float) -> list[Decision]:
        """Those who wait for what will not come."""
        refused: list[Decision] = []
        for line_class, one in list(self.queue.classes()):
            if self.router.hopeless(one.ask) is None:
                continue  # nor is it for the others of the class
            for entry in self.queue.of_class(line_class):
                why = self._patience.is_in_vain(entry.ask, now_s)
                if why is not None:
                    refused.append(self._refuse(entry, why, now_s))
        return refused

    def check_invariants(self, entries: Collection[Entry], now_s: float) -> None:
        """What must hold after any call with this `now_s`; `entries`: all of this pool. For tests."""
        self.queue.check_invariants()
        self.router.check_invariants(now_s)
        running = [entry for entry in entries if entry.stage is Stage.RUNNING]
        waiting = [entry for entry in entries if entry.stage is Stage.WAITING]
        self._load.check_invariants(running)
        self.queue.check_running(running)
        assert self.router.in_flight() == sum(1 for entry in running if entry.replica)
        assert {entry.id for entry in self.queue.entries()} == {entry.id for entry in waiting}
        for entry in waiting:
            next_s = self._times.next_s()
            assert next_s is not None and next_s <= entry.expires_s, "it would never be refused"
            if not self._has_new_room and self._limiter.can_start(entry.ask) is None:
                held = entry.line_class[1] and not self._load.may_read_long()
                assert held or self.router.choose(entry.ask, now_s) is None, "someone waits while a slot is free for him"

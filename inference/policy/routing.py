"""Which replica serves a request: the one that is predicted to give its first token soonest, on a short list.

    predicted TTFT = overhead + (prefill queue + own uncached prompt tokens) / prefill rate

The list: the few replicas that hold most of the prompt's beginning, and the few least loaded; so a decision costs the
same for ten replicas and for a thousand. What is cached makes a replica that holds the prompt faster, so requests stick
to it until its queue outweighs that; beyond `max_imbalance` times the mean load of its zone it is passed over in any
case. The prefill rate is the one calibrated number per replica, learnt from first tokens, leaning on its pool's.

Sources: cache-aware routing by predicted TTFT is Mooncake's (Qin et al., 2024, algorithm 1); the bound on imbalance that
of consistent hashing with bounded loads (Mirrokni et al., 2018).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from inference.policy.choosing import Choice, Chooser
from inference.policy.decisions import Ask, Ending, Reason, ReplicaSpec, StateFrame, Usage
from inference.policy.fleet import Fleet, Replica, Running
from inference.policy.health import Health, Record
from inference.policy.prefix import PrefixIndex
from inference.policy.routing_tunables import RoutingTunables
from inference.policy.speed import Speeds

__all__ = ["Choice", "ReplicaView", "Router", "RouterSnapshot", "RoutingTunables"]


@dataclass(frozen=True, slots=True)
class ReplicaView:
    in_flight: int
    cap: int
    queued_prefill_tokens: float
    prefill_tokens_per_s: float
    inter_token_s: float | None
    context_tokens: int
    """Prompts and answers of what runs: what decoding reads at each step."""
    cached_blocks: int
    is_usable: bool
    is_ejected: bool
    kv_used_ratio: float | None = None
    """As its agent said last."""
    seen_s_ago: float | None = None
    """Since its agent said anything; None: never."""


@dataclass(frozen=True, slots=True)
class RouterSnapshot:
    in_flight: int
    capacity: int
    replicas: dict[str, ReplicaView]


class Router:
    def __init__(self, tunables: RoutingTunables) -> None:
        self.tunables = tunables
        self._health = Health(tunables.health)
        self._prefix = PrefixIndex(max_entries=tunables.max_index_entries, max_depth=tunables.max_depth_blocks)
        self._fleet = Fleet(fade_s=tunables.fade_s, pace_fade_s=tunables.pace_fade_s)
        self._speeds = Speeds(tunables)
        self._chooser = Chooser(tunables, self._fleet, self._prefix, self._health, self._speeds)
        self._mean_running_s = 1.0
        self._spread_s = tunables.spread_s / tunables.fade_s
        self._events = 0

    # Who there is

    def set_replicas(self, specs: Iterable[ReplicaSpec], now_s: float) -> frozenset[str]:
        """These, and no others, are ready now. What runs goes on and stays counted, whatever changes.

        Returns those that are another engine than before, or were not there.
        """
        wanted = {spec.id: spec for spec in specs}
        for replica in self._fleet.missing(wanted):
            replica.is_ready = False
            self._prefix.forget(replica.id)
            self._place(replica)  # out of all groups
            self._drop_if_gone(replica)
        told = (spec.prefill_tokens_per_s for spec in wanted.values() if spec.prefill_tokens_per_s > 0.0)
        nominal_rate = min(told, default=0.0)
        self._speeds.nominal_rate = nominal_rate or self.tunables.prefill_tokens_per_s
        self._speeds.is_known = self._speeds.is_known or nominal_rate > 0.0
        fresh = frozenset([spec.id for spec in wanted.values() if self._update(spec)])
        self._fleet.regroup()
        for replica in self._fleet.replicas.values():
            self._chooser.refresh(replica, now_s)
            self._place(replica)
        return fresh

    def health_records(self) -> dict[str, Record]:
        """By replica; to look at."""
        return self._health.records

    def set_cap(self, replica: str, cap: int) -> None:
        """At most so many at once, within the replica's own bound; what runs already runs on. Unknown: no error."""
        known = self._fleet.replicas.get(replica)
        if known is not None and known.batch_cap != cap:
            known.batch_cap = max(1, cap)
            known.fit_cap()
            known.slot_s = self.tunables.balance_s / known.cap
            self._place(known)

    def cap_of(self, replica: str) -> int:
        """0: no such replica."""
        known = self._fleet.replicas.get(replica)
        return known.cap if known else 0

    def frame(self, replica: str, frame: StateFrame, now_s: float) -> None:
        """What its agent says; of an unknown replica it is no error."""
        known = self._fleet.replicas.get(replica)
        if known is not None:
            known.frame, known.frame_s = frame, now_s
            known.num_foreign = max(0, (frame.waiting or 0) - len(known.pending))
            self._chooser.refresh(known, now_s)

    def acceptance(self) -> dict[str, float]:
        """Of speculation, by replica, as their agents said last; those that do not speculate are left out."""
        told = {name: known.frame.acceptance_ratio for name, known in self._fleet.replicas.items()}
        return {name: ratio for name, ratio in told.items() if ratio is not None}

    # What to do with an asker

    def has_room(self, now_s: float) -> bool:
        """Somewhere, for someone: `choose` may still say None to one who has tried the replicas that have it."""
        return self._chooser.has_room(now_s)

    def choose(self, ask: Ask, now_s: float) -> Choice | None:
        """None: no room on any that it may use. Changes nothing; `begin` does."""
        return self._chooser.choose(ask, now_s)

    def is_well(self, replica: str) -> bool:
        """It may get something new, and is not ejected."""
        known = self._fleet.replicas.get(replica)
        return known is not None and known.groups is known.well_groups

    def choice_on(self, ask: Ask, replica: str, now_s: float) -> Choice:
        """Of a replica that the owner has chosen, beyond its batch cap."""
        return self._chooser.choice_on(ask, self._fleet.replicas[replica], now_s)

    def hopeless(self, ask: Ask) -> Reason | None:
        """Why waiting would be in vain, as things stand; or None."""
        if not self._fleet.usable:
            return Reason.NO_REPLICA
        return Reason.ALL_TRIED if self._fleet.usable <= ask.excluded else None

    def begin(self, ask: Ask, choice: Choice, now_s: float) -> None:
        """It has been granted what `choose` said, at the same `now_s`."""
        replica = self._fleet.replicas[choice.replica]
        squeezed = choice.reason is Reason.SQUEEZED and replica.in_flight < replica.spec.max_in_flight
        assert replica.is_usable and (replica.has_room() or squeezed), "a cap is never exceeded"
        if choice.reason is Reason.PROBE:
            self._health.probe_begins(replica.id, ask.id)
        uncached = max(1, ask.work_tokens - choice.cached_tokens)
        self._start(ask, replica, choice.cached_tokens // self.tunables.block_tokens, now_s)
        replica.add_pending(ask.id, uncached, now_s)
        replica.work_s = self._spread_s * replica.work.add(uncached, now_s) * replica.s_per_token
        self._place(replica)

    def restore(self, ask: Ask, replica: str, now_s: float) -> bool:
        """It runs there already (a gateway says so after a failover), cap or no cap. False: no such replica."""
        known = self._fleet.replicas.get(replica)
        if known is None or ask.id in self._fleet.running:
            return known is not None
        self._start(ask, known, 0, now_s).tells_cached = False
        self._place(known)
        return True

    # What becomes of it

    def first_token(self, id: str, now_s: float) -> None:  # noqa: A002
        """Of a request that does not run, or the second time, it is no error."""
        running = self._fleet.running.get(id)
        if running is None or running.has_first_token:
            return
        running.has_first_token, running.reported_s = True, now_s
        replica = running.replica
        tokens, busy_s = replica.drop_pending(id, now_s)
        if running.incarnation == replica.incarnation:
            if tokens:
                self._speeds.learn(replica, tokens, busy_s, now_s)
            if replica.is_ready and replica.groups is self._fleet.ejected_groups:
                self._health.answered(replica.id, begun_event=running.event)
        self._chooser.refresh(replica, now_s)
        self._place(replica)

    def progress(self, id: str, completion_tokens: int, now_s: float) -> None:  # noqa: A002
        """How many tokens it has made in all; from time to time."""
        running = self._fleet.running.get(id)
        if running is None or completion_tokens <= running.completion_tokens:
            return
        replica = running.replica
        if not running.has_first_token:
            self.first_token(id, now_s)
            running.counted_tokens = completion_tokens
        elif not running.counted_tokens:
            running.counted_tokens = max(1, running.completion_tokens)
        new = completion_tokens - running.counted_tokens
        if new > 0:
            # While a prompt is read there, gaps say how long its chunks take, not whether too many decode at once.
            is_clean = not replica.pending and replica.last_read_s <= running.reported_s
            if is_clean and running.incarnation == replica.incarnation:
                replica.inter_token.add(now_s - running.reported_s, new, now_s)
                replica.paced_s = now_s
            running.counted_tokens, running.reported_s = completion_tokens, now_s
        replica.completion_tokens += completion_tokens - running.completion_tokens
        running.completion_tokens = completion_tokens

    def end(self, id: str, ending: Ending, usage: Usage | None, now_s: float) -> None:  # noqa: A002
        """It has left its replica. One that does not run is no error."""
        running = self._fleet.running.get(id)
        if running is None:
            return
        replica = running.replica
        replica.drop_pending(id, now_s)
        if replica.is_ready and running.incarnation == replica.incarnation:
            self._judge(running, ending, now_s)
            if running.has_first_token and self._prefix.knows(replica.id):
                self._leaves_behind(running, usage)
        if ending is Ending.WELL:
            self._mean_running_s += 0.1 * (now_s - running.begun_s - self._mean_running_s)
        self._fleet.stop(running)
        self._place(replica)
        self._drop_if_gone(replica)

    # What others want to know

    def running_on(self, replica: str) -> Iterable[str]:
        known = self._fleet.replicas.get(replica)
        return known.running.keys() if known else ()

    def replica_of(self, id: str) -> str | None:  # noqa: A002
        running = self._fleet.running.get(id)
        return running.replica.id if running else None

    def in_flight(self) -> int:
        return len(self._fleet.running)

    def capacity(self) -> int:
        """Requests at once, on all that may get something new, ejected or not."""
        return self._fleet.well.capacity + self._fleet.ejected.capacity

    def inter_token_s(self, replica: str, now_s: float) -> float | None:
        """As measured of late, while no prompt was read there; None: not known."""
        known = self._fleet.replicas.get(replica)
        if known is None:
            return None
        is_recent = now_s - known.paced_s <= self.tunables.pace_fade_s
        return known.inter_token.plain() if is_recent else None

    def predicted_wait_s(self, prefill_tokens_ahead: int, requests_ahead: int, now_s: float) -> float:
        """For one that stands behind so many: until they and what runs have made room, and until they are prefilled."""
        group = self._fleet.well if self._fleet.well.num_members else self._fleet.ejected
        free = group.capacity - group.in_flight
        short = requests_ahead + 1 - (free if free > 0 else 0)
        for_slots_s = short * self._mean_running_s / (group.capacity or 1) if short > 0 else 0.0
        for_prompts_s = prefill_tokens_ahead / (self._speeds.pool_rate * (group.num_members or 1))
        return for_slots_s if for_slots_s > for_prompts_s else for_prompts_s

    def sure_wait_s(self, prefill_tokens_ahead: int, requests_ahead: int, now_s: float) -> float:
        """The same without the prompts' part while nobody knows how fast prompts are read here: enough to refuse for."""
        return self.predicted_wait_s(prefill_tokens_ahead if self._speeds.is_known else 0, requests_ahead, now_s)

    def next_event_s(self, now_s: float) -> float | None:
        """When time alone makes room (a cool-down ends); None: never, as things stand."""
        return self._health.next_event_s(now_s)

    def snapshot(self, now_s: float) -> RouterSnapshot:
        return RouterSnapshot(
            in_flight=self.in_flight(),
            capacity=self.capacity(),
            replicas={replica.id: self._view(replica, now_s) for replica in self._fleet.replicas.values()},
        )

    # Steps of keeping books

    def _update(self, spec: ReplicaSpec) -> bool:
        is_another = self._fleet.update(spec)
        if is_another or spec.is_draining:
            self._prefix.forget(spec.id)
        if is_another:
            self._health.reset(spec.id, self._next_event())
        if not spec.is_draining and not self._prefix.knows(spec.id):
            tokens = spec.kv_tokens or self.tunables.unknown_cache_tokens
            self._prefix.add(spec.id, cache_blocks=max(1, tokens // self.tunables.block_tokens))
        return is_another

    def _start(self, ask: Ask, replica: Replica, predicted_blocks: int, now_s: float) -> Running:
        running = Running(
            id=ask.id,
            replica=replica,
            begun_s=now_s,
            event=self._next_event(),
            incarnation=replica.incarnation,
            prompt=self._chooser.prompt(ask),
            taken=0,
            predicted_blocks=predicted_blocks,
            tells_cached=not ask.excluded,
            prompt_tokens=ask.work_tokens,
            reported_s=now_s,
        )
        self._fleet.start(running)
        if ask.blocks and self._prefix.knows(replica.id):
            self._prefix.touch(replica.id, running.prompt)
            running.taken = self._prefix.taken_by(replica.id)
        return running

    def _leaves_behind(self, running: Running, usage: Usage | None) -> None:
        """Its blocks are free now, the newest of all; the engine may have told how many it had found."""
        name, prompt, block_tokens = running.replica.id, running.prompt, self.tunables.block_tokens
        made = usage.completion_tokens if usage is not None else running.completion_tokens
        tokens = running.prompt_tokens - self._prefix.depth_of(prompt) * block_tokens + made
        self._prefix.fill(name, running.id, tokens // block_tokens)
        if prompt:
            self._prefix.touch_again(name, prompt, running.taken)
        if usage is not None and running.tells_cached:
            cached_blocks = usage.cached_tokens // block_tokens
            self._prefix.correct(name, predicted_blocks=running.predicted_blocks, cached_blocks=cached_blocks)

    def _judge(self, running: Running, ending: Ending, now_s: float) -> None:
        name = running.replica.id
        if ending is not Ending.FAILED and self._health.records[name].is_spotless:
            return
        if ending is Ending.FAILED:
            self._health.failed(name, begun_event=running.event, event=self._next_event(), now_s=now_s)
            running.replica.is_odd = True
        elif ending is Ending.WELL:
            self._health.served(name, begun_event=running.event)
        self._health.probe_lost(name, running.id)

    def _drop_if_gone(self, replica: Replica) -> None:
        if not replica.is_ready and not replica.running:
            del self._fleet.replicas[replica.id]
            self._health.forget(replica.id)

    def _place(self, replica: Replica) -> None:
        """Its load has changed, or who it is."""
        load_s = replica.pending_tokens * replica.s_per_token + len(replica.running) * replica.slot_s
        self._fleet.place(replica, load_s=load_s, is_ejected=self._health.records[replica.id].is_ejected)

    def _next_event(self) -> int:
        self._events += 1
        return self._events

    def _view(self, replica: Replica, now_s: float) -> ReplicaView:
        rate = self._speeds.rate(replica, now_s)
        record = self._health.records.get(replica.id)
        return ReplicaView(
            in_flight=replica.in_flight,
            cap=replica.cap,
            queued_prefill_tokens=rate * replica.queued_s(self.tunables.report_delay_s, now_s),
            prefill_tokens_per_s=rate,
            inter_token_s=self.inter_token_s(replica.id, now_s),
            context_tokens=replica.prompt_tokens + replica.completion_tokens,
            cached_blocks=self._prefix.blocks_of(replica.id),
            is_usable=replica.is_usable,
            is_ejected=record is not None and record.is_ejected,
            kv_used_ratio=replica.frame.kv_used_ratio,
            seen_s_ago=None if replica.frame_s == float("-inf") else now_s - replica.frame_s,
        )

    def check_invariants(self, now_s: float) -> None:
        """What must hold after any call with this `now_s`; for tests."""
        self._fleet.check_invariants()
        self._health.check_invariants()
        self._prefix.check_invariants()
        for replica in self._fleet.replicas.values():
            record = self._health.records[replica.id]
            if replica.is_usable:
                assert (self._fleet.ejected in replica.groups) == record.is_ejected
            assert self._prefix.knows(replica.id) == replica.is_usable

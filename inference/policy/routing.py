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
from dataclasses import dataclass, field

from inference.policy.decisions import Ask, Ending, Reason, ReplicaSpec, StateFrame, Usage
from inference.policy.fleet import Fleet, Replica, Running
from inference.policy.health import Health, HealthTunables
from inference.policy.pace import FadingRatio
from inference.policy.prefix import PrefixIndex


@dataclass(frozen=True, slots=True)
class RoutingTunables:
    health: HealthTunables = field(default_factory=HealthTunables)
    num_holders: int = 4
    """Of the prompt's beginning, looked at for one decision."""
    num_least_loaded: int = 4
    """Likewise; one more for each that the request has tried."""
    matters_ratio: float = 0.25
    """Who holds less than this part of what the best one holds is not looked at for it."""
    block_tokens: int = 128
    """Tokens of one block of `Ask.blocks`; not the engine's block size, but a multiple of it."""
    max_depth_blocks: int = 1024
    """Of a prompt, looked at; what comes after counts as uncached."""
    max_index_entries: int = 500_000
    """Of a pool's prefix index, about 300 bytes each; a prompt of 30 blocks makes 15."""
    unknown_cache_tokens: int = 65_536
    """For a replica that does not say how many tokens its cache holds."""
    prefill_tokens_per_s: float = 8_000.0
    """Nominal, when no replica of the pool says; what is learnt corrects it."""
    prior_busy_s: float = 1.0
    """How many seconds of work of its own a replica needs to be believed as much as its pool."""
    fade_s: float = 60.0
    """Over which rates and recent work are averaged."""
    pace_fade_s: float = 5.0
    """Over which the inter-token latency is averaged: short, for the batch cap follows it."""
    overhead_s: float = 0.02
    """Of a first token, whatever the prompt: network, scheduling, one step."""
    report_delay_s: float = 0.25
    """How late a first token may be reported."""
    min_match_ratio: float = 0.125
    """A smaller part of a prompt, found in a cache, draws it nowhere: what most prompts begin with is soon everywhere."""
    own_work_weight: float = 2.0
    """A second of prefilling counts for so much more than one of waiting: those that come after wait for it too."""
    max_imbalance: float = 1.3
    """A replica with more than so many times its zone's mean share of slots in use gets nothing for its cache's sake."""
    imbalance_slack: float = 4.0
    """Requests it may have on top: where there are few, some more by chance are no imbalance."""
    balance_s: float = 0.2
    """What a full batch adds to the score: decoding slows down with it, and so does prefilling."""
    spread_s: float = 0.5
    """What being busy prefilling all of the last minute adds to the score: new prefixes go where there was least work."""
    zone_penalty_s: float = 1.0
    """How much sooner the first token must come from another zone."""
    full_kv_ratio: float = 0.9
    """KV use from which an engine is about to preempt."""
    full_kv_s: float = 2.0
    """What a full KV cache adds to the score."""
    frame_lasts_s: float = 5.0
    """An older state frame is as good as none."""


@dataclass(frozen=True, slots=True)
class Choice:
    replica: str
    reason: Reason
    predicted_ttft_s: float
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class ReplicaView:
    in_flight: int
    cap: int
    queued_prefill_tokens: float
    prefill_tokens_per_s: float
    inter_token_s: float | None
    cached_blocks: int
    is_usable: bool
    is_ejected: bool


@dataclass(frozen=True, slots=True)
class RouterSnapshot:
    in_flight: int
    capacity: int
    replicas: dict[str, ReplicaView]


_BEHIND_ALL_OTHERS_S = 1_000.0
_MOST_DUE_LOOKED_AT = 16


class Router:
    def __init__(self, tunables: RoutingTunables) -> None:
        self.tunables = tunables
        self._health = Health(tunables.health)
        self._prefix = PrefixIndex(max_entries=tunables.max_index_entries, max_depth=tunables.max_depth_blocks)
        self._fleet = Fleet(fade_s=tunables.fade_s, pace_fade_s=tunables.pace_fade_s)
        self._pool_speed = FadingRatio(tunables.fade_s)  # seconds of prefilling that were expected, by those it took
        self._pool_speed_said = 1.0  # as replicas have been told
        self._speed_edition = 0  # of what they have been told
        self._nominal_rate = tunables.prefill_tokens_per_s  # of replicas that do not say
        self._mean_running_s = 1.0
        self._spread_s = tunables.spread_s / tunables.fade_s
        self._events = 0
        self._last_blocks: tuple[int, ...] = ()
        self._last_prompt: list[int] = []

    # Who there is

    def set_replicas(self, specs: Iterable[ReplicaSpec], now_s: float) -> None:
        """These, and no others, are ready now. What runs goes on and stays counted, whatever changes."""
        wanted = {spec.id: spec for spec in specs}
        for replica in self._fleet.missing(wanted):
            replica.is_ready = False
            self._prefix.forget(replica.id)
            self._place(replica)  # out of all groups
            self._drop_if_gone(replica)
        told = (spec.prefill_tokens_per_s for spec in wanted.values() if spec.prefill_tokens_per_s > 0.0)
        self._nominal_rate = min(told, default=self.tunables.prefill_tokens_per_s)
        for spec in wanted.values():
            self._update(spec)
        self._fleet.regroup()
        for replica in self._fleet.replicas.values():
            self._refresh(replica, now_s)
            self._place(replica)

    def set_cap(self, replica: str, cap: int) -> None:
        """At most so many at once, within the replica's own bound; what runs already runs on. Unknown: no error."""
        known = self._fleet.replicas.get(replica)
        if known is not None and known.batch_cap != cap:
            known.batch_cap = max(1, cap)
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
            self._refresh(known, now_s)

    # What to do with an asker

    def has_room(self, now_s: float) -> bool:
        """Somewhere, for someone: `choose` may still say None to one who has tried the replicas that have it."""
        if self._fleet.well.num_with_room:
            return True
        if not self._fleet.well.num_members:
            return self._fleet.ejected.num_with_room > 0
        return self._due_probe(frozenset(), now_s) is not None

    def hopeless(self, ask: Ask) -> Reason | None:
        """Why waiting would be in vain, as things stand; or None."""
        if not self._fleet.usable:
            return Reason.NO_REPLICA
        return Reason.ALL_TRIED if self._fleet.usable <= ask.excluded else None

    def choose(self, ask: Ask, now_s: float) -> Choice | None:
        """None: no room on any that it may use. Changes nothing; `begin` does."""
        fleet, excluded = self._fleet, ask.excluded
        if self._health.may_be_due:
            due = self._due_probe(excluded, now_s)
            if due is not None:
                depth = self._prefix.depth_on(due.id, self._prompt(ask), len(ask.blocks))
                return self._chosen(ask, due, depth, Reason.PROBE, now_s)
        if fleet.well.num_members <= len(excluded) and not self._has_well(excluded):
            best = self._best(ask, {}, fleet.ejected.least_loaded(self._limit(ask)), now_s)
            return self._chosen(ask, best, 0, Reason.LAST_RESORT, now_s) if best else None
        least = self._least_loaded(ask)
        holders = self._holders(ask, least) if ask.blocks else {}
        best = self._best(ask, holders, least, now_s)
        if best is None:
            return None
        if not holders:
            depth = self._prefix.depth_on(best.id, self._prompt(ask), len(ask.blocks))
            return self._chosen(ask, best, depth, Reason.FASTEST, now_s)
        depth = holders[best]
        is_less = depth < max(holders.values())
        reason = Reason.SPILLED if is_less else Reason.PREFIX if depth else Reason.FASTEST
        return self._chosen(ask, best, depth, reason, now_s)

    def begin(self, ask: Ask, choice: Choice, now_s: float) -> None:
        """It has been granted what `choose` said, at the same `now_s`."""
        replica = self._fleet.replicas[choice.replica]
        assert replica.is_usable and replica.has_room(), "a cap is never exceeded"
        if choice.reason is Reason.PROBE:
            self._health.probe_begins(replica.id, ask.id)
        uncached = max(1, ask.prompt_tokens - choice.cached_tokens)
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
                self._learn_rate(replica, tokens, busy_s, now_s)
            if replica.is_ready and replica.groups is self._fleet.ejected_groups:
                self._health.answered(replica.id, begun_event=running.event)
        self._refresh(replica, now_s)
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
            if running.incarnation == replica.incarnation:
                replica.inter_token.add(now_s - running.reported_s, new, now_s)
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

    def inter_token_s(self, replica: str) -> float | None:
        """As measured of late, or as the engine says; None: not known."""
        known = self._fleet.replicas.get(replica)
        if known is None:
            return None
        measured = known.inter_token.plain()
        return measured if measured is not None else known.frame.iteration_s

    def predicted_wait_s(self, prefill_tokens_ahead: int, requests_ahead: int, now_s: float) -> float:
        """For one that stands behind so many: until they and what runs have made room, and until they are prefilled."""
        group = self._fleet.well if self._fleet.well.num_members else self._fleet.ejected
        free = max(0, group.capacity - group.in_flight)
        short = max(0, requests_ahead + 1 - free)
        for_slots_s = short * self._mean_running_s / max(group.capacity, 1)
        rate = self._nominal_rate * self._pool_speed_said * max(group.num_members, 1)
        return max(for_slots_s, prefill_tokens_ahead / rate)

    def next_event_s(self, now_s: float) -> float | None:
        """When time alone makes room (a cool-down ends); None: never, as things stand."""
        return self._health.next_event_s(now_s)

    def snapshot(self, now_s: float) -> RouterSnapshot:
        return RouterSnapshot(
            in_flight=self.in_flight(),
            capacity=self.capacity(),
            replicas={replica.id: self._view(replica, now_s) for replica in self._fleet.replicas.values()},
        )

    # Steps of choosing

    def _due_probe(self, excluded: frozenset[str], now_s: float) -> Replica | None:
        for at, name in enumerate(self._health.due(now_s)):
            replica = self._fleet.replicas[name]
            if name not in excluded and replica.is_usable and replica.has_room():
                return replica
            if at >= _MOST_DUE_LOOKED_AT:
                break
        return None

    def _has_well(self, excluded: frozenset[str]) -> bool:
        """Whether any that it may use is not ejected, with room or without."""
        well = self._fleet.well
        tried = (self._fleet.replicas[name] for name in excluded if name in self._fleet.replicas)
        return well.num_members > sum(well in replica.groups for replica in tried)

    def _limit(self, ask: Ask) -> int:
        return self.tunables.num_least_loaded + len(ask.excluded)

    def _least_loaded(self, ask: Ask) -> list[Replica]:
        """Of the whole pool, and half as many of its own zone, when there is another."""
        well, limit = self._fleet.well, self._limit(ask)
        local = self._fleet.zones.get(ask.zone) if self._fleet.zones else None
        if local is None:
            return well.least_loaded(limit)
        return local.least_loaded((limit + 1) // 2) + well.least_loaded(limit)

    def _holders(self, ask: Ask, least: list[Replica]) -> dict[Replica, int]:
        """The blocks of the prompt's beginning that the best holders (full ones too) and the least loaded hold.

        Nobody, when the best holder does not hold enough to matter.
        """
        fleet, tunables, prompt = self._fleet, self.tunables, self._prompt(ask)
        found = self._prefix.match(prompt, tunables.num_holders, tunables.matters_ratio)
        holders: dict[Replica, int] = {}
        most = next(iter(found.values()), 0)
        if most * tunables.block_tokens < tunables.min_match_ratio * ask.prompt_tokens:
            return holders
        fewest = 0
        for name, fewest in found.items():
            replica = fleet.replicas[name]
            if replica.groups is replica.well_groups and name not in ask.excluded:
                holders[replica] = fewest
        if fewest:  # others may hold some of it too, but none more than the last of these
            for replica in least:
                if replica not in holders:
                    holders[replica] = self._prefix.depth_on(replica.id, prompt, fewest)
        return holders

    def _best(self, ask: Ask, holders: dict[Replica, int], least: list[Replica], now_s: float) -> Replica | None:
        """The lowest score of those with room; of equals, the one that was not served for longest."""
        tunables, well, excluded, prompt_tokens = self.tunables, self._fleet.well, ask.excluded, ask.prompt_tokens
        local = self._fleet.zones.get(ask.zone) if self._fleet.zones else None
        best, best_score = None, float("inf")
        for replica in holders or least:
            if replica.level < 0 or (excluded and replica.id in excluded):
                continue
            if replica.speed_edition != self._speed_edition:
                self._refresh(replica, now_s)  # so that one that has had nothing to do is no slower than its pool has become
            left = prompt_tokens - holders[replica] * tunables.block_tokens if holders else prompt_tokens
            in_flight = replica.counted_in_flight
            own_s = (left if left > 1 else 1) * replica.s_per_token
            score = own_s * tunables.own_work_weight + in_flight * replica.slot_s + replica.work_s
            peers = replica.zone or well
            if peers.capacity:
                fair = tunables.max_imbalance * (peers.in_flight + 1) / peers.capacity * replica.counted_cap
                if in_flight + 1 > fair + tunables.imbalance_slack:
                    score += _BEHIND_ALL_OTHERS_S
            if local is not None and replica.zone is not local:
                score += tunables.zone_penalty_s
            if score >= best_score:
                continue  # what follows only adds
            if replica.pending:
                score += replica.queued_s(tunables.report_delay_s, now_s)
            if replica.is_odd:
                score += self._penalty_s(replica, ask, now_s)
            if score < best_score:
                best, best_score = replica, score
        return best

    def _prompt(self, ask: Ask) -> list[int]:
        """Its marks; `begin` follows `choose`, so the last are kept."""
        if ask.blocks is not self._last_blocks:
            self._last_blocks, self._last_prompt = ask.blocks, self._prefix.marks_of(ask.blocks)
        return self._last_prompt

    def _uncached(self, prompt_tokens: int, depth: int) -> int:
        """Engines compute one token at least."""
        left = prompt_tokens - depth * self.tunables.block_tokens
        return left if left > 1 else 1

    def _penalty_s(self, replica: Replica, ask: Ask, now_s: float) -> float:
        """What speaks against it besides its load. Nothing that is unknown does."""
        tunables = self.tunables
        penalty_s = self._health.suspicion_s(self._health.records[replica.id], now_s)
        if now_s - replica.frame_s <= tunables.frame_lasts_s:
            full = (replica.frame.kv_used_ratio or 0.0) - tunables.full_kv_ratio
            penalty_s += max(0.0, full) / (1.0 - tunables.full_kv_ratio) * tunables.full_kv_s
            # Somebody else's requests wait there, of a size that nobody knows: as long as this one.
            penalty_s += replica.num_foreign * ask.prompt_tokens * replica.s_per_token
        return penalty_s

    def _chosen(self, ask: Ask, replica: Replica, depth: int, reason: Reason, now_s: float) -> Choice:
        uncached = self._uncached(ask.prompt_tokens, depth)
        queued_s = replica.queued_s(self.tunables.report_delay_s, now_s)
        ttft_s = self.tunables.overhead_s + queued_s + uncached * replica.s_per_token
        return Choice(replica.id, reason, ttft_s, max(0, ask.prompt_tokens - uncached))

    # Steps of keeping books

    def _update(self, spec: ReplicaSpec) -> None:
        is_another = self._fleet.update(spec)
        if is_another or spec.is_draining:
            self._prefix.forget(spec.id)
        if is_another:
            self._health.reset(spec.id, self._next_event())
        if not spec.is_draining and not self._prefix.knows(spec.id):
            tokens = spec.kv_tokens or self.tunables.unknown_cache_tokens
            self._prefix.add(spec.id, cache_blocks=max(1, tokens // self.tunables.block_tokens))

    def _start(self, ask: Ask, replica: Replica, predicted_blocks: int, now_s: float) -> Running:
        running = Running(
            id=ask.id,
            replica=replica,
            begun_s=now_s,
            event=self._next_event(),
            incarnation=replica.incarnation,
            prompt=self._prompt(ask),
            predicted_blocks=predicted_blocks,
            tells_cached=not ask.excluded,
            prompt_tokens=ask.prompt_tokens,
            reported_s=now_s,
        )
        self._fleet.start(running)
        if ask.blocks and self._prefix.knows(replica.id):
            self._prefix.touch(replica.id, running.prompt)
        return running

    def _leaves_behind(self, running: Running, usage: Usage | None) -> None:
        """Its blocks are free now, the newest of all; the engine may have told how many it had found."""
        name, prompt, block_tokens = running.replica.id, running.prompt, self.tunables.block_tokens
        made = usage.completion_tokens if usage is not None else running.completion_tokens
        tokens = running.prompt_tokens - self._prefix.depth_of(prompt) * block_tokens + made
        self._prefix.fill(name, running.id, tokens // block_tokens)
        if prompt:
            self._prefix.touch(name, prompt)
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

    def _learn_rate(self, replica: Replica, tokens: int, busy_s: float, now_s: float) -> None:
        if busy_s < 2.0 * self.tunables.overhead_s:
            return  # too short to tell prefilling from the rest
        expected_s = tokens / self._nominal(replica)
        busy_s -= self.tunables.overhead_s
        replica.speed.add(expected_s, busy_s, now_s)
        self._pool_speed.add(expected_s, busy_s, now_s)
        pool_speed = max(1e-6, self._pool_speed.value(1.0, 0.1))
        if not 0.95 < pool_speed / self._pool_speed_said < 1.05:
            self._pool_speed_said = pool_speed
            self._speed_edition += 1

    def _nominal(self, replica: Replica) -> float:
        return replica.spec.prefill_tokens_per_s or self._nominal_rate

    def _rate(self, replica: Replica) -> float:
        """Prompt tokens a second."""
        return max(1.0, self._nominal(replica) * replica.speed.value(self._pool_speed_said, self.tunables.prior_busy_s))

    def _drop_if_gone(self, replica: Replica) -> None:
        if not replica.is_ready and not replica.running:
            del self._fleet.replicas[replica.id]
            self._health.forget(replica.id)

    def _refresh(self, replica: Replica, now_s: float) -> None:
        """What is known of its speed and health, in the form in which choosing uses it."""
        s_per_token = replica.s_per_token = 1.0 / self._rate(replica)
        replica.speed_edition = self._speed_edition
        replica.slot_s = self.tunables.balance_s / replica.cap
        replica.work_s = self._spread_s * replica.work.at(now_s) * s_per_token
        frame = replica.frame
        replica.is_odd = (
            self._health.records[replica.id].strikes > 0.0
            or replica.num_foreign > 0
            or (frame.kv_used_ratio or 0.0) > self.tunables.full_kv_ratio
        )

    def _place(self, replica: Replica) -> None:
        """Its load has changed, or who it is."""
        load_s = replica.pending_tokens * replica.s_per_token + len(replica.running) * replica.slot_s
        self._fleet.place(replica, load_s=load_s, is_ejected=self._health.records[replica.id].is_ejected)

    def _next_event(self) -> int:
        self._events += 1
        return self._events

    def _view(self, replica: Replica, now_s: float) -> ReplicaView:
        rate = self._rate(replica)
        record = self._health.records.get(replica.id)
        return ReplicaView(
            in_flight=replica.in_flight,
            cap=replica.cap,
            queued_prefill_tokens=rate * replica.queued_s(self.tunables.report_delay_s, now_s),
            prefill_tokens_per_s=rate,
            inter_token_s=self.inter_token_s(replica.id),
            cached_blocks=self._prefix.blocks_of(replica.id),
            is_usable=replica.is_usable,
            is_ejected=record is not None and record.is_ejected,
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

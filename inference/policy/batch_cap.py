"""How many requests at once on one replica: as many as hold the inter-token latency that its most urgent ones want.

Additive-multiplicative, as in TCP: it grows by a little while the measured latency is well below the target and the cap
is what holds requests back, and shrinks in proportion when the latency is over it. It follows only what it can change:
the latency while no prompt is read on the replica (`Router.inter_token_s`). What the prompts of others do to it is the
engine's token budget; a cap that followed that would shrink until it starved the replica, and still be over the target.
It starts at the pool's bound, and without a measurement goes back to it: nothing says that so many are too many.

A target below what the replica does with next to nothing on it cannot be held by any cap: one that tried would serve one
request at a time, slowly. So the latency with at most `alone` requests counts, and the aim is never below `alone_ratio` of
that. (Not with one only: a late request squeezed in beside it would keep that from ever being seen.)
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from inference.policy.brain_tunables import BatchCapTunables
from inference.policy.decisions import ReplicaSpec, Tier, TierTargets


class BatchCap:
    """One replica's."""

    def __init__(self, tunables: BatchCapTunables, max_in_flight: int, min_in_flight: int = 1) -> None:
        self._tunables = tunables
        self._max_in_flight, self._min_in_flight = max_in_flight, min_in_flight
        self._exact = float(max_in_flight)
        self._changed_s = float("-inf")
        self._alone_s: float | None = None
        self._alone_from_s = float("-inf")  # from when on a figure of so few is believed

    @property
    def value(self) -> int:
        return min(max(int(self._exact), self._min_in_flight, 1), self._max_in_flight) if self._max_in_flight else 0

    def set_bounds(self, max_in_flight: int, min_in_flight: int = 1) -> None:
        """A cap that was at the old upper bound goes to the new one; what was learnt below it is kept."""
        was_at_bound = self.value >= self._max_in_flight
        self._max_in_flight, self._min_in_flight = max_in_flight, min_in_flight
        exact = max_in_flight if was_at_bound else min(max(self._exact, min_in_flight), max_in_flight)
        self._exact = float(exact)

    def measured(self, *, inter_token_s: float | None, target_s: float | None, in_flight: int, now_s: float) -> int:
        """The cap after this measurement, None: there was none; `target_s` is the strictest of the tiers that run, or None."""
        self._look_at_few(inter_token_s, in_flight, now_s)
        if target_s is None or in_flight == 0 or inter_token_s is None:
            self._grow(in_flight, now_s)
        elif now_s >= self._changed_s + self._tunables.interval_s:
            ratio = inter_token_s / self._aim_s(target_s)
            if ratio > 1.0:
                self._shrink(in_flight, now_s, ratio)
            elif ratio < self._tunables.grow_below_ratio:
                self._grow(in_flight, now_s)
        return self.value

    def _look_at_few(self, inter_token_s: float | None, in_flight: int, now_s: float) -> None:
        """What is measured carries what was before: they must have been few for a while. A lower figure is believed at once,
        a higher one slowly: a slow moment is no slow replica, and one that was quick may not stay so."""
        are_few = 0 < in_flight <= self._tunables.alone
        if not are_few:
            self._alone_from_s = now_s + self._tunables.interval_s
        if not are_few or inter_token_s is None or now_s < self._alone_from_s:
            return
        known_s = self._alone_s
        if known_s is None or inter_token_s < known_s:
            self._alone_s = inter_token_s
        else:
            self._alone_s = known_s + (inter_token_s - known_s) * self._tunables.alone_weight

    def _aim_s(self, target_s: float) -> float:
        aim_s = target_s * self._tunables.aim_ratio
        return aim_s if self._alone_s is None else max(aim_s, self._alone_s * self._tunables.alone_ratio)

    def _grow(self, in_flight: int, now_s: float) -> None:
        """Only a cap that is reached: below it, the latency says nothing about what a higher one would do."""
        if in_flight < self.value or now_s < self._changed_s + self._tunables.interval_s:
            return
        self._exact = min(self._exact + max(1.0, self._exact * self._tunables.grow_ratio), float(self._max_in_flight))
        self._changed_s = now_s

    def _shrink(self, in_flight: int, now_s: float, ratio: float) -> None:
        """From what runs, when that is less: a cap far above it would take many steps to be felt."""
        kept = max(1.0 / ratio, self._tunables.least_kept_ratio)
        self._exact = max(1.0, float(self._min_in_flight), min(self._exact, float(in_flight)) * kept)
        self._changed_s = now_s


@dataclass(slots=True)
class _Load:
    spec: ReplicaSpec
    cap: BatchCap
    running: list[int]
    """By tier."""
    is_ready: bool = True

    def in_flight(self) -> int:
        return sum(self.running)


class PoolCaps:
    """The caps of a pool's replicas, and what runs on each by tier.

    A cap keeps the patient out, not the urgent: one that is late may be squeezed in beyond it while there is at least as
    much batch work on the replica, whose end brings it back under its cap; reading parked work again costs more.
    """

    def __init__(self, tunables: BatchCapTunables) -> None:
        self.targets: Mapping[Tier, TierTargets] = {}
        self._tunables = tunables
        self._loads: dict[str, _Load] = {}
        self._squeezable: dict[str, None] = {}  # replicas that may get one more than their cap

    def set_replicas(self, specs: Iterable[ReplicaSpec]) -> Iterator[tuple[str, int]]:
        """These are ready. Yields the cap of each. A new engine learns anew."""
        wanted = {spec.id: spec for spec in specs}
        for replica, load in list(self._loads.items()):
            load.is_ready = replica in wanted
            self._look_at(load)
            self._drop_if_gone(replica)
        for spec in wanted.values():
            load_ = self._loads.get(spec.id)
            if load_ is None:
                load_ = self._loads[spec.id] = _Load(spec, BatchCap(self._tunables, spec.max_in_flight), [0, 0, 0])
            elif load_.spec.epoch != spec.epoch:
                load_.cap = BatchCap(self._tunables, spec.max_in_flight)
            load_.cap.set_bounds(spec.max_in_flight, spec.min_in_flight)
            load_.spec = spec
            self._look_at(load_)
            yield spec.id, load_.cap.value

    def began(self, replica: str, tier: Tier) -> None:
        load = self._loads[replica]
        load.running[tier] += 1
        self._look_at(load)

    def ended(self, replica: str, tier: Tier) -> None:
        load = self._loads[replica]
        assert load.running[tier] > 0, "a slot is given back once"
        load.running[tier] -= 1
        self._look_at(load)
        self._drop_if_gone(replica)

    def squeezable(self) -> Iterable[str]:
        """Replicas that may get one more than their cap, and have no room below it."""
        return self._squeezable

    def _look_at(self, load: _Load) -> None:
        """After any change of it: may one more be squeezed in? Those who may take turns, the one that got one is the last."""
        replica, num, num_batch = load.spec.id, load.in_flight(), load.running[Tier.BATCH]
        self._squeezable.pop(replica, None)
        is_usable = load.is_ready and not load.spec.is_draining
        if is_usable and num < load.spec.max_in_flight and load.cap.value <= num < load.cap.value + num_batch:
            self._squeezable[replica] = None

    def measured(self, replica: str, inter_token_s: float | None, now_s: float) -> int | None:
        """The replica's cap after a measurement; None: it is not known."""
        load = self._loads.get(replica)
        if load is None:
            return None
        strictest = [self.targets[tier].inter_token_s for tier in Tier if load.running[tier] and tier in self.targets]
        cap = load.cap.measured(
            inter_token_s=inter_token_s,
            target_s=min(strictest, default=None),
            in_flight=load.in_flight(),
            now_s=now_s,
        )
        self._look_at(load)
        return cap

    def would_make_room(self, replica: str) -> bool:
        """Whether one request less on it lets another in."""
        load = self._loads.get(replica)
        return load is not None and load.is_ready and not load.spec.is_draining and load.in_flight() <= load.cap.value

    def knows(self, replica: str) -> bool:
        return replica in self._loads

    def is_over(self, replica: str) -> bool:
        load = self._loads[replica]
        return load.in_flight() > load.cap.value

    def caps(self) -> dict[str, int]:
        return {replica: load.cap.value for replica, load in self._loads.items() if load.is_ready}

    def in_flight(self) -> dict[str, int]:
        return {replica: load.in_flight() for replica, load in self._loads.items()}

    def num_usable(self) -> int:
        return sum(1 for load in self._loads.values() if load.is_ready and not load.spec.is_draining)

    def _drop_if_gone(self, replica: str) -> None:
        load = self._loads[replica]
        if not load.is_ready and load.in_flight() == 0:
            del self._loads[replica]

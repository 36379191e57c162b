"""The pools of one model, one for each version that serves; one for all replicas while nobody tells of versions.

A request is placed when it asks. Whoever waits is placed anew when versions, shares or replicas change: without losing
the place of its arrival, and without being refused for it. What runs ends where it runs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from inference.policy.decisions import Ask, Decision, ReplicaSpec, Tier, TierTargets
from inference.policy.pool import Pool, PoolSnapshot, VersionSnapshot
from inference.policy.split import Versions, choose

_ALL = ""


class ModelPools:
    def __init__(self, make_pool: Callable[[], Pool]) -> None:
        self.is_dropped = False
        """It serves no longer, and has requests running."""
        self._make_pool = make_pool
        self._max_queued = 0
        self._versions: Versions | None = None
        self._main = self._new_pool()  # the stable version's, or the only one
        self._serving: dict[str, Pool] = {_ALL: self._main}
        self._leaving: dict[str, Pool] = {}  # that serve no longer; what runs there runs on
        self._targets: Mapping[Tier, TierTargets] = {}
        self._hold_limit_s = self._start_s = 0.0

    def __iter__(self) -> Iterator[Pool]:
        yield from self._serving.values()
        yield from self._leaving.values()

    def _new_pool(self) -> Pool:
        pool = self._make_pool()
        pool.is_full = partial(self._is_full, pool)
        return pool

    def _is_full(self, pool: Pool, tier: Tier) -> bool:
        """So many wait in one's own tier and the more urgent ones, of all versions: patient work keeps no urgent request out.

        Half of the places are the stable version's alone: a version on trial that is slow keeps nobody out of it.
        """
        waiting = {each: sum(each.queue.waiting[: tier + 1]) for each in self}
        if sum(waiting.values()) >= self._max_queued:
            return True
        return pool is not self._main and 2 * (sum(waiting.values()) - waiting[self._main]) >= self._max_queued

    @property
    def main(self) -> Pool:
        """Of the stable version."""
        return self._main

    def set_targets(self, targets: Mapping[Tier, TierTargets], *, max_queued: int) -> None:
        """Raises ValueError for targets that are out of order; nothing has changed then."""
        for pool in self._serving.values():
            pool.set_targets(targets)
        self._targets, self._max_queued, self.is_dropped = targets, max_queued, False

    def set_waking(self, *, hold_limit_s: float, start_s: float) -> None:
        """As the pool's, for the stable version: it alone is woken by those who ask."""
        self._hold_limit_s, self._start_s = hold_limit_s, start_s
        for pool in self:
            pool.set_waking(hold_limit_s=hold_limit_s if pool is self._main else 0.0, start_s=start_s)

    def drop(self, now_s: float) -> list[Decision]:
        """Who waits is refused, what runs runs on."""
        self.is_dropped = True
        return [decision for pool in self for decision in pool.drop(now_s)]

    @property
    def is_leaving(self) -> bool:
        """There is something to forget once it is idle."""
        return self.is_dropped or bool(self._leaving)

    def is_idle(self) -> bool:
        return all(pool.is_idle() for pool in self)

    def forget_idle(self) -> bool:
        """Pools of versions that serve no longer, once nothing runs there. Whether there were any."""
        idle = [label for label, pool in self._leaving.items() if pool.is_idle()]
        for label in idle:
            del self._leaving[label]
        return bool(idle)

    # Which one

    def place(self, ask: Ask) -> Pool:
        """Where it is to be served. Nobody there can: the stable version takes over, unless it must be that one."""
        if self._versions is None or len(self._serving) == 1:
            return self._main
        label = choose(self._versions, tenant=ask.tenant, conversation=ask.conversation, pin=ask.version)
        pool = self._serving[label]
        if pool is self._main or pool.router.hopeless(ask) is None:
            return pool
        if not ask.version:
            return self._main
        may_leave = ask.may_change_version and self._main.router.hopeless(ask) is None
        return self._main if may_leave else pool

    def with_replica(self, replica: str) -> Pool | None:
        return next((pool for pool in self if pool.has_replica(replica)), None)

    # Who serves

    def set_replicas(self, specs: Iterable[ReplicaSpec], versions: Versions | None, now_s: float) -> list[Decision]:
        """These, and no others, are ready; those of no version serve with the stable one."""
        self._turn_to(versions)
        by_label: dict[str, list[ReplicaSpec]] = {label: [] for label in self._serving}
        main = _ALL if versions is None else versions.stable
        for spec in specs:
            label = main if versions is None or not spec.version else spec.version
            if label in by_label:
                by_label[label].append(spec)
        for label, pool in self._serving.items():
            pool.set_replicas(by_label[label], now_s)
        decisions: list[Decision] = []
        if len(self._serving) > 1 or self._leaving:
            decisions += self._place_anew(now_s)  # before anybody gets what is free now: who came first is first
        for pool in self._leaving.values():
            decisions += pool.drop(now_s)
        for pool in self._serving.values():
            decisions += pool.look_again(now_s)
        return decisions

    def _turn_to(self, versions: Versions | None) -> None:
        """Pools for those that serve now. The pool of all becomes that of the stable version, and the other way round."""
        if versions == self._versions:
            return
        before = self._label_of_main()
        self._versions = versions
        labels = (_ALL,) if versions is None else versions.serving
        pools = {**self._leaving, **self._serving}
        if _ALL in (before, labels[0]) and labels[0] not in pools:
            pools[labels[0]] = pools.pop(before)
        self._serving = {label: pools[label] if label in pools else self._new_pool() for label in labels}
        self._leaving = {label: pool for label, pool in pools.items() if label not in self._serving}
        self._main = self._serving[labels[0]]
        for pool in self._serving.values():
            pool.set_targets(self._targets)
        for pool in self:
            pool.stand_in = None if pool is self._main else self._main
        self.set_waking(hold_limit_s=self._hold_limit_s, start_s=self._start_s)

    def _label_of_main(self) -> str:
        return _ALL if self._versions is None else self._versions.stable

    def _place_anew(self, now_s: float) -> list[Decision]:
        """Those who wait where they no longer belong."""
        decisions: list[Decision] = []
        for pool in list(self):
            for entry in list(pool.queue.entries()):
                target = self.place(entry.ask)
                if target is not pool:
                    pool.let_move(entry)
                    decisions.append(target.takes_waiting(entry, now_s))
        return decisions

    # What others see

    def snapshot(self, now_s: float) -> PoolSnapshot:
        """All versions together, and each."""
        seen = {pool: pool.snapshot(now_s) for pool in self}
        whole = _sum(list(seen.values()))
        waiting = {tenant for pool in self for tenant in pool.queue.tenants_waiting()}
        if self._versions is None:
            return replace(whole, jain_index=self._main.served.jain_index(waiting, now_s))
        versions = {
            label: VersionSnapshot(seen[pool].in_flight, seen[pool].queued, seen[pool].capacity)
            for label, pool in (*self._leaving.items(), *self._serving.items())
        }
        return replace(whole, versions=versions, jain_index=self._main.served.jain_index(waiting, now_s))


def _sum(seen: list[PoolSnapshot]) -> PoolSnapshot:
    if len(seen) == 1:
        return seen[0]
    return PoolSnapshot(
        in_flight=sum(each.in_flight for each in seen),
        queued=sum(each.queued for each in seen),
        capacity=sum(each.capacity for each in seen),
        queued_by_tier={tier: sum(each.queued_by_tier.get(tier, 0) for each in seen) for tier in Tier},
        in_flight_by_replica={name: num for each in seen for name, num in each.in_flight_by_replica.items()},
        caps={name: cap for each in seen for name, cap in each.caps.items()},
        long_prefills=sum(each.long_prefills for each in seen),
        parked=sum(each.parked for each in seen),
        acceptance={name: ratio for each in seen for name, ratio in each.acceptance.items()},
        replicas={name: view for each in seen for name, view in each.replicas.items()},
        waiting_tokens=sum(each.waiting_tokens for each in seen),
        targets=seen[0].targets,
    )

"""The choice itself: a short list, a score for each on it, the lowest wins. Keeps no books: `routing` does.

    score = prefill queue + own uncached prompt, weighted + load of the batch + work of late + what else speaks against it

all of them seconds. See `routing` for what is predicted and where it comes from.
"""

from dataclasses import dataclass

from inference.policy.decisions import Ask, Reason
from inference.policy.fleet import Fleet, Group, Replica
from inference.policy.health import Health
from inference.policy.prefix import PrefixIndex, Prompt
from inference.policy.routing_tunables import RoutingTunables
from inference.policy.speed import Speeds

_BEHIND_ALL_OTHERS_S = 1_000.0
_NOBODY_S = float("inf")
_MOST_DUE_LOOKED_AT = 16


@dataclass(frozen=True, slots=True)
class Choice:
    replica: str
    reason: Reason
    predicted_ttft_s: float
    cached_tokens: int


class Chooser:
    def __init__(self, tunables: RoutingTunables, fleet: Fleet, prefix: PrefixIndex, health: Health, speeds: Speeds) -> None:
        self._tunables = tunables
        self._fleet = fleet
        self._prefix = prefix
        self._health = health
        self._speeds = speeds
        self._spread_s = tunables.spread_s / tunables.fade_s
        self._last_blocks: tuple[int, ...] = ()
        self._last_prompt: Prompt = ()

    def has_room(self, now_s: float) -> bool:
        """Somewhere, for someone: `choose` may still say None to one who has tried the replicas that have it."""
        well = self._fleet.well
        if well.num_with_room:
            return True
        if not well.num_members:
            return self._fleet.ejected.num_with_room > 0
        return self._health.may_be_due() and self._due_probe(frozenset(), now_s) is not None

    def choose(self, ask: Ask, now_s: float) -> Choice | None:
        """None: no room on any that it may use. Changes nothing; `begin` does."""
        fleet, excluded = self._fleet, ask.excluded
        if self._health.may_be_due():
            due = self._due_probe(excluded, now_s)
            if due is not None:
                depth = self._prefix.depth_on(due.id, self.prompt(ask), len(ask.blocks))
                return self._chosen(ask, due, depth, Reason.PROBE, now_s)
        if fleet.well.num_members <= len(excluded) and not self._has_well(excluded):
            best = self._best(ask, {}, fleet.ejected.least_loaded(self._limit(ask)), now_s)
            return self._chosen(ask, best, 0, Reason.LAST_RESORT, now_s) if best else None
        least = self._least_loaded(ask)
        holders = self._holders(ask, least) if ask.blocks else {}
        best = self._best(ask, holders, least, now_s)
        if best is None:
            return None
        depth = holders[best] if holders else 0
        reason = Reason.PREFIX if depth else Reason.FASTEST
        if holders and depth < max(holders.values()):
            reason = Reason.SPILLED
        if not depth and ask.blocks:  # too little to matter for the choice, not for what is predicted
            depth = self._prefix.depth_on(best.id, self.prompt(ask), len(ask.blocks))
        return self._chosen(ask, best, depth, reason, now_s)

    def choice_on(self, ask: Ask, replica: Replica, now_s: float) -> Choice:
        """That one, room or no room."""
        depth = self._prefix.depth_on(replica.id, self.prompt(ask), len(ask.blocks)) if ask.blocks else 0
        return self._chosen(ask, replica, depth, Reason.SQUEEZED, now_s)

    def prompt(self, ask: Ask) -> Prompt:
        """Its marks; `begin` follows `choose`, so the last are kept."""
        if ask.blocks is not self._last_blocks:
            self._last_blocks, self._last_prompt = ask.blocks, self._prefix.marks_of(ask.blocks)
        return self._last_prompt

    def refresh(self, replica: Replica, now_s: float) -> None:
        """What is known of its speed and health, in the form in which choosing uses it."""
        s_per_token = replica.s_per_token = 1.0 / self._speeds.rate(replica, now_s)
        replica.speed_edition = self._speeds.edition
        replica.slot_s = self._tunables.balance_s / replica.cap
        replica.work_s = self._spread_s * replica.work.at(now_s) * s_per_token
        frame = replica.frame
        replica.is_odd = (
            self._health.records[replica.id].strikes > 0.0
            or replica.num_foreign > 0
            or (frame.kv_used_ratio or 0.0) > self._tunables.full_kv_ratio
        )

    # Steps

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
        return self._tunables.num_least_loaded + len(ask.excluded)

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
        fleet, tunables, prompt = self._fleet, self._tunables, self.prompt(ask)
        found = self._prefix.match(prompt, tunables.num_holders, tunables.matters_ratio)
        holders: dict[Replica, int] = {}
        most = next(iter(found.values()), 0)
        if most * tunables.block_tokens < tunables.min_match_ratio * ask.work_tokens:
            return holders
        fewest = 0
        for name, fewest in found.items():
            replica = fleet.replicas[name]
            if replica.groups is replica.well_groups and name not in ask.excluded:
                holders[replica] = fewest
        # Others hold no more than the last of these, and nothing that matters unless the list is full.
        may_hold = len(found) == tunables.num_holders
        for replica in least:
            if replica not in holders:
                holders[replica] = self._prefix.depth_on(replica.id, prompt, fewest) if may_hold else 0
        return holders

    def _best(self, ask: Ask, holders: dict[Replica, int], least: list[Replica], now_s: float) -> Replica | None:
        """The lowest score of those with room; of equals, the one that was not served for longest."""
        tunables, well, excluded, prompt_tokens = self._tunables, self._fleet.well, ask.excluded, ask.work_tokens
        local = self._fleet.zones.get(ask.zone) if self._fleet.zones else None
        weight, edition, best, best_score = tunables.own_work_weight, self._speeds.edition, None, _NOBODY_S
        for replica in holders or least:
            if replica.level < 0 or (excluded and replica.id in excluded):
                continue
            if replica.speed_edition != edition:
                self.refresh(replica, now_s)  # so that one that has had nothing to do is no slower than its pool has become
            left = prompt_tokens - holders[replica] * tunables.block_tokens if holders else prompt_tokens
            in_flight = replica.counted_in_flight
            own_s = (left if left > 1 else 1) * replica.s_per_token
            score = own_s * weight + in_flight * replica.slot_s + replica.work_s
            if local is not None and replica.zone is not local:
                score += tunables.zone_penalty_s
            if score >= best_score:
                continue  # what follows only adds
            if in_flight >= tunables.imbalance_slack and self._is_overloaded(replica, replica.zone or well):
                score += _BEHIND_ALL_OTHERS_S
            if replica.pending:
                score += replica.queued_s(tunables.report_delay_s, now_s)
            if replica.is_odd:
                score += self._penalty_s(replica, ask, now_s)
            if score < best_score:
                best, best_score = replica, score
        return best

    def _is_overloaded(self, replica: Replica, peers: Group) -> bool:
        """Beyond the bound on imbalance, were it to get one more."""
        if not peers.capacity:
            return False
        fair = self._tunables.max_imbalance * (peers.in_flight + 1) / peers.capacity * replica.counted_cap
        return replica.counted_in_flight + 1 > fair + self._tunables.imbalance_slack

    def _uncached(self, prompt_tokens: int, depth: int) -> int:
        """Engines compute one token at least."""
        left = prompt_tokens - depth * self._tunables.block_tokens
        return left if left > 1 else 1

    def _penalty_s(self, replica: Replica, ask: Ask, now_s: float) -> float:
        """What speaks against it besides its load. Nothing that is unknown does."""
        tunables = self._tunables
        penalty_s = self._health.suspicion_s(self._health.records[replica.id], now_s)
        if now_s - replica.frame_s <= tunables.frame_lasts_s:
            full = (replica.frame.kv_used_ratio or 0.0) - tunables.full_kv_ratio
            penalty_s += max(0.0, full) / (1.0 - tunables.full_kv_ratio) * tunables.full_kv_s
            # Somebody else's requests wait there, of a size that nobody knows: as long as this one.
            penalty_s += replica.num_foreign * ask.work_tokens * replica.s_per_token
        return penalty_s

    def _chosen(self, ask: Ask, replica: Replica, depth: int, reason: Reason, now_s: float) -> Choice:
        uncached = self._uncached(ask.work_tokens, depth)
        queued_s = replica.queued_s(self._tunables.report_delay_s, now_s)
        ttft_s = self._tunables.overhead_s + queued_s + uncached * replica.s_per_token
        return Choice(replica.id, reason, ttft_s, max(0, ask.work_tokens - uncached))

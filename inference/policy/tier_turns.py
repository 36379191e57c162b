"""Which tier is next: the most urgent one that waits, except that each lower tier has its floor share.

A tier that is passed over earns its share of what the others are served, and has a turn when it has earned a quantum;
the longer it has waited for a turn, the less it must have earned (ageing), down to nothing. What it is served out of
its order is taken from what it has earned, and may leave a debt: so over time it gets its share and not more while a
more urgent tier waits. What it is served in its order, nobody more urgent waiting, costs it nothing.

Bound on the wait of a tier (B131): `ageing_s` and the next free slot, while it is not in debt; a debt of d tokens takes
the pool d / share more served tokens.
"""

from inference.policy.brain_tunables import QueueTunables
from inference.policy.decisions import Tier

TIERS = tuple(Tier)


class TierTurns:
    def __init__(self, tunables: QueueTunables) -> None:
        self._tunables = tunables
        self._shares = (0.0, tunables.standard_share, tunables.batch_share)
        self._earned_tokens = [0.0, 0.0, 0.0]
        self._unserved_since_s = [0.0, 0.0, 0.0]

    def begin_waiting(self, tier: Tier, now_s: float) -> None:
        """The tier had nobody waiting, and has now."""
        self._unserved_since_s[tier] = now_s

    def in_order(self, waiting: list[int], now_s: float) -> tuple[Tier, ...]:
        """The tiers, the next first. `waiting`: how many wait in each."""
        due = None
        if waiting[1] and self.is_due(Tier.STANDARD, now_s) and waiting[0]:
            due = Tier.STANDARD
        elif waiting[2] and (waiting[0] or waiting[1]) and self.is_due(Tier.BATCH, now_s):
            due = Tier.BATCH
        return TIERS if due is None else (due, *(tier for tier in TIERS if tier is not due))

    def is_due(self, tier: Tier, now_s: float) -> bool:
        share, earned = self._shares[tier], self._earned_tokens[tier]
        if share == 0.0 or earned < 0.0:
            return False
        unserved_s = now_s - self._unserved_since_s[tier]
        needed = self._tunables.quantum_tokens * max(0.0, 1.0 - unserved_s / self._tunables.ageing_s)
        return earned >= needed

    def served(self, tier: Tier, tokens: float, waiting: list[int], now_s: float) -> None:
        """A request of this tier was let through. `waiting`: who waits in each tier, without it."""
        self._unserved_since_s[tier] = now_s
        for other in (Tier.STANDARD, Tier.BATCH):
            if other is not tier and waiting[other]:
                earned = self._earned_tokens[other] + self._shares[other] * tokens
                self._earned_tokens[other] = min(earned, self._tunables.quantum_tokens)
        if any(waiting[:tier]):
            self._earned_tokens[tier] -= (1.0 - self._shares[tier]) * tokens

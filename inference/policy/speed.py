"""How fast replicas prefill: each has a nominal rate, and a factor learnt from how long first tokens really took.

A replica's factor leans on its pool's, and what was learnt fades: one that was slow, and has had nothing to do since, is
tried again.
"""

from inference.policy.fleet import Replica
from inference.policy.pace import FadingRatio
from inference.policy.routing_tunables import RoutingTunables


class Speeds:
    def __init__(self, tunables: RoutingTunables) -> None:
        self._tunables = tunables
        self._pool = FadingRatio(tunables.fade_s)  # seconds of prefilling that were expected, by those it took
        self._pool_factor = 1.0
        self._said_s = 0.0
        self.nominal_rate = tunables.prefill_tokens_per_s
        """Prompt tokens a second of replicas that do not say."""
        self.edition = 0
        """Changes with news that concern all replicas."""
        self.is_known = False
        """A replica has said its rate, or shown it: until then the nominal one is a guess."""

    @property
    def pool_rate(self) -> float:
        """Prompt tokens a second of a replica of which nothing is known."""
        return self.nominal_rate * self._pool_factor

    def rate(self, replica: Replica, now_s: float) -> float:
        """Prompt tokens a second."""
        factor = replica.speed.value(self._pool_factor, self._tunables.prior_busy_s, now_s)
        return max(1.0, self._nominal(replica) * factor)

    def learn(self, replica: Replica, tokens: int, busy_s: float, now_s: float) -> None:
        """So many prompt tokens took it so long, until their first token."""
        overhead_s = self._tunables.overhead_s
        expected_s = tokens / self._nominal(replica)
        busy_s -= overhead_s
        if busy_s >= overhead_s:
            replica.speed.add(expected_s, busy_s, now_s)
        elif tokens > overhead_s * self.rate(replica, now_s):
            busy_s = overhead_s  # too short to tell prefilling from the rest, but shorter than was thought possible
        else:
            return
        self.is_known = True
        self._pool.add(expected_s, busy_s, now_s)
        factor = max(1e-6, self._pool.value(1.0, 0.1, now_s))
        if not 0.95 < factor / self._pool_factor < 1.05 or now_s > self._said_s + self._tunables.fade_s / 4.0:
            self._pool_factor, self._said_s = factor, now_s
            self.edition += 1

    def _nominal(self, replica: Replica) -> float:
        return replica.spec.prefill_tokens_per_s or self.nominal_rate

"""How long a request of a pool waits for what: a free slot, a replica that comes back, a restart, a pool at zero that is woken;
and when it is in vain."""

from math import inf

from inference.policy.brain_tunables import BrainTunables
from inference.policy.decisions import Ask, Reason
from inference.policy.entry import Entry
from inference.policy.routing import Router
from inference.policy.waking import Waking


class Patience:
    def __init__(self, tunables: BrainTunables, router: Router) -> None:
        self._tunables, self._router = tunables, router
        most_s = max(tunables.queue_timeout_s, tunables.batch_queue_timeout_s)
        self._queue_timeout_s = (tunables.queue_timeout_s, tunables.queue_timeout_s, most_s)  # by tier
        self._hold_until_s = -inf  # while no replica serves
        self._is_holding = False  # until `looks` has seen that the hold is over
        self.is_served = True
        """Replicas may come."""
        self.waking = Waking()

    # The moment after the last replica has gone

    def hold(self, now_s: float) -> None:
        self._hold_until_s, self._is_holding = now_s + self._tunables.replica_hold_s, True

    def drop(self) -> None:
        self._hold_until_s, self._is_holding, self.is_served = -inf, False, False
        self.waking.set(hold_limit_s=0.0, start_s=0.0)

    def looks(self, now_s: float) -> None:
        """Those whom the end of the hold refuses are looked for now."""
        self._is_holding = self._is_holding and now_s < self._hold_until_s

    def waits_again(self, ask: Ask, now_s: float) -> None:
        """One that came after that, and was not refused at once: it is seen to as well."""
        self._is_holding = self._is_holding or self.is_in_vain(ask, now_s) is not None

    def hold_ends_s(self) -> float | None:
        """None: that was seen to."""
        return self._hold_until_s if self._is_holding else None

    # One request

    def expires_s(self, entry: Entry, since_s: float) -> float:
        """Of one that waits since then."""
        why = self._router.hopeless(entry.ask) if entry.ask.waits_for_restart else None
        if why is not None:
            at_s = since_s + (self._tunables.failure_news_s if why is Reason.ALL_TRIED else self._tunables.restart_wait_s)
        elif entry.has_begun:
            at_s = since_s + self._tunables.parked_timeout_s
        elif self.waking.is_under_way:
            at_s = since_s + self.waking.hold_limit_s
        else:
            at_s = since_s + self._queue_timeout_s[entry.tier] if entry.ask.deadline_s is None else inf
        return at_s if entry.has_begun or entry.ask.deadline_s is None else min(at_s, entry.ask.deadline_s)

    def waits_on_until_s(self, entry: Entry, now_s: float) -> float | None:
        """Its time is up, but not what it waits for: meanwhile its engine is known to be gone, or another came."""
        if not entry.ask.waits_for_restart:
            return None
        expires_s = self.expires_s(entry, entry.asked_s)
        return expires_s if expires_s > now_s else None

    def is_in_vain(self, ask: Ask, now_s: float) -> Reason | None:
        """Why it is not to wait, as things stand."""
        why = self._router.hopeless(ask)
        if why is None or (ask.waits_for_restart and self.is_served):
            return None  # of those who wait for a restart, their time decides
        if why is Reason.NO_REPLICA and self.waking.may(now_s):
            return None
        return why if why is Reason.ALL_TRIED or now_s >= self._hold_until_s else None

    def why_expired(self, entry: Entry) -> Reason:
        why = self._router.hopeless(entry.ask) if entry.ask.waits_for_restart or self.waking.is_under_way else None
        return why or (Reason.QUEUE_TIMEOUT if entry.ask.deadline_s is None else Reason.DEADLINE)

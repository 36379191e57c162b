"""What the brain of this process shows of queues, replicas, versions and limits, for Prometheus (metrics.py)."""

from prometheus_client import CollectorRegistry, Gauge

from headway.money import PICOS_A_USD
from inference.policy.brain import BrainSnapshot
from inference.policy.decisions import Tier


class BrainMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._in_flight = Gauge("headway_in_flight", "Requests on a replica.", ["model", "replica"], registry=registry)
        self._queued = Gauge("headway_queued", "Requests waiting for a replica.", ["model", "tier"], registry=registry)
        self._cap = Gauge("headway_batch_cap", "Requests a replica is given at once.", ["model", "replica"], registry=registry)
        self._version_in_flight = Gauge(
            "headway_version_in_flight", "Requests on replicas of a version.", ["model", "version"], registry=registry
        )
        self._version_queued = Gauge(
            "headway_version_queued", "Requests waiting for a version.", ["model", "version"], registry=registry
        )
        self._parked = Gauge("headway_parked", "Requests parked for more urgent ones, so far.", ["model"], registry=registry)
        self._jain = Gauge("headway_fairness", "Jain index of service by weight, last minute.", ["model"], registry=registry)
        self._leaked = Gauge("headway_leaked_slots", "Slots of limits that no running request holds.", registry=registry)
        self._overcommitted = Gauge(
            "headway_overcommitted", "Requests that run over a limit or cap after a takeover.", registry=registry
        )
        self._overdrawn = Gauge(
            "headway_overdrawn_usd",
            "Spent beyond balances that were paid in advance; above 0 without a hold: a fault.",
            registry=registry,
        )

    def sample(self, brain: BrainSnapshot) -> None:
        self._in_flight.clear()
        self._cap.clear()
        self._version_in_flight.clear()
        self._version_queued.clear()
        for model, pool in brain.pools.items():
            for tier in Tier:
                self._queued.labels(model, tier.name.lower()).set(pool.queued_by_tier.get(tier, 0))
            for replica, in_flight in pool.in_flight_by_replica.items():
                self._in_flight.labels(model, replica).set(in_flight)
            for replica, cap in pool.caps.items():
                self._cap.labels(model, replica).set(cap)
            for version, seen in pool.versions.items():
                self._version_in_flight.labels(model, version).set(seen.in_flight)
                self._version_queued.labels(model, version).set(seen.queued)
            self._parked.labels(model).set(pool.parked)
            self._jain.labels(model).set(pool.jain_index)
        self._leaked.set(brain.limits.running - brain.in_flight)
        overdrawn_picos = sum(max(0, use.spent_picos - use.credit_picos) for use in brain.limits.balances)
        self._overdrawn.set(overdrawn_picos / PICOS_A_USD)
        self._overcommitted.set(brain.overcommitted)

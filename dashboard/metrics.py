"""What the site knows for Prometheus and no gateway does: money's checks, scaling, releases. No label is a tenant or a key."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from billing.services.drift_figures import DriftFigures
from inference.services.fleet_figures import PoolFigures

DRIFT = (
    "headway_unexplained_drift_tokens",
    "Tokens by which engines and ledger differed, unexplained, at the last reconciliation.",
)
FINISHED = ("headway_reconciliation_finished_seconds", "When the last reconciliation was done, in unix seconds.")
INCONSISTENT = (
    "headway_inconsistent_requests",
    "Requests whose record and attempts did not agree, at the last reconciliation.",
)
NOT_COUNTED = ("headway_not_counted_engines", "Starts of engines that the last reconciliation could not compare.")


class DriftCollector(Collector):
    def __init__(self, figures: DriftFigures | None) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Names without values before the first reconciliation: nothing is claimed that nobody has looked at."""
        drift = GaugeMetricFamily(*DRIFT, labels=["engine_kind", "token_kind"])
        others = [GaugeMetricFamily(*named) for named in (FINISHED, INCONSISTENT, NOT_COUNTED)]
        if (figures := self._figures) is not None:
            for labels, tokens in sorted(figures.unexplained_tokens.items()):
                drift.add_metric(labels, tokens)
            values = (figures.finished_s, figures.inconsistent_requests, figures.not_counted)
            for family, value in zip(others, values, strict=True):
                family.add_metric([], value)
        yield from (drift, *others)


REPLICAS = (
    "headway_pool_replicas",
    "Replicas of a model's pool: desired (of the stable version), serving, starting, warm, draining, failed.",
)
MAX_REPLICAS = ("headway_pool_max_replicas", "How many of an autoscaled pool may serve.")
DECISIONS = ("headway_scale_decisions", "What the autoscaler decided in the last hour, by reason; a row only where it is news.")
PROBLEM = ("headway_scale_problem", "1: the newest decision could not be carried out whole.")
WAKE_UPS = ("headway_wake_ups", "How often a request woke a pool at zero in the last hour.")
WAITS_TO_WAKE = ("headway_waits_to_wake_seconds", "How long the oldest wake-up of a pool is under way; 0: none is.")
START = ("headway_replica_start_seconds", "Starts of the last day, the median by part: place, stage, load, certify, total.")
ROLLOUT = ("headway_rollout_state", "1 for the state of a model's newest rollout.")
ROLLOUT_CHANGED = ("headway_rollout_changed_seconds", "When that state began, in unix seconds.")
ROLLOUT_SHARE = ("headway_rollout_share_ratio", "The candidate's share of the requests, as asked.")
APPROVAL = ("headway_rollout_waits_for_approval", "1: its steps are through, and a second person has to approve it.")


class FleetCollector(Collector):
    def __init__(self, pools: Sequence[PoolFigures]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        yield from self._scaling()
        yield from self._rollouts()

    def _scaling(self) -> Iterator[Metric]:
        replicas, decisions, starts = _by_model(REPLICAS, "state"), _by_model(DECISIONS, "reason"), _by_model(START, "part")
        most, problem, wake_ups, waits = (_by_model(named) for named in (MAX_REPLICAS, PROBLEM, WAKE_UPS, WAITS_TO_WAKE))
        for pool in self._pools:
            for family, values in ((replicas, pool.replicas), (decisions, pool.decisions), (starts, pool.start_s)):
                for label, value in sorted(values.items()):
                    family.add_metric([pool.model, label], value)
            if pool.is_autoscaled:
                most.add_metric([pool.model], pool.max_replicas)
                problem.add_metric([pool.model], pool.has_problem)
                wake_ups.add_metric([pool.model], pool.wake_ups)
                waits.add_metric([pool.model], pool.waits_to_wake_s)
        yield from (replicas, decisions, starts, most, problem, wake_ups, waits)

    def _rollouts(self) -> Iterator[Metric]:
        state = _by_model(ROLLOUT, "state")
        others = [_by_model(named) for named in (ROLLOUT_CHANGED, ROLLOUT_SHARE, APPROVAL)]
        for pool in self._pools:
            if (rollout := pool.rollout) is None:
                continue
            state.add_metric([pool.model, rollout.state], 1)
            values = (rollout.changed_s, rollout.share_ratio, rollout.is_waiting_for_approval)
            for family, value in zip(others, values, strict=True):
                family.add_metric([pool.model], value)
        yield from (state, *others)


def _by_model(named: tuple[str, str], *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(*named, labels=["model", *more])


def registry_of(figures: DriftFigures | None, pools: Sequence[PoolFigures] = ()) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(DriftCollector(figures))
    registry.register(FleetCollector(pools))
    return registry

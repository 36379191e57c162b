"""What the site knows for Prometheus: money's checks, which no gateway has. No label names a tenant or a key."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from billing.services.drift_figures import DriftFigures

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


def registry_of(figures: DriftFigures | None) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(DriftCollector(figures))
    return registry

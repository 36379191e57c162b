"""Metrics of several processes as those of one gateway.

Each worker sends all its values once a second (`dump`) and once more at its end; the parent adds them up when it is asked.
Counters and histograms of a worker that has ended stay in the sum; its gauges go. Gauges are added up, too, but for ages,
of which the largest counts. A worker that is killed takes with it what it counted in its last second.
"""

import threading
from collections.abc import Iterable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

Labels = tuple[tuple[str, str], ...]
SUMS = frozenset({"counter", "histogram", "summary"})


class Sample(msgspec.Struct, frozen=True, array_like=True):
    name: str
    labels: Labels
    value: float


class Family(msgspec.Struct, frozen=True, array_like=True):
    name: str
    kind: str
    text: str
    samples: list[Sample]


def dump(registry: CollectorRegistry) -> list[Family]:
    return [
        Family(
            metric.name,
            metric.type,
            metric.documentation,
            [
                Sample(sample.name, tuple(sorted(sample.labels.items())), float(sample.value))
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ],
        )
        for metric in registry.collect()
    ]


class _Total:
    """Values of one family, added up."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.values: dict[tuple[str, Labels], float] = {}

    def add(self, family: Family) -> None:
        is_age = family.kind == "gauge" and family.name.endswith("_age_seconds")
        for sample in family.samples:
            key = (sample.name, sample.labels)
            before = self.values.get(key, 0.0)
            self.values[key] = max(before, sample.value) if is_age else before + sample.value


class SummedMetrics(Collector):
    """Safe to use from the parent's loop and the exporter's thread at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[int, list[Family]] = {}
        self._ended: dict[str, _Total] = {}

    def update(self, worker: int, families: list[Family]) -> None:
        with self._lock:
            self._live[worker] = families

    def ended(self, worker: int) -> None:
        """The worker is gone; again: nothing happens."""
        with self._lock:
            _add(self._ended, (family for family in self._live.pop(worker, ()) if family.kind in SUMS))

    def collect(self) -> Iterator[Metric]:
        totals: dict[str, _Total] = {}
        with self._lock:
            for total in self._ended.values():
                copy = totals[total.family.name] = _Total(total.family)
                copy.values = dict(total.values)
            for families in self._live.values():
                _add(totals, families)
        for total in totals.values():
            metric = Metric(total.family.name, total.family.text, total.family.kind)
            for (name, labels), value in total.values.items():
                metric.add_sample(name, dict(labels), value)
            yield metric


def _add(totals: dict[str, _Total], families: Iterable[Family]) -> None:
    for family in families:
        if family.name not in totals:
            totals[family.name] = _Total(family)
        totals[family.name].add(family)

"""Values of several processes become those of one gateway: nothing counted twice, nothing lost with a process that ends."""

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from inference.gateway.metrics import CheapHistogram
from inference.gateway.worker_metrics import SummedMetrics, dump


class Process:
    """A worker's registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ended = Counter("hw_ended", "Ended.", ["route"], registry=self.registry)
        self.running = Gauge("hw_running", "Running.", registry=self.registry)
        self.age = Gauge("hw_feed_age_seconds", "Age.", registry=self.registry)
        self.ttft = CheapHistogram("hw_ttft_seconds", "TTFT.", (0.1, 1.0))
        self.registry.register(self.ttft)


def lines(metrics: SummedMetrics) -> set[str]:
    registry = CollectorRegistry()
    registry.register(metrics)
    return {line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")}


def two_processes() -> tuple[SummedMetrics, Process, Process]:
    one, two, metrics = Process(), Process(), SummedMetrics()
    one.ended.labels("/a").inc(3)
    two.ended.labels("/a").inc(4)
    two.ended.labels("/b").inc()
    for process, running, age_s in ((one, 2, 0.5), (two, 5, 0.25)):
        process.running.set(running)
        process.age.set(age_s)
        process.ttft.observe(0.05)
    two.ttft.observe(5.0)
    metrics.update(1, dump(one.registry))
    metrics.update(2, dump(two.registry))
    return metrics, one, two


def test_counters_histograms_and_gauges_are_added_up_and_the_largest_age_counts() -> None:
    metrics, _, _ = two_processes()
    assert lines(metrics) == {
        'hw_ended_total{route="/a"} 7.0',
        'hw_ended_total{route="/b"} 1.0',
        "hw_running 7.0",
        "hw_feed_age_seconds 0.5",
        'hw_ttft_seconds_bucket{le="0.1"} 2.0',
        'hw_ttft_seconds_bucket{le="1.0"} 2.0',
        'hw_ttft_seconds_bucket{le="+Inf"} 3.0',
        "hw_ttft_seconds_count 3.0",
        "hw_ttft_seconds_sum 5.1",
    }


def test_what_is_sent_again_is_not_counted_twice() -> None:
    metrics, one, _ = two_processes()
    before = lines(metrics)
    metrics.update(1, dump(one.registry))
    assert lines(metrics) == before


def test_a_process_that_has_ended_leaves_its_counts_and_takes_its_gauges() -> None:
    metrics, _, two = two_processes()
    metrics.ended(1)
    metrics.ended(1)
    two.ended.labels("/a").inc()
    metrics.update(2, dump(two.registry))
    after = lines(metrics)
    assert {
        'hw_ended_total{route="/a"} 8.0',
        "hw_running 5.0",
        "hw_feed_age_seconds 0.25",
        "hw_ttft_seconds_count 3.0",
    } <= after
    metrics.ended(2)
    assert {'hw_ended_total{route="/a"} 8.0', "hw_ttft_seconds_count 3.0"} <= lines(metrics)
    assert not any(line.startswith("hw_running") for line in lines(metrics))
    metrics.ended(3)

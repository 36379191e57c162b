"""What the gateway counts, for Prometheus, on a port of its own. No label names a tenant or a key.

All values are written on the event loop and read by the exporter's thread.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from billing.services.ledger import UsageDraft
from inference.gateway.brain_metrics import BrainMetrics
from inference.gateway.record import JournalLike
from inference.policy.brain import BrainSnapshot

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
INTER_EVENT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TOKENISE_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)
TOTAL_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
QUEUE_BUCKETS_S = (0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class CheapHistogram(Collector):
    """One writer, no lock, no labels: an observation is a bisection and two additions (the library's costs 10 times that)."""

    def __init__(self, name: str, text: str, bounds: Iterable[float]) -> None:
        self._name, self._text = name, text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        counts, bounds = self._counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self._sum += sum(values)

    def collect(self) -> Iterator[Metric]:
        total, buckets = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), list(self._counts), strict=True):
            total += count
            buckets.append((bound, float(total)))
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], buckets, self._sum)
        yield family


class JournalMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._depth = Gauge("headway_journal_depth", "Records not yet in the ledger.", registry=registry)
        self._open = Gauge("headway_journal_open", "Records of requests that run.", registry=registry)
        # Told so that the sum over processes says whether anything is wrong.
        self._unhealthy = Gauge("headway_journal_unhealthy", "1: the journal cannot be written.", registry=registry)
        self._refused = Counter("headway_journal_refused", "Records that the ledger refused.", registry=registry)
        self._corrupt = Counter(
            "headway_journal_corrupt", "Stretches of the journal that could not be read.", registry=registry
        )
        self._num_refused = self._num_corrupt = 0

    def sample(self, journal: JournalLike) -> None:
        self._depth.set(journal.depth())
        self._open.set(journal.num_open)
        self._unhealthy.set(not journal.is_healthy)
        refused, corrupt = journal.num_refused, journal.num_corrupt
        self._refused.inc(refused - self._num_refused)
        self._corrupt.inc(corrupt - self._num_corrupt)
        self._num_refused, self._num_corrupt = refused, corrupt


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "headway_requests", "Requests that have ended.", ["route", "status", "end_state"], registry=registry
        )
        self._refusals = Counter(
            "headway_unauthenticated_requests", "Requests refused for their credentials.", ["route"], registry=registry
        )
        self._edge_refusals = Counter(
            "headway_edge_refusals", "Connections refused before there was a request.", ["code"], registry=registry
        )
        self._clients_cut = Counter("headway_clients_cut", "Clients cut for not reading.", registry=registry)
        self._attempt_failures = Counter(
            "headway_attempt_failures", "Attempts on a replica that failed.", ["reason"], registry=registry
        )
        self._resumes = Counter(
            "headway_resumes",
            "Answers that went on at another replica, or after they were parked; exact: as likely as if they had not.",
            ["exact"],
            registry=registry,
        )
        self._tokens = Counter("headway_tokens", "Tokens of ended requests.", ["kind"], registry=registry)
        self._prompt_tokens = self._tokens.labels("prompt")
        self._cached_tokens = self._tokens.labels("cached")
        self._completion_tokens = self._tokens.labels("completion")
        # Looking a label up takes a lock and costs more than all else here.
        self._ended: dict[tuple[str, int, str], Counter] = {}
        self._total = CheapHistogram("headway_request_seconds", "From the request's head to its end.", TOTAL_BUCKETS_S)
        self._ttft = CheapHistogram("headway_ttft_seconds", "Time to the first output.", TTFT_BUCKETS_S)
        self._inter_event = CheapHistogram("headway_inter_event_seconds", "Time between outputs.", INTER_EVENT_BUCKETS_S)
        self._queue = CheapHistogram("headway_queue_seconds", "Time in the queue.", QUEUE_BUCKETS_S)
        self._prompt_counts = Counter(
            "headway_prompt_counts", "Prompts by how their tokens were counted before dispatch.", ["how"], registry=registry
        )
        self._counted_how: dict[str, Counter] = {}
        self._tokenise = CheapHistogram("headway_tokenise_seconds", "Time to count a prompt's tokens.", TOKENISE_BUCKETS_S)
        for histogram in (self._total, self._ttft, self._inter_event, self._queue, self._tokenise):
            registry.register(histogram)
        self._brain = BrainMetrics(registry)
        self._journal = JournalMetrics(registry)
        self._feed_age = Gauge("headway_feed_age_seconds", "Since the control feed was last read.", registry=registry)
        self._relay_cpu = Counter("headway_relay_cpu_seconds", "CPU time of the event loops.", registry=registry)
        self._relay_cpu_s = 0.0
        self._upstream = Gauge("headway_upstream_connections", "Open connections to engines.", registry=registry)

    def unauthenticated(self, route: str) -> None:
        self._refusals.labels(route).inc()

    def refused_by_edge(self, code: str) -> None:
        self._edge_refusals.labels(code).inc()

    def client_cut(self) -> None:
        self._clients_cut.inc()

    def attempt_failed(self, reason: str) -> None:
        self._attempt_failures.labels(reason).inc()

    def resumed(self, *, is_exact: bool) -> None:
        self._resumes.labels("yes" if is_exact else "no").inc()

    def prompt_counted(self, how: str, took_s: float | None = None) -> None:
        """`how`: exact, cached (all known from before), too_long; or why a bound was taken: no_tokeniser, not_loaded,
        unsupported, template, ..."""
        counted = self._counted_how.get(how)
        if counted is None:
            counted = self._counted_how[how] = self._prompt_counts.labels(how)
        counted.inc()
        if took_s is not None:
            self._tokenise.observe(took_s)

    def first_output(self, after_s: float) -> None:
        self._ttft.observe(after_s)

    def further_outputs(self, after_s: Sequence[float]) -> None:
        self._inter_event.observe_all(after_s)

    def request_ended(self, draft: UsageDraft, status: int) -> None:
        end = (draft.route, status, draft.end_state)
        ended = self._ended.get(end)
        if ended is None:
            ended = self._ended[end] = self._requests.labels(draft.route, str(status), draft.end_state)
        ended.inc()
        self._prompt_tokens.inc(draft.prompt_tokens)
        self._cached_tokens.inc(draft.cached_tokens)
        self._completion_tokens.inc(draft.completion_tokens)
        self._total.observe(draft.total_ms / 1000)
        if draft.attempts:
            self._queue.observe(draft.queue_ms / 1000)

    def sample(
        self, *, brain: BrainSnapshot | None, journal: JournalLike, feed_age_s: float, num_upstream_connections: int
    ) -> None:
        if brain is not None:
            self.sample_brain(brain)
        self._journal.sample(journal)
        self._feed_age.set(feed_age_s)
        cpu_s = time.thread_time()  # of this thread, which is the event loop's
        self._relay_cpu.inc(cpu_s - self._relay_cpu_s)
        self._relay_cpu_s = cpu_s
        self._upstream.set(num_upstream_connections)

    def sample_brain(self, brain: BrainSnapshot) -> None:
        self._brain.sample(brain)

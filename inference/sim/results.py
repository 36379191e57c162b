"""A run's figures. Latencies are of requests that got a first token; refused and late ones are counted beside them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from inference.policy.decisions import Tier
from inference.sim.histogram import Histogram
from inference.sim.records import Record
from inference.sim.simulation import Outcome


@dataclass(frozen=True, slots=True)
class Quantiles:
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of some of the requests."""

    requests: int
    refused: int
    late: int
    """First token later than Setup.late_ttft_s after the arrival, or none by the end of the run."""
    ttft_s: Quantiles
    inter_token_s: Quantiles
    """Of all gaps between two tokens of one answer, pauses by preemption and parking among them."""
    cached_share: float
    """Of prompt tokens, of requests that got a first token."""

    @property
    def bad_share(self) -> float:
        return (self.refused + self.late) / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    all: Figures
    by_tier: dict[Tier, Figures]
    by_tenant: dict[str, Figures]
    tokens_per_s: float
    """Completion tokens over the whole run."""
    load_max_to_mean: float
    """Of the replicas' mean requests in flight."""
    work_max_to_mean: float
    """Of the tokens they computed."""
    busy_share: float
    """Mean over replicas of the time in which they computed something, until the run's end."""
    jain: float
    """Jain's index of tenants' tokens by weight at the last arrival; 1: fair. Means something among tenants that all want
    more than they get: name them in `weights`."""
    preemptions: int
    parks: int
    gave_up: bool


def summarise(outcome: Outcome, weights: Mapping[str, float] | None = None) -> Summary:
    """`weights`: of the tenants that `jain` compares; None: all, alike."""
    records = outcome.records
    tiers = sorted({record.arrival.tier for record in records})
    tenants = sorted({record.arrival.tenant for record in records})
    loads = outcome.loads.values()
    served = outcome.service_tokens
    shares = [served.get(tenant, 0) / weight for tenant, weight in (weights or dict.fromkeys(served, 1.0)).items()]
    end_s = outcome.end_s or 1.0
    return Summary(
        all=_figures(outcome, records, outcome.gaps.values()),
        by_tier={tier: _of_tier(outcome, tier) for tier in tiers},
        by_tenant={tenant: _of_tenant(outcome, tenant) for tenant in tenants},
        tokens_per_s=sum(record.completion_tokens for record in records) / end_s,
        load_max_to_mean=max_to_mean(load.area for load in loads),
        work_max_to_mean=max_to_mean(load.computed_tokens for load in loads),
        busy_share=sum(outcome.busy_s.values()) / len(outcome.busy_s) / end_s,
        jain=jain(shares),
        preemptions=outcome.preemptions,
        parks=sum(record.parks for record in records),
        gave_up=outcome.gave_up,
    )


def jain(values: Iterable[float]) -> float:
    """(sum x)^2 / (n * sum x^2): 1 when all are equal, 1/n when one has everything (Jain, Chiu, Hawe 1984)."""
    values = list(values)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def max_to_mean(values: Iterable[float]) -> float:
    values = list(values)
    total = sum(values)
    return max(values) * len(values) / total if total else 1.0


def _of_tier(outcome: Outcome, tier: Tier) -> Figures:
    gaps = (histogram for group, histogram in outcome.gaps.items() if group[0] == tier)
    return _figures(outcome, [record for record in outcome.records if record.arrival.tier is tier], gaps)


def _of_tenant(outcome: Outcome, tenant: str) -> Figures:
    gaps = (histogram for group, histogram in outcome.gaps.items() if group[1] == tenant)
    return _figures(outcome, [record for record in outcome.records if record.arrival.tenant == tenant], gaps)


def _figures(outcome: Outcome, records: list[Record], gaps: Iterable[Histogram]) -> Figures:
    all_gaps = Histogram()
    for histogram in gaps:
        all_gaps.merge(histogram)
    ttfts_s = sorted(record.ttft_s for record in records if record.ttft_s is not None)
    prompt_tokens = sum(record.arrival.prompt_tokens for record in records if record.first_token_s is not None)
    return Figures(
        requests=len(records),
        refused=sum(record.is_refused for record in records),
        late=sum(_is_late(record, outcome.setup.late_ttft_s) for record in records),
        ttft_s=Quantiles(_at(ttfts_s, 0.5), _at(ttfts_s, 0.9), _at(ttfts_s, 0.99)),
        inter_token_s=Quantiles(all_gaps.quantile(0.5), all_gaps.quantile(0.9), all_gaps.quantile(0.99)),
        cached_share=sum(record.cached_tokens for record in records) / prompt_tokens if prompt_tokens else 0.0,
    )


def _is_late(record: Record, late_ttft_s: float) -> bool:
    return not record.is_refused and (record.ttft_s is None or record.ttft_s > late_ttft_s)


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

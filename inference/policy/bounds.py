"""How sure a difference is: bounds of shares, quantiles and means, from samples alone. Nothing is assumed of latencies' shape.

Shares: Wilson's interval; their difference: Newcombe's (1998, method 10). Quantiles: order statistics, whose ranks come from
the binomial distribution. Means: normal, with the least number of samples that makes it fair.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, stdev

MIN_FOR_MEAN = 30
"""Samples below which no bound of a mean is given."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """`low` and `high` are each held with the confidence asked for, one-sided."""

    value: float
    low: float
    high: float


@lru_cache(maxsize=64)
def z_of(confidence: float) -> float:
    """One-sided."""
    return NormalDist().inv_cdf(confidence)


def share(hits: int, samples: int, confidence: float) -> Bounds:
    """Wilson's interval of hits among samples; 0 to 1 where there is no sample."""
    assert 0 <= hits <= samples
    if samples == 0:
        return Bounds(0.0, 0.0, 1.0)
    z = z_of(confidence)
    found, z2 = hits / samples, z * z
    centre = (found + z2 / (2 * samples)) / (1 + z2 / samples)
    reach = z * math.sqrt(found * (1 - found) / samples + z2 / (4 * samples * samples)) / (1 + z2 / samples)
    return Bounds(found, max(0.0, centre - reach), min(1.0, centre + reach))


def share_rise(before: tuple[int, int], after: tuple[int, int], confidence: float) -> Bounds:
    """How much higher the second share is; each is (hits, samples). Newcombe's hybrid of two Wilson intervals."""
    old, new = share(*before, confidence), share(*after, confidence)
    rise = new.value - old.value
    low = rise - math.hypot(new.value - new.low, old.high - old.value)
    high = rise + math.hypot(new.high - new.value, old.value - old.low)
    return Bounds(rise, low, high)


def quantile(ordered: Sequence[float], at: float, confidence: float) -> Bounds:
    """Of samples in ascending order. A side of which the samples do not say enough is 0 or infinite."""
    if not ordered:
        return Bounds(math.nan, 0.0, math.inf)
    low, high = _ranks(len(ordered), at, confidence)
    value = ordered[min(len(ordered) - 1, math.floor(at * len(ordered)))]
    return Bounds(value, ordered[low - 1] if low else 0.0, ordered[high - 1] if high else math.inf)


@lru_cache(maxsize=8192)
def _ranks(samples: int, at: float, confidence: float) -> tuple[int, int]:
    """The greatest rank (from 1) that is above the quantile, and the least that is below it, with at most 1 - confidence.

    With B binomial (samples, at): the k-th smallest lies above the quantile when fewer than k samples are below it, so with
    P(B <= k - 1); and below it with P(B >= k). 0: no rank is sure enough.
    """
    doubt = 1 - confidence
    low, high, below = 0, 0, 0.0
    for k in range(1, samples + 1):
        below += _binomial(samples, k - 1, at)  # P(B <= k - 1)
        if below <= doubt:
            low = k
        if not high and 1 - below <= doubt:  # P(B >= k)
            high = k
    return low, high


def _binomial(samples: int, hits: int, at: float) -> float:
    choose = math.lgamma(samples + 1) - math.lgamma(hits + 1) - math.lgamma(samples - hits + 1)
    return math.exp(choose + hits * math.log(at) + (samples - hits) * math.log1p(-at))


def mean(values: Sequence[float], confidence: float) -> Bounds:
    """Infinite bounds where there are fewer than MIN_FOR_MEAN values."""
    if len(values) < MIN_FOR_MEAN:
        return Bounds(fmean(values) if values else math.nan, -math.inf, math.inf)
    middle, reach = fmean(values), z_of(confidence) * stdev(values) / math.sqrt(len(values))
    return Bounds(middle, middle - reach, middle + reach)

"""Quantiles of many positive numbers in little memory: buckets 1 % wide."""

import math

_SMALLEST = 1e-6
_LOG_RATIO = math.log(1.01)


class Histogram:
    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, value: float, count: int = 1) -> None:
        bucket = int(math.log(max(value, _SMALLEST) / _SMALLEST) / _LOG_RATIO)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count
        self.total += value * count

    def merge(self, other: "Histogram") -> None:
        self.count += other.count
        self.total += other.total
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count

    def quantile(self, share: float) -> float:
        """Within 0.5 %; 0 when empty."""
        if not self.count:
            return 0.0
        before = 0
        for bucket in sorted(self._buckets):
            before += self._buckets[bucket]
            if before >= share * self.count:
                return _SMALLEST * math.exp((bucket + 0.5) * _LOG_RATIO)
        raise AssertionError("counts do not add up")

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

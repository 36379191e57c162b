"""What can be set in the autoscaler's policy, with its unit."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScaleBounds:
    """Of one pool, as an operator has set them."""

    min_replicas: int
    max_replicas: int
    idle_before_zero_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise ValueError("replicas: 0 <= min <= max")


@dataclass(frozen=True, slots=True)
class AutoscaleTunables:
    window_s: float = 15.0
    """Over which the present load is taken: long enough that one burst is not a trend (B123)."""
    target_ratio: float = 0.8
    """Of what a replica can do (prompts read, slots, KV cache), what it is to do in the mean of the window."""
    down_ratio: float = 0.65
    """What those that stay may have to do after one has gone (N -> N-1); below `target_ratio`, so that going down is
    never what makes it go up again."""
    horizon_s: float = 600.0
    """How much of the past the forecast replays."""
    late_ratio: float = 0.04
    """Of the replayed work, what may begin later than its target at the forecast's floor."""
    quantile: float = 0.95
    """Of the slots and the KV cache used over the horizon, what the forecast's floor has room for."""
    lookback_s: float = 120.0
    """Going down follows the highest that was wanted in so much of the past."""
    up_pause_s: float = 5.0
    """Between two steps up: so long the first takes to be seen among those that start."""
    down_pause_s: float = 30.0
    """Between two steps down, one replica each: so long it takes to see what the last one did."""
    reversal_pause_s: float = 60.0
    """Between a step and one in the other direction."""
    stale_s: float = 10.0
    """What a replica said so long ago says nothing now."""
    drain_s: float = 10.0
    """In which what waits beyond its target is to be worked off."""

    def __post_init__(self) -> None:
        if not 0 < self.down_ratio <= self.target_ratio <= 1:
            raise ValueError("0 < down_ratio <= target_ratio <= 1")
        if self.horizon_s < self.window_s or min(self.window_s, self.drain_s) <= 0:
            raise ValueError("0 < window_s <= horizon_s, 0 < drain_s")

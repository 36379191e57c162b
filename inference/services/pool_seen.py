"""One pool as the dispatcher shows it now (dispatch/observing.py), in the units that pages and their charts have."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PoolNow:
    in_flight: int
    parked: int
    """Requests, since the dispatcher began."""
    jain_index: float
    queued: dict[str, int]
    """By tier."""
    ttft_ms: dict[str, float]
    """Median of late, by tier; a tier of which nothing was asked is left out."""
    inter_token_ms: float | None
    """Mean over replicas, while no prompt was read there."""
    caps: list[int]
    """Of its replicas, the least first: requests at once that each may have."""
    kv_percent: float | None


def pool_now(shown: Mapping[str, Any] | None, model: str) -> PoolNow | None:
    """`shown` None: the dispatcher does not answer. None: nothing is known of the pool."""
    queue = (shown or {}).get("pools", {}).get(model)
    if queue is None:
        return None
    scaling = (shown or {}).get("scaling", {}).get(model, {})
    replicas = list(scaling.get("replicas", {}).values())
    gap_s, kv_ratio = (_mean([one[name] for one in replicas]) for name in ("inter_token_s", "kv_used_ratio"))
    return PoolNow(
        in_flight=queue["in_flight"],
        parked=queue["parked"],
        jain_index=round(queue["jain_index"], 3),
        queued=dict(queue["queued_by_tier"]),
        ttft_ms={tier: round(value_s * 1000, 1) for tier, value_s in scaling.get("ttft_s_by_tier", {}).items()},
        inter_token_ms=None if gap_s is None else round(gap_s * 1000, 1),
        caps=sorted(queue["caps"].values()),
        kv_percent=None if kv_ratio is None else round(kv_ratio * 100, 1),
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

"""What the autoscaler looks at: shown by the brain as JSON-able values, and read back by whoever decides.

The dispatcher's `observe` carries it from one process to another; the simulator takes the same way.
"""

from collections.abc import Mapping
from typing import Any

from inference.policy.autoscale import PoolSeen, ReplicaSeen
from inference.policy.decisions import Tier
from inference.policy.demand import DemandView
from inference.policy.pool import PoolSnapshot


def shown(pool: PoolSnapshot, demand: DemandView) -> dict[str, Any]:
    usable = {name: view for name, view in pool.replicas.items() if view.is_usable}
    rates = [view.prefill_tokens_per_s for view in usable.values()]
    target = None if demand.urgent is None else pool.targets.get(demand.urgent)
    return {
        "waiting": pool.queued,
        "waiting_tokens": pool.waiting_tokens,
        "in_flight": pool.in_flight,
        "prompt_tokens_by_second": list(demand.by_second),
        "second": demand.second,
        "cached_ratio": round(demand.cached_ratio, 4),
        "tokens_per_s": round(sum(rates) / len(rates), 1) if rates else 0.0,
        "ttft_s": target.ttft_s if target is not None else 0.0,
        "ttft_s_by_tier": {tier.name.lower(): round(demand.ttft_s[tier], 4) for tier in Tier if tier in demand.ttft_s},
        "replicas": {
            name: {
                "in_flight": view.in_flight,
                "cap": view.cap,
                "queued_tokens": round(view.queued_prefill_tokens),
                "kv_used_ratio": view.kv_used_ratio,
                "seen_s_ago": view.seen_s_ago,
                "inter_token_s": view.inter_token_s,
            }
            for name, view in usable.items()
        },
    }


def seen_of(shown: Mapping[str, Any], *, serving: int, clock: str) -> PoolSeen:
    """`clock`: which brain showed it. Raises KeyError for what another release shows."""
    to_compute = 1.0 - shown["cached_ratio"]
    return PoolSeen(
        serving=serving,
        clock=clock,
        second=shown["second"],
        work=tuple(tokens * to_compute for tokens in shown["prompt_tokens_by_second"]),
        in_flight=shown["in_flight"],
        waiting=shown["waiting"],
        waiting_tokens=shown["waiting_tokens"] * to_compute,
        replicas=tuple(
            ReplicaSeen(
                in_flight=one["in_flight"],
                cap=one["cap"],
                queued_tokens=one["queued_tokens"],
                kv_used_ratio=one["kv_used_ratio"],
                seen_s_ago=one["seen_s_ago"],
            )
            for one in shown["replicas"].values()
        ),
        tokens_per_s=shown["tokens_per_s"],
        ttft_s=shown["ttft_s"],
    )

"""A brain's snapshot as plain values, for pages, commands and the autoscaler."""

from typing import Any

from inference.policy.autoscale_view import shown
from inference.policy.brain import BrainSnapshot
from inference.policy.decisions import Tier
from inference.policy.demand import DemandView
from inference.policy.limit_views import LimiterSnapshot
from inference.policy.pool import PoolSnapshot


def observed(snapshot: BrainSnapshot) -> dict[str, Any]:
    """JSON-able; names as in BrainSnapshot, tiers by name."""
    return {
        "in_flight": snapshot.in_flight,
        "queued": snapshot.queued,
        "away": snapshot.away,
        "overcommitted": snapshot.overcommitted,
        "leaked_slots": snapshot.limits.running - snapshot.in_flight,
        "limits": _limits(snapshot.limits),
        "pools": {model: _pool(pool) for model, pool in snapshot.pools.items()},
        "scaling": {model: shown(pool, snapshot.demand.get(model, DemandView())) for model, pool in snapshot.pools.items()},
    }


def _pool(pool: PoolSnapshot) -> dict[str, Any]:
    return {
        "in_flight": pool.in_flight,
        "queued": pool.queued,
        "capacity": pool.capacity,
        "queued_by_tier": {tier.name.lower(): pool.queued_by_tier.get(tier, 0) for tier in Tier},
        "in_flight_by_replica": dict(pool.in_flight_by_replica),
        "caps": dict(pool.caps),
        "parked": pool.parked,
        "jain_index": pool.jain_index,
        "versions": {
            label: {"in_flight": seen.in_flight, "queued": seen.queued, "capacity": seen.capacity}
            for label, seen in pool.versions.items()
        },
        "acceptance": dict(pool.acceptance),
    }


def _limits(limits: LimiterSnapshot) -> dict[str, Any]:
    """`in_use`: the limits of which something is used or reserved. `balances`: of all time, by tenant; `told_by`: by which
    change of the feed."""
    return {
        "open": limits.open,
        "running": limits.running,
        "overcommitted": limits.overcommitted,
        "overruns": limits.overruns,
        "unacknowledged_picos": str(limits.unacknowledged_picos),
        "in_use": [
            {
                "scope": use.limit.scope.kind.value,
                "id": use.limit.scope.id,
                "kind": use.limit.kind.value,
                "value": use.limit.value,
                "used": use.used,
                "reserved": use.reserved,
            }
            for use in limits.limits
            if use.used or use.reserved
        ],
        "balances": {
            use.tenant: {
                "credit_picos": str(use.credit_picos),
                "spent_picos": str(use.spent_picos),
                "reserved_picos": str(use.reserved_picos),
                "told_by": use.told_by,
            }
            for use in limits.balances
        },
    }

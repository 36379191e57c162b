"""What the fleet adds to the API."""

from typing import Any

from inference.api import operator_pools

OF_OPERATORS: dict[str, Any] = {
    "pools/": operator_pools.Pools,
    "pools/<id:pool_id>/": operator_pools.OnePool,
    "scaling/": operator_pools.Decisions,
}
"""Below `operator/`: every one is an OperatorView (a test walks them all)."""

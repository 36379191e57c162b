"""What inference adds to the API (`headway.urls_api` puts it together)."""

from typing import Any

from inference.api import operator_weights

OF_OPERATORS: dict[str, Any] = {
    "weights/": operator_weights.Weights,
    "capacity/": operator_weights.Capacity,
}
"""Below `operator/`: every one is an OperatorView (a test walks them all)."""

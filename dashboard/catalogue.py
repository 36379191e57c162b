"""The models as customers see them: what can be called, how large, what it costs, how fast it is at the moment."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from billing.selectors import list_prices, speeds_since
from inference.selectors import offered_models
from inference.services.rollouts.pin_reads import PinView, pins_of

FRESH = timedelta(hours=1)


@dataclass(frozen=True)
class Offer:
    id: str
    description: str
    version: str
    context_tokens: int
    """0: not known."""
    ready: int
    """Replicas that serve."""
    price: Any = None
    ttft_ms: float | None = None
    tokens_per_s: float | None = None
    requests: int = 0
    pin: PinView | None = None
    """Which version the tenant gets; None: there is nothing to choose."""


def catalogue(tenant_id: UUID) -> list[Offer]:
    """Retired models are left out. Speeds: medians of the last hour, of all customers' requests."""
    speeds, prices = speeds_since(timezone.now() - FRESH), list_prices()
    pins = {pin.model: pin for pin in pins_of(tenant_id)}
    found = []
    for model in offered_models():
        speed = speeds.get(model.id)
        found.append(
            Offer(
                id=model.id,
                description=model.description,
                version=model.version,
                context_tokens=model.context_tokens,
                ready=model.ready,
                price=prices.get(model.id),
                ttft_ms=speed.ttft_ms if speed else None,
                tokens_per_s=speed.tokens_per_s if speed else None,
                requests=speed.requests if speed else 0,
                pin=pins.get(model.id),
            )
        )
    return found

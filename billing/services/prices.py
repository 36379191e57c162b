"""Prices of models: append-only, each a new version."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from billing.errors import PriceJump
from billing.models import Price
from billing.selectors import prices_in_force
from billing.services.rating import UnitPrice, unit_price
from headway.errors import Conflict, InvalidInput
from headway.money import micros_to_usd
from inference.selectors import has_model
from inference.services import control
from tenants.services.audit import record_audit

TIERS = ("interactive", "standard", "batch")
MAX_MICROS = 10_000 * 1_000_000
"""A million tokens for ten thousand dollars: above it somebody has mistaken the unit."""
UNIT = "per_million_tokens"
"""The only unit a price is given in: dollars (micro-dollars here) for a million tokens."""
MAX_FACTOR = 100
"""A price that many times what holds, or a part of it, is taken when it is confirmed."""


def list_unit_price(model: str, *, tier: str) -> UnitPrice:
    """What its tokens cost now without a discount: the tier's price, else the one for all, else nothing."""
    now = timezone.now()
    found = {price.tier: price for price in prices_in_force(model) if price.effective_from <= now}
    price = found.get(tier) or found.get("")
    return unit_price(price) if price is not None else UnitPrice(0, 0, 0)


def set_price(
    *,
    model: str,
    input_micros: int,
    output_micros: int,
    actor: str,
    cached_micros: int | None = None,
    tier: str = "",
    effective_from: datetime | None = None,
    unit: str = UNIT,
    is_confirmed: bool = False,
    now: datetime | None = None,
) -> Price:
    """Micro-dollars per million tokens, from now on unless told; cached tokens cost what input does unless told.

    Raises InvalidInput for an unknown model or tier, another unit, an amount out of bounds, cached tokens dearer than
    input, or a time that has passed; PriceJump for one far from the price that holds then, unless `is_confirmed`.
    """
    amounts = check_price(
        model=model, tier=tier, input_micros=input_micros, cached_micros=cached_micros, output_micros=output_micros, unit=unit
    )
    now = now or timezone.now()
    if effective_from is not None and effective_from < now:
        raise InvalidInput("a price cannot hold from a time that has passed", param="effective_from")
    if not is_confirmed:
        _check_jump(model, tier, amounts, effective_from or now)
    input_micros, cached_micros, output_micros = amounts
    try:
        with transaction.atomic():
            newest = Price.objects.filter(model=model).aggregate(newest=Max("version"))["newest"] or 0
            price = Price.objects.create(
                model=model,
                tier=tier,
                version=newest + 1,
                input_micros=input_micros,
                cached_micros=cached_micros,
                output_micros=output_micros,
                effective_from=effective_from or now,
            )
            control.publish(kind="price", key=model, payload={"prices": [_payload(each) for each in prices_in_force(model)]})
            record_audit(actor=actor, action="price.set", target=model, after=_payload(price))
    except IntegrityError:
        raise Conflict(f"somebody else has just set a price of {model!r}; look again") from None
    return price


def check_price(
    *, model: str, tier: str, input_micros: int, cached_micros: int | None, output_micros: int, unit: str = UNIT
) -> tuple[int, int, int]:
    """Input, cached, output. Raises InvalidInput."""
    if unit != UNIT:
        raise InvalidInput(
            f"a price is in US dollars per million tokens ({UNIT}), not {unit!r}: multiply a price per token by 1,000,000",
            param="unit",
        )
    cached_micros = input_micros if cached_micros is None else cached_micros
    _check(model, tier, (input_micros, cached_micros, output_micros))
    if cached_micros > input_micros:
        raise InvalidInput("cached tokens cannot cost more than input tokens", param="cached_micros")
    return input_micros, cached_micros, output_micros


def price_in_force(model: str, tier: str, at: datetime) -> Price | None:
    """What a request of the tier is priced by at that instant: the newest of the tier, else of all. None: free."""
    rows = Price.objects.filter(model=model, tier__in={tier, ""}, effective_from__lte=at)
    found: Price | None = max(rows, key=lambda price: (price.tier == tier, price.effective_from, price.version), default=None)
    return found


def ids_in_force(models: Iterable[str], *, now: datetime) -> set[int]:
    """Of each of these models and tiers the version that holds: in one query."""
    holds: dict[tuple[str, str], int] = {}
    for price in Price.objects.filter(model__in=set(models), effective_from__lte=now).order_by("effective_from", "version"):
        holds[price.model, price.tier] = price.id
    return set(holds.values())


def _check_jump(model: str, tier: str, amounts: tuple[int, int, int], at: datetime) -> None:
    holds = price_in_force(model, tier, at)
    if holds is None:
        return
    before = (holds.input_micros, holds.cached_micros, holds.output_micros)
    for kind, old, new in zip(("input", "cached input", "output"), before, amounts, strict=True):
        if new > old * MAX_FACTOR or new * MAX_FACTOR < old:
            raise PriceJump(
                f"a million {kind} tokens would cost ${micros_to_usd(new)} in place of ${micros_to_usd(old)}, more than "
                f"{MAX_FACTOR} times as much, or less than a part of {MAX_FACTOR}: look at the unit, or confirm it",
                param="is_confirmed",
            )


def _check(model: str, tier: str, amounts: tuple[int, ...]) -> None:
    if not has_model(model):
        raise InvalidInput(f"there is no model {model!r}", param="model")
    if tier and tier not in TIERS:
        raise InvalidInput(f"a tier is one of {', '.join(TIERS)}", param="tier")
    if not all(0 <= amount <= MAX_MICROS for amount in amounts):
        raise InvalidInput(f"a price is from 0 to {MAX_MICROS // 1_000_000} US dollars per million tokens")


def _payload(price: Price) -> dict[str, Any]:
    return {
        "tier": price.tier,
        "version": price.version,
        "input_micros": price.input_micros,
        "cached_micros": price.cached_micros,
        "output_micros": price.output_micros,
        "effective_from": price.effective_from.timestamp(),
    }

"""How pools did, minute by minute: what charts are drawn from. A row a pool and minute, for two days.

Every few seconds one look at the dispatcher is added to the minute it falls in; a minute in which nobody answered has no row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from inference.models import Pool
from inference.scaling_models import PoolMinute
from inference.services.pool_seen import PoolNow, pool_now

KEEP = timedelta(days=2)
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measure over one step."""

    mean: float
    most: float


def note_minutes(*, shown: Mapping[str, Any] | None, now: datetime | None = None) -> int:
    """Add a look to the minute of every pool. `shown`: what the dispatcher shows; None: it does not answer.

    Returns how many pools were seen. Of two that do so at once for a minute's first time, one may be lost.
    """
    minute = (now or timezone.now()).replace(second=0, microsecond=0)
    named = Pool.objects.select_related("model").order_by("id")
    seen = {pool.pk: found for pool in named if (found := pool_now(shown, pool.model.public_id)) is not None}
    if not seen:
        return 0
    with transaction.atomic():
        known = PoolMinute.objects.select_for_update().filter(at=minute, pool_id__in=seen)
        before = dict(known.values_list("pool_id", "figures"))
        rows = [
            PoolMinute(pool_id=pool_id, at=minute, figures=_added(before.get(pool_id, {}), figures_of(found)))
            for pool_id, found in seen.items()
        ]
        PoolMinute.objects.bulk_create(rows, update_conflicts=True, unique_fields=["pool", "at"], update_fields=["figures"])
    return len(rows)


def figures_of(seen: PoolNow) -> dict[str, float]:
    """By the names that charts ask for; what is not known is left out."""
    found: dict[str, float] = {"jain_index": seen.jain_index}
    found |= {f"queued.{tier}": waiting for tier, waiting in seen.queued.items()}
    found |= {f"ttft_ms.{tier}": value for tier, value in seen.ttft_ms.items()}
    if seen.inter_token_ms is not None:
        found["inter_token_ms"] = seen.inter_token_ms
    if seen.caps:
        found["batch_cap"] = sum(seen.caps) / len(seen.caps)
        found["running"] = seen.in_flight / len(seen.caps)
    return found


def pool_series(pool_id: int, *, start: datetime, step: timedelta, num_steps: int) -> list[dict[str, Figure]]:
    """What was seen in each step from `start` on, by name; in one query."""
    sums: list[dict[str, list[float]]] = [{} for _ in range(num_steps)]
    rows = PoolMinute.objects.filter(pool_id=pool_id, at__gte=start, at__lt=start + step * num_steps)
    for at, figures in rows.values_list("at", "figures"):
        whole = sums[(at - start) // step]
        for name, found in figures.items():
            whole[name] = _joined(whole.get(name), found)
    return [{name: Figure(round(total / looks, 3), most) for name, (looks, total, most) in each.items()} for each in sums]


def forget_old_minutes(*, now: datetime) -> int:
    return PoolMinute.objects.filter(at__lt=now - KEEP).delete()[0]


def _added(before: Mapping[str, list[float]], figures: Mapping[str, float]) -> dict[str, list[float]]:
    return {**before, **{name: _joined(before.get(name), [1, value, value]) for name, value in figures.items()}}


def _joined(one: list[float] | None, other: list[float]) -> list[float]:
    """Two times [looks, sum, most]."""
    if one is None:
        return other
    return [one[0] + other[0], round(one[1] + other[1], 4), max(one[2], other[2])]

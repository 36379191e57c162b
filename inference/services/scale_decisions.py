"""The record of how many replicas were to serve, and why."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.utils import timezone

from inference.models import Pool
from inference.scaling_models import ScaleDecision
from inference.services.pool_minutes import forget_old_minutes
from inference.services.replica_starts import forget_old_starts

KEEP = timedelta(days=14)


def record_decision(
    *,
    pool: Pool,
    before: int,
    desired: int,
    reason: str,
    at: datetime,
    decided_by: str = "autoscaler",
    evidence: Mapping[str, float] | None = None,
    problem: str = "",
) -> bool:
    """Keep it, if anything of it is another than before. Returns whether it was kept."""
    last = ScaleDecision.objects.filter(pool=pool).order_by("-id").first()
    is_same = last is not None and (last.desired, last.reason, last.problem) == (desired, reason, problem[:500])
    if is_same and before == desired:
        return False
    ScaleDecision.objects.create(
        pool=pool,
        at=at,
        before=before,
        desired=desired,
        reason=reason,
        evidence=dict(evidence or {}),
        decided_by=decided_by,
        problem=problem[:500],
    )
    return True


def forget_old_scaling(*, now: datetime | None = None) -> int:
    """Decisions, starts of replicas, minutes of pools. Returns how many rows."""
    now = now or timezone.now()
    decisions = ScaleDecision.objects.filter(at__lt=now - KEEP).delete()[0]
    return decisions + forget_old_starts(now=now) + forget_old_minutes(now=now)

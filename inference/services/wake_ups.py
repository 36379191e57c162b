"""From a request that waits for a pool at zero to a replica: the dispatcher writes one row, a worker's sweep acts on it.

Not through the outbox: the data plane knows no broker.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from inference.models import Pool, Replica, ReplicaState
from inference.scaling_models import WakeUp
from inference.services.autoscale_memory import note_woken
from inference.services.database_clock import database_now
from inference.services.heartbeats import silent_nodes
from inference.services.holding import hold_pool
from inference.services.registry import publish_model
from inference.services.replicas import HELD
from inference.services.scale_decisions import record_decision
from inference.services.wanted import want_what_fits, wanted_counts

log = structlog.get_logger(__name__)

REFUSED_FOR = timedelta(seconds=5)
"""Then it may be asked for again."""
WOKEN = "a request came while nothing served"
NOT_WOKEN = "this pool is not woken by requests: it is not autoscaled, or has no version"


@dataclass(frozen=True, slots=True)
class WakeView:
    is_taken: bool
    age_s: float
    refused: str


def ask_for_wake_up(*, model: str, asked_by: str, now: datetime | None = None) -> WakeView:
    """Write the pool's row, or read it."""
    now = now or database_now()
    row = WakeUp.objects.filter(pool__model__public_id=model).first()
    if row is None:
        pool = Pool.objects.filter(model__public_id=model, is_autoscaled=True, version__isnull=False).first()
        if pool is None:
            return WakeView(is_taken=False, age_s=0.0, refused=NOT_WOKEN)
        row = _write(pool, asked_by, now)
    return WakeView(row.taken_at is not None, (now - row.asked_at).total_seconds(), row.refused)


def _write(pool: Pool, asked_by: str, now: datetime) -> WakeUp:
    try:
        with transaction.atomic():
            row = WakeUp.objects.create(pool=pool, asked_at=now, asked_by=asked_by[:200])
    except IntegrityError:  # another dispatcher was quicker
        return WakeUp.objects.get(pool=pool)
    log.info("wake_up_asked_for", pool=pool.name, by=asked_by)
    return row


def wake_pools(*, now: datetime | None = None) -> int:
    """Act on rows that nobody has acted on, and forget those that are over. Returns how many pools were woken."""
    now = now or database_now()
    num_woken = 0
    for row in WakeUp.objects.select_related("pool"):
        if row.refused and row.asked_at < now - REFUSED_FOR:
            row.delete()
        elif row.taken_at is None and not row.refused:
            num_woken += _wake(row, now)
        elif row.taken_at is not None and _is_over(row.pool):
            row.delete()
        elif row.taken_at is not None and (why := _why_nothing_comes(row.pool)):
            WakeUp.objects.filter(pk=row.pk, refused="").update(taken_at=None, refused=why[:500], asked_at=now)
    return num_woken


def _wake(row: WakeUp, now: datetime) -> bool:
    """Of several workers one does it: who has marked the row."""
    with transaction.atomic():
        pool = hold_pool(row.pool_id)
        if not WakeUp.objects.filter(pool=pool, taken_at=None, refused="").update(taken_at=now):
            return False
        refused = _start_one(pool, row.asked_by, now)
        publish_model(pool)  # with what a start usually takes by now
        if refused:
            WakeUp.objects.filter(pool=pool).update(taken_at=None, refused=refused[:500])
    return not refused


def _start_one(pool: Pool, asked_by: str, now: datetime) -> str:
    """Why not, or nothing. One that was wanted already is not asked for again."""
    if pool.version is None or not pool.is_autoscaled or not pool.max_replicas:
        return NOT_WOKEN
    serving, _ = wanted_counts(pool, pool.version)
    if serving:
        return _why_nothing_comes(pool)
    fitted = want_what_fits(pool=pool, version=pool.version, serving=1, warm=pool.warm_replicas)
    if not fitted.serving:
        record_decision(pool=pool, before=0, desired=0, reason=WOKEN, at=now, decided_by=asked_by, problem=fitted.problem)
        return fitted.problem
    Pool.objects.filter(pk=pool.pk).update(desired_replicas=1)
    note_woken(pool=pool, now=now)
    record_decision(pool=pool, before=0, desired=1, reason=WOKEN, at=now, decided_by=asked_by)
    return ""


def _wanted(pool: Pool) -> "QuerySet[Replica]":
    return Replica.objects.filter(pool=pool, is_wanted=True, is_standby=False).exclude(state=ReplicaState.STOPPED)


def _is_over(pool: Pool) -> bool:
    """Something serves, or nothing is wanted any more."""
    return not _wanted(pool).exists() or _wanted(pool).filter(state=ReplicaState.READY).exists()


def _why_nothing_comes(pool: Pool) -> str:
    """None of those that are wanted can come up before somebody acts, or a node is back. Empty: one of them may."""
    silent = set(silent_nodes().values_list("name", flat=True))
    reasons = []
    for replica in _wanted(pool).order_by("created_at"):
        if replica.node in silent:
            reasons.append(f"{replica.id}: its node {replica.node} is silent")
        elif replica.state == ReplicaState.FAILED and replica.reason.endswith(HELD):
            reasons.append(f"{replica.id}: {replica.reason}")
        else:
            return ""
    return "; ".join(reasons)
